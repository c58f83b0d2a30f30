"""Tests of models and versions, with an engine of text files."""

import os
import pathlib
import threading
from unittest import mock

import pytest
from absl.testing import absltest
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.flags.serve import ServeConfig
from bert_tf.serving import errors
from bert_tf.serving import model_config
from bert_tf.serving import model_manager
from bert_tf.serving.model_config import ModelConfig
from bert_tf.serving.model_config import VersionPolicy
from bert_tf.serving.servable import Engine
from bert_tf.serving.servable import Servable
from tests.support import toy_models

_TIMEOUT_SECONDS = 60
_NEWEST = VersionPolicy()


class _TextFile(Servable):
    def __init__(self, name, version, text):
        super().__init__(name, version, {})
        self.text = text
        self.is_closed = False

    def run(self, signature, inputs, outputs, stop=None):
        raise NotImplementedError

    def close(self):
        self.is_closed = True


class _TextEngine(Engine):
    """Loads folders with a file `text`; the text "broken" cannot be loaded."""

    def __init__(self):
        self.loaded = []
        self.gate = threading.Event()

    def load(self, name, version, directory):
        text = pathlib.Path(directory, "text").read_text("utf-8")
        self.loaded.append((name, version, text))
        if text == "broken":
            raise errors.invalid("it is broken")
        if text == "odd":
            raise RuntimeError("unexpected")
        if text == "slow":
            self.gate.wait(_TIMEOUT_SECONDS)
        return _TextFile(name, version, text)

    def missing(self, directory):
        if directory.endswith("/13"):  # Simulated: root may read any file.
            raise PermissionError(f"{directory} is locked")
        return None if os.path.exists(f"{directory}/text") else "text"


class ModelManagerTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.create_tempdir().full_path)
        self.engine = _TextEngine()
        self.changes = []
        self.manager = model_manager.ModelManager(
            self.engine, on_change=lambda *change: self.changes.append(change)
        )
        self.addCleanup(self.manager.stop)

    def write(self, version, text, model="m"):
        path = self.folder / model / str(version) / "text"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    def config(self, policy=_NEWEST, labels=(), model="m"):
        return ModelConfig(
            model, str(self.folder / model), policy, dict(labels)
        )

    def start(self, *args):
        self.manager.start([self.config(*args)], 0)

    def served(self, **which):
        with self.manager.use("m", **which) as servable:
            return servable.version, servable.text

    def states(self, model="m"):
        return {x: state for x, state, _ in self.manager.status(model)}

    def error(self, version):
        ((_, _, error),) = self.manager.status("m", version)
        return error.message

    def assert_not_served(self, message, **which):
        with self.assertRaisesRegex(errors.RequestError, message):
            self.served(**which)

    @pytest.mark.slow
    def test_serves_the_newest_and_takes_over_newer_ones(self):
        for version in (2, 10, 9):
            self.write(version, f"text {version}")
        self.write("11.tmp", "not a version")
        self.write("-3", "not a version")
        self.start()
        self.assertEqual(self.served(), (10, "text 10"))
        self.assertLen(self.engine.loaded, 1)
        with self.manager.use("m") as old:
            self.write("0012", "text 12")
            toy_models.refresh(self.manager)
            self.assertEqual(self.served(), (12, "text 12"))
            self.assert_not_served(r"Specific\(m, 10\)", version=10)
            self.assertFalse(old.is_closed)
            self.assertEqual(self.states(), {12: "AVAILABLE", 10: "UNLOADING"})
        self.assertTrue(old.is_closed)
        self.assertEqual(self.states(), {12: "AVAILABLE", 10: "END"})
        self.assertEqual(
            self.changes, [("m", 10, True), ("m", 12, True), ("m", 10, False)]
        )

    def test_serves_the_old_version_while_the_new_one_is_broken(self):
        self.write(1, "one")
        self.start()
        path = self.write(2, "broken")
        for _ in range(3):
            toy_models.refresh(self.manager)
        self.assertEqual(self.served(), (1, "one"))
        self.assertLen(self.engine.loaded, 2, "Tried again without a reason.")
        self.assertEqual(self.states()[2], "END")
        self.assertEqual(self.error(2), "it is broken")
        path.chmod(0o600)  # Its permissions changed, so it is retried.
        toy_models.refresh(self.manager)
        self.assertLen(self.engine.loaded, 3)
        path.write_text("two, mended", "utf-8")
        toy_models.refresh(self.manager)
        self.assertEqual(self.served(), (2, "two, mended"))

    def test_does_not_load_half_a_version(self):
        self.write(1, "one")
        self.start()
        (self.folder / "m" / "2").mkdir()
        with self.assertLogs(level="WARNING") as logged:
            toy_models.refresh(self.manager)
            toy_models.refresh(self.manager)
        self.assertLen(logged.output, 1)
        self.assertIn("has no text", logged.output[0])
        self.assertEqual(self.served(), (1, "one"))
        self.assertEqual(self.states()[2], "START")
        self.assertIn("not whole yet", self.error(2))
        self.write(2, "two")
        toy_models.refresh(self.manager)
        self.assertEqual(self.served(), (2, "two"))

    def test_pipes_and_loops_of_links_concern_only_their_version(self):
        self.write(1, "one")
        self.write(3, "three")
        self.write(4, "four")
        os.symlink(self.folder / "m" / "2", self.folder / "m" / "2")
        os.mkfifo(self.folder / "m" / "4" / "requests")
        os.symlink("nowhere", self.folder / "m" / "3" / "link")
        self.start(VersionPolicy(latest=None))
        states = {1: "AVAILABLE", 3: "AVAILABLE", 4: "END"}
        self.assertEqual(self.states(), states)
        self.assertIn("4/requests is not a regular file", self.error(4))

    def test_links_are_followed_to_pipes_but_not_forever(self):
        fine = self.folder / "fine" / "deep"
        bad = self.folder / "bad" / "deep"
        for folder in (fine, bad):
            folder.mkdir(parents=True)
        os.mkfifo(bad / "pipe")
        for version, target in enumerate((".", fine, "/", bad.parent), 1):
            path = self.write(version, str(version))
            os.symlink(target, path.parent / "link")
        self.start(VersionPolicy(latest=None))
        ends = ["AVAILABLE", "AVAILABLE", "END", "END"]
        self.assertEqual(self.states(), dict(enumerate(ends, 1)))
        self.assertIn("deep/pipe is not a regular file", self.error(4))
        os.remove(bad / "pipe")
        toy_models.refresh(self.manager)
        self.assertEqual(self.states()[4], "AVAILABLE")

    @parameterized.parameters((13, "locked"), (14, "unexpected"))
    def test_a_bad_version_harms_itself_alone(self, bad, message):
        for model in ("m", "other"):
            self.write(1, "one", model)
        self.manager.start([self.config(), self.config(model="other")], 0)
        self.write(bad, "odd")
        for model in ("m", "other"):
            self.write(12, "twelve", model)
        toy_models.refresh(self.manager)
        self.assertEqual(self.served(), (12, "twelve"))
        self.assertEqual(self.states("other"), {12: "AVAILABLE", 1: "END"})
        self.assertIn(message, self.error(bad))

    def test_a_load_does_not_delay_other_models(self):
        for model in ("m", "other"):
            self.write(1, "one", model)
        configs = [self.config(), self.config(model="other")]
        self.manager.start(configs, 0.01)
        self.addCleanup(self.engine.gate.set)
        for model, text, state in (
            ("m", "slow", "LOADING"),
            ("other", "two", "AVAILABLE"),
        ):
            new = self.write("2.new", text, model).parent
            new.rename(new.with_name("2"))
            toy_models.wait_until(
                lambda: self.states(model).get(2) == state  # noqa: B023
            )
        self.assertEqual(self.states(), {1: "AVAILABLE", 2: "LOADING"})

    def test_starts_with_an_older_version_if_the_newest_is_broken(self):
        self.write(1, "one")
        self.write(2, "broken")
        self.start()
        self.assertEqual(self.served(), (1, "one"))
        self.assertTrue(self.manager.is_ready())

    @parameterized.parameters(
        (VersionPolicy(latest=2), {3, 5}),
        (VersionPolicy(latest=None), {1, 3, 5}),
        (VersionPolicy(None, frozenset({1, 3, 4})), {1, 3}),
    )
    def test_policies_choose_versions_newest_first(self, policy, expected):
        for version in (1, 3, 5):
            self.write(version, str(version))
        self.start(policy)
        self.assertEqual(set(self.states()), expected)
        # Most requests are for the newest version, so it is loaded first.
        loaded = [version for _, version, _ in self.engine.loaded]
        self.assertEqual(loaded, sorted(expected, reverse=True))
        self.assertEqual(self.served()[0], max(expected))

    def test_labels_serve_their_versions(self):
        for version in (1, 2, 3):
            self.write(version, f"v{version}")
        self.start(VersionPolicy(latest=2), {"canary": 3, "stable": 2})
        self.assertEqual(self.served(label="stable"), (2, "v2"))
        self.assertEqual(self.served(label="canary"), (3, "v3"))
        self.assert_not_served("Unrecognized .* label: old", label="old")

    def test_keeps_the_last_version_if_the_folder_disappears(self):
        path = self.write(1, "one")
        self.start()
        path.unlink()
        toy_models.refresh(self.manager)
        self.assertEqual(self.served(), (1, "one"))
        path.parent.rmdir()
        toy_models.refresh(self.manager)
        (self.folder / "m").rmdir()
        with self.assertLogs(level="WARNING"):
            toy_models.refresh(self.manager)
        self.assertEqual(self.served(), (1, "one"))

    def test_waits_for_a_first_version(self):
        (self.folder / "m").mkdir()
        with self.assertLogs(level="WARNING") as logged:
            self.start()
        self.assertRegex(logged.output[0], "/m/1, which .*export.*savedmodel")
        self.assertFalse(self.manager.is_ready())
        self.assert_not_served(r"Latest\(m\)")
        self.write(1, "one")
        toy_models.refresh(self.manager)
        self.assertTrue(self.manager.is_ready())
        self.manager.set_unready()
        self.assertFalse(self.manager.is_ready())

    def test_a_version_that_fails_its_warm_up_is_closed(self):
        loaded = []

        def fail(servable, directory):
            loaded.append(servable)
            raise errors.invalid(f"{directory} is cold")

        self.write(1, "one")
        with (
            mock.patch.object(model_manager.calls, "warm_up", fail),
            self.assertRaisesRegex(UserError, "m/1 is cold"),
        ):
            self.start()
        (servable,) = loaded
        self.assertTrue(servable.is_closed)

    def test_refuses_to_start_without_a_model(self):
        with self.assertRaisesRegex(UserError, "must be a folder of versions"):
            self.start()
        self.write(1, "broken")
        with self.assertRaisesRegex(UserError, "Version 1 .* it is broken"):
            self.start()
        self.write("", "a version itself")
        with self.assertRaisesRegex(UserError, "give the folder that holds it"):
            self.start()

    def test_refuses_labels_of_versions_that_are_not_served(self):
        self.write(1, "one")
        with self.assertRaisesRegex(UserError, "label 'x' .* version 2"):
            self.start(VersionPolicy(), {"x": 2})

    def test_moved_model_is_loaded_again(self):
        self.write(1, "one")
        self.write(1, "moved", model="elsewhere")
        self.start()
        with self.manager.use("m") as old:
            config = ModelConfig("m", f"{self.folder}/elsewhere")
            self.manager.reconfigure([config])
            self.assertEqual(self.served(), (1, "moved"))
        self.assertTrue(old.is_closed)

    def test_reconfiguring_changes_the_models(self):
        self.write(1, "one")
        self.write(4, "four", model="other")
        self.start()
        with self.manager.use("m") as kept:
            self.manager.reconfigure(
                [self.config(), self.config(model="other")]
            )
            self.assertEqual(self.manager.names(), ["m", "other"])
            with self.manager.use("m") as same:
                self.assertIs(kept, same)
            self.manager.reconfigure([self.config(model="other")])
            self.assertFalse(kept.is_closed)
        self.assertTrue(kept.is_closed)
        self.assert_not_served(r"Latest\(m\)")
        with self.assertRaisesRegex(errors.RequestError, "folder of versions"):
            self.manager.reconfigure(
                [self.config(model="other"), self.config(model="nix")]
            )
        with self.manager.use("other") as servable:
            self.assertEqual(servable.text, "four")


class ModelConfigTest(parameterized.TestCase):
    def read(self, text):
        return model_config.read(
            self.create_tempfile("models.config", text).full_path
        )

    def test_model_name_defaults_to_the_folder(self):
        path = "/models/mrpc/"
        for name, expected in ((None, "mrpc"), ("other", "other")):
            flags = ServeConfig(model_base_path=path, model_name=name)
            models = model_config.of_flags(flags)
            self.assertEqual(models, [ModelConfig(expected, path)])

    def test_reads_a_file_of_models(self):
        first, second, third = self.read(
            """
            model_config_list {
              config { name: "a" base_path: "/a" model_platform: "tensorflow" }
              config {
                name: "b" base_path: "/b"
                model_version_policy { specific { versions: 3 versions: 5 } }
                version_labels { key: "stable" value: 3 }
              }
              config {
                name: "c" base_path: "/c"
                model_version_policy { latest { num_versions: 2 } }
              }
            }
            """
        )
        self.assertEqual(first, ModelConfig("a", "/a", VersionPolicy(latest=1)))
        self.assertEqual(second.policy.choose([1, 3, 9]), {3})
        self.assertEqual(second.labels, {"stable": 3})
        self.assertEqual(third.policy.choose([9, 1, 3]), {3, 9})

    @parameterized.parameters(
        ("model_config_list { config { nome: 'a' } }", "no field named"),
        ("\xff\xfe", "must be a text file"),
        ("", "model_config_list is required"),
        ("model_config_list { config { name: 'a' } }", "name and a base_path"),
    )
    def test_other_files_are_refused(self, text, message):
        self.assert_refused(text, message)

    def assert_refused(self, text, message):
        with self.assertRaisesRegex(
            UserError, f"--model_config_file.*{message}"
        ):
            self.read(text)

    @parameterized.parameters(
        ("} config { name: 'a' base_path: 'y'", "'a' stands twice"),
        ("model_platform: 'torch'", "model_platform .*'torch'"),
        ("model_version_policy { specific {} }", "names no version"),
        ("logging_config {}", "logging_config"),
    )
    def test_wrong_models_are_refused(self, more, message):
        self.assert_refused(
            "model_config_list { config { name: 'a' base_path: 'x' "
            f"{more} }} }}",
            message,
        )


class ServeConfigTest(parameterized.TestCase):
    @parameterized.parameters(
        ({}, "either --model_base_path or --model_config_file"),
        ({"model_base_path": "a", "model_config_file": "b"}, "either"),
        ({"model_config_file": "b", "model_name": "c"}, "--model_name needs"),
        ({"port": 8501}, "must differ"),
        ({"port": 65536}, "--port .*below 65536"),
        ({"max_batch_size": 0}, "at least 1"),
        (
            {"batching_parameters_file": "b", "max_batch_size": 2},
            "drop one of the two",
        ),
        (
            {"enable_batching": False, "num_batch_threads": 2},
            "--num_batch_threads needs --enable_batching",
        ),
    )
    def test_refuses_invalid_flags(self, flags, message):
        model = {} if "model" in "".join(flags) else {"model_base_path": "a"}
        with self.assertRaisesRegex(UserError, message):
            ServeConfig(**model if flags else {}, **flags)


if __name__ == "__main__":
    absltest.main()

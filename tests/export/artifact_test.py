"""Tests for export.artifact: versions, model cards and usage instructions."""

import contextlib
import dataclasses
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from unittest import mock

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts
from bert_tf.export import savedmodel
from bert_tf.export.heads.head import ServingHead
from bert_tf.export.verify import reference
from bert_tf.export.verify.reference import Reference
from bert_tf.flags.export import SavedModelConfig
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.serving import batching
from bert_tf.serving import model_config
from tests.support import live_server
from tests.support import tiny_exports

_BUCKETS = (5, 8, tiny_exports.MAX_SEQ_LENGTH)
_NAME = "tiny pairs"


def _artifact(**changes):
    command = "python export/savedmodel.py --model_dir=m"
    return tiny_exports.artifact(
        **{"model_name": _NAME, "command": command} | changes
    )


class VersionDirectoryTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.create_tempdir().full_path, "a", "served")

    def _write(self, version, contents):
        with self._version(version) as temporary:
            with open(os.path.join(temporary, "file"), "w") as file:
                file.write(contents)

    def _version(self, version):
        path = os.path.join(self.path, str(version))
        return files.atomic_directory(path, replace=False)

    def _read(self, version):
        path = os.path.join(self.path, str(version), "file")
        with open(path, encoding="utf-8") as file:
            return file.read()

    def test_the_next_version_follows_the_highest(self):
        self.assertEqual(model_config.choose_version(None, [self.path]), 1)
        self._write(1, "one")
        self._write(9, "nine")
        os.makedirs(os.path.join(self.path, "12.tmp-1-2"))
        os.makedirs(os.path.join(self.path, "name"))
        self.assertEqual(model_config.choose_version(None, [self.path]), 10)
        self.assertEqual(model_config.choose_version(4, [self.path]), 4)
        other = os.path.join(self.path, "other")
        os.makedirs(os.path.join(other, "0011"))
        both = [self.path, other]
        self.assertEqual(model_config.choose_version(None, both), 12)
        for taken in (9, 11):
            with self.assertRaisesRegex(
                UserError, f"--version={taken} exists .* version 12"
            ):
                model_config.choose_version(taken, both)

    def test_a_failed_export_leaves_no_files(self):
        with self.assertRaises(KeyboardInterrupt):
            with self._version(3) as temporary:
                os.makedirs(os.path.join(temporary, "variables"))
                raise KeyboardInterrupt
        self.assertFalse(os.path.exists(self.path))

    def test_leftover_versions_of_processes_that_are_gone_are_removed(self):
        gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
        gone.wait()
        for name in (f"1.tmp-{gone.pid}-0a1b2c3d", "1.tmp-1-0a1b2c3d"):
            os.makedirs(os.path.join(self.path, name, "variables"))
        with locks.one_writer(self.path, "--output_dir"):
            self._write(2, "two")
        self.assertCountEqual(os.listdir(self.path), ["1.tmp-1-0a1b2c3d", "2"])

    def test_keeps_versions_of_other_processes(self):
        with self.assertRaisesRegex(UserError, "meanwhile"):
            with self._version(1):
                self._write(1, "theirs")
        self.assertEqual(self._read(1), "theirs")
        self.assertEqual(os.listdir(self.path), ["1"])


@pytest.mark.slow
class ExtrasTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        task = tiny_exports.classification(pair=True)
        cls.model = tiny_exports.write(cls.folder, task)
        cls.output_dir = os.path.join(cls.folder, _NAME)
        cls.version = tiny_exports.export(cls.model, cls.output_dir)
        export = savedmodel.prepare(
            SavedModelConfig(
                model_dir=cls.model,
                output_dir=cls.output_dir,
                buckets=tiny_exports.BUCKETS,
            )
        )
        cls.stored = export.stored
        # Verification has tests of its own, so skip its calls.
        with mock.patch.object(Reference, "plan", lambda *_: []):
            cls.example = savedmodel.complete(cls.version, _artifact(), export)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            artifacts.publish(cls.version, _artifact(), cls.example)
        cls.printed = printed.getvalue()

    def _read(self, name):
        with open(os.path.join(self.version, name), encoding="utf-8") as file:
            return file.read()

    def test_warm_up_requests_fill_each_bucket(self):
        path = os.path.join(self.version, artifacts.WARMUP_FILE)
        lengths, counts = [], []
        tokenizer = self.stored.build_tokenizer()
        for call in reference.read_requests(path):
            self.assertEqual(call.signature, "serving_default")
            self.assertEqual(set(call.inputs), {"text", "text_pair"})
            tokens = [tokenizer.tokenize(x) for x in call.inputs.values()]
            of_rows = sum(x.row_lengths().numpy() for x in tokens) + 3
            self.assertLen(set(of_rows), 1)
            lengths.append(of_rows[0])
            counts.append(len(of_rows))
        self.assertEqual(lengths, [5, 5, 8, 8, 12, 12])
        self.assertEqual(counts, [1, 4] * 3)

    def test_card_describes_the_export(self):
        card = json.loads(self._read(artifacts.CARD_FILE))
        found = artifacts.read(self.version)
        self.assertEqual(found, _artifact())
        self.assertEqual(card["labels"], list(tiny_exports.LABELS))
        self.assertEqual(card["model"]["config"]["hidden_size"], 16)
        self.assertEqual(card["model"]["task"]["kind"], "classification")
        self.assertEqual(card["tensorflow_serving"], "2.12 and later")
        self.assertIn("FastWordpieceTokenizeWithOffsets", card["operators"])
        self.assertEqual(
            card["signatures"]["serving_default"]["inputs"],
            {"text": "<string>[None]", "text_pair": "<string>[None]"},
        )
        timed = card["latency"]["p50_ms"]
        self.assertEqual([row["length"] for row in timed], list(_BUCKETS))
        self.assertGreater(min(row["milliseconds"] for row in timed), 0)

    def test_card_has_checksums_of_all_other_files(self):
        card = json.loads(self._read(artifacts.CARD_FILE))
        names = set()
        for folder, _, found in os.walk(self.version):
            for name in found:
                path = os.path.join(folder, name)
                names.add(os.path.relpath(path, self.version))
        names -= {artifacts.CARD_FILE, artifacts.MARKDOWN_FILE}
        self.assertEqual(set(card["sha256"]), names)
        self.assertContainsSubset(
            {"saved_model.pb", "batching_params.pbtxt"}, names
        )
        for name, digest in card["sha256"].items():
            path = os.path.join(self.version, name)
            self.assertEqual(files.sha256(path), digest)
            self.assertEqual(os.path.getsize(path), card["bytes"][name])

    def test_batching_files_parse_as_server_configuration(self):
        for path in (
            os.path.join(self.version, "batching_params.pbtxt"),
            os.path.join(self.output_dir, artifacts.BATCHING_FILE),
        ):
            options = batching.read_options(path)
            self.assertEqual(options.max_batch_size, 64)
            self.assertEqual(options.batch_timeout_micros, 0)
            self.assertNotIn(b"\npad_variable", files.read_bytes(path))

    def test_configuration_has_name_and_path_of_the_model(self):
        config = text_format.Parse(
            files.read_bytes(os.path.join(self.output_dir, "models.config")),
            model_server_config_pb2.ModelServerConfig(),
        )
        (model,) = config.model_config_list.config
        self.assertEqual(model.name, _NAME)
        self.assertEqual(model.base_path, f"/models/{_NAME}")
        self.assertEqual(model.model_platform, "tensorflow")
        self.assertEqual(model.model_version_policy.latest.num_versions, 1)

    def test_keeps_files_that_a_user_edited(self):
        path = os.path.join(self.output_dir, artifacts.CONFIG_FILE)
        written = files.read_bytes(path)

        def publish():
            with contextlib.redirect_stdout(io.StringIO()):
                artifacts.publish(self.version, _artifact(), self.example)

        with self.assertNoLogs(level="WARNING"):
            publish()
        edited = written.replace(b"latest", b"specific")
        self.addCleanup(files.write_bytes, path, written)
        files.write_bytes(path, edited)
        with self.assertLogs(level="WARNING") as logs:
            publish()
        self.assertIn("models.config was edited", logs.output[0])
        self.assertEqual(files.read_bytes(path), edited)

    def test_prints_valid_shell_commands(self):
        (docker,) = re.findall(r"(?m)^ +(docker run .*)$", self.printed)
        words = shlex.split(docker)
        mount = words[words.index("-v") + 1]
        self.assertEqual(mount, f"{self.output_dir}:/models/{_NAME}:ro")
        for name in (artifacts.CONFIG_FILE, artifacts.BATCHING_FILE):
            self.assertTrue(any(w.endswith(f"/{name}") for w in words))
            self.assertTrue(os.path.exists(os.path.join(self.output_dir, name)))
        (curl,) = re.findall(r"(?m)^ +(curl .*)$", self.printed)
        words = shlex.split(curl)
        body = json.loads(words[words.index("-d") + 1])
        (row,) = body["instances"]
        self.assertEqual(set(row), {"text", "text_pair"})
        self.assertEndsWith(words[-1], "/v1/models/tiny%20pairs:predict")
        (serve,) = re.findall(r"(?m)^ +(python run/serve.*)$", self.printed)
        base_path = f"--model_base_path={self.output_dir}"
        self.assertIn(base_path, shlex.split(serve))

    def test_printed_commands_run(self):
        words = shlex.split(artifacts.curl_line(_artifact(), self.example))
        program = artifacts.python_snippet(_artifact(), self.example)
        names = {}
        with live_server.serve(self.folder, {_NAME: self.output_dir}) as (
            grpc,
            rest,
        ):
            url = words[-1].replace(f"localhost:{artifacts.REST_PORT}", rest)
            body = words[words.index("-d") + 1].encode()
            with urllib.request.urlopen(url, body, 60) as reply:
                (row,) = json.load(reply)["predictions"]
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(
                    program.replace(f"localhost:{artifacts.GRPC_PORT}", grpc),
                    names,
                )
        self.assertIn("probabilities [[", printed.getvalue())
        (label,) = tf.make_ndarray(names["reply"].outputs["label"])
        self.assertEqual(label.decode(), row["label"])
        (probabilities,) = tf.make_ndarray(
            names["reply"].outputs["probabilities"]
        )
        self.assertAllClose(probabilities, row["probabilities"], atol=1e-6)


class PartsTest(tf.test.TestCase):
    def test_artifact_round_trips_through_json(self):
        made = _artifact(settings={"layer": -2, "pooling": "cls"})
        values = json.loads(json.dumps(dataclasses.asdict(made)))
        self.assertEqual(artifacts.Artifact.from_json(values, "card"), made)
        del values["head"]
        with self.assertRaisesRegex(UserError, "card must hold under"):
            artifacts.Artifact.from_json(values, "card")

    def test_serve_command_has_the_name_and_the_engine(self):
        for artifact, output_dir, flag, count in (
            (_artifact(), f"served/{_NAME}", f"--model_name={_NAME}", 0),
            (_artifact(), "served/pairs", f"--model_name={_NAME}", 1),
            (_artifact(), "served/pairs", "--engine=litert", 0),
            (_artifact(litert="none"), "served/pairs", "--engine=litert", 1),
        ):
            line = artifacts.embedded_line(output_dir, artifact)
            self.assertEqual(shlex.split(line).count(flag), count)

    def test_reads_tables_of_a_card(self):
        readme = (
            "# Title\n\ntext | with | bars\n\n## Metrics\n\n| | |\n|---|---|\n"
            "| dev f1 | 0.5 |\n| a | b \\| c |\n\n## Versions\n\n| | |\n"
            "|---|---|\n| python | 3 |\n"
        )
        found = artifacts.read_sections(readme)
        self.assertEqual(found, {"Metrics": {"dev f1": "0.5", "a": "b | c"}})


class _Head(ServingHead):
    """A head with a task."""

    def __init__(self, labels):
        self.task = mock.Mock(labels=labels)


class LabelsTest(tf.test.TestCase):
    def test_labels_are_those_of_the_task(self):
        self.assertEqual(_Head(["a", "b"]).labels, ("a", "b"))
        self.assertEqual(_Head(None).labels, ())

    def test_labels_with_line_breaks_are_rejected(self):
        with self.assertRaisesRegex(UserError, "line breaks.*two"):
            _ = _Head(("fine", "two\nlines")).labels


if __name__ == "__main__":
    tf.test.main()

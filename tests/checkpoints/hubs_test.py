"""Tests for bert_tf.checkpoints.hubs, with the hubs' libraries and stand-ins.

The libraries read environment variables at import, so each test class fetches
in a process of its own.
"""

import dataclasses
import itertools
import json
import os
import tempfile
from unittest import mock

import huggingface_hub
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import hubs
from bert_tf.checkpoints import names
from bert_tf.errors import UserError
from bert_tf.io import download
from tests.support import hub_program
from tests.support import model_server
from tests.support import stored_models

_COMMIT = model_server.COMMIT
_FILES = {
    "config.json": b"{}",
    "vocab.txt": b"[PAD]\n",
    "model.safetensors": bytes(i % 251 for i in range(3000)),
    "pytorch_model.bin": b"pickle" * 100,
    "tf_model.h5": b"other",
    "README.md": b"# Model\n",
}
_FETCHED = ["config.json", "model.safetensors", "vocab.txt"]
_PRESET = {
    "config.json": b"{}",
    "assets/tokenizer/vocabulary.txt": b"[PAD]\n",
    "model.weights.h5": bytes(i % 251 for i in range(5000)),
}


class _HubsCase(tf.test.TestCase):
    server_class = model_server.ModelServer

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = cls.enterClassContext(cls.server_class())
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.fetcher = hub_program.Fetcher(
            HF_ENDPOINT=cls.server.url,
            HF_HOME=f"{cls.folder}/hf",
            KAGGLEHUB_CACHE=f"{cls.folder}/kaggle",
            KAGGLE_API_ENVIRONMENT="TEST",
            KAGGLE_CONFIG_DIR=cls.folder,
        )
        cls.addClassCleanup(cls.fetcher.close)

    def setUp(self):
        super().setUp()
        self.server.requests.clear()

    def _fetch(self, name, offline=False):
        """Returns the path of a model and the log."""
        path, error, log = self.fetcher(name, offline)
        self.assertIsNone(error)
        return path, log

    def _refused(self, name, message, offline=False):
        _, error, _ = self.fetcher(name, offline)
        self.assertRegex(error or "", message)

    def _assert_offline(self, path, *names):
        """Asserts that a cached model needs no network."""
        self.server.requests.clear()
        for name in names:
            self.assertEqual(self._fetch(name, offline=True)[0], path)
        self.assertEmpty(self.server.requests)

    def _assert_holds(self, path, name, files):
        with open(f"{path}/{name}", "rb") as file:
            self.assertEqual(file.read(), files[name])


class LimitsTest(tf.test.TestCase):
    """Limits of size, time and address for the library's HTTP client."""

    def setUp(self):
        super().setUp()
        self.server = self.enter_context(model_server.ModelServer())
        self.enter_context(hubs._limited_answers())
        self._set_endpoint(self.server.url)

    def _set_endpoint(self, url):
        self.enter_context(mock.patch.object(hubs.constants, "ENDPOINT", url))

    def _refused(self, error, message):
        page = self.server.add("/a", b"")
        head = b"HTTP/1.1 200 OK\r\n\r\n"
        page.raw = lambda: itertools.chain([head], itertools.repeat(b"x"))
        with self.assertRaisesRegex(error, message):
            huggingface_hub.get_session().get(f"{self.server.url}/a")

    def test_endless_answer_stops_at_max_bytes(self):
        with mock.patch.object(download, "MAX_BYTES", 100_000):
            self._refused(UserError, "larger than 100000 bytes")

    def test_slow_answer_is_given_up(self):
        clock = mock.Mock(**{"monotonic.side_effect": itertools.count(0, 20)})
        with mock.patch.object(download, "time", clock):
            self._refused(TimeoutError, "less than 65536 bytes in 60 seconds")

    def test_refuses_a_redirection_to_a_private_network(self):
        public = "8.8.8.8"
        self._set_endpoint(f"https://{public}")
        self._refused(UserError, "private network")


class PushTest(tf.test.TestCase, parameterized.TestCase):
    """Uploads to a stand-in for the hub."""

    name = "hf://me/films"

    def setUp(self):
        super().setUp()
        self.server = self.enter_context(model_server.ModelServer())
        self.stored = self.server.take_uploads("me/films")
        self.folder = self.create_tempdir().full_path
        self.model = stored_models.build("classification")
        changes = {"ENDPOINT": self.server.url, "HF_HUB_DISABLE_XET": True}
        for name, value in changes.items():
            self.enter_context(mock.patch.object(hubs.constants, name, value))
        self.enter_context(mock.patch.dict(os.environ, HF_TOKEN="hf_secret"))

    def _write(self, target="bert_tf"):
        """Writes the model in a format; returns its folder."""
        path = os.path.join(self.folder, target)
        os.mkdir(path)
        formats.module_of(target).write_model(path, self.model)
        return path

    def _refused(self, message, path=None, name=None, **arguments):
        with self.assertRaisesRegex(UserError, message):
            hubs.push_model(
                name or self.name, path or self._write(), **arguments
            )

    def test_pushes_a_whole_model_directory(self):
        path = self._write()
        with open(f"{path}/notes.txt", "w") as file:
            file.write("not a part of the model")
        address = hubs.push_model(self.name, path)
        self.assertEqual(address, f"{self.server.url}/me/films")
        copy = self.create_tempdir().full_path
        for name, contents in self.stored.items():
            with open(os.path.join(copy, name), "wb") as file:
                file.write(contents)
        self.assertEqual(formats.read(copy).fingerprint, self.model.fingerprint)
        names = {*os.listdir(path)} - {"notes.txt"}
        self.assertCountEqual(self.stored, names)
        self.assertStartsWith(
            self.stored["README.md"].decode(), '---\nlicense: "unknown"\n'
        )

    def test_a_base_model_has_its_license(self):
        info = {"id": "ada/base", "cardData": {"license": "mit"}}
        self.server.add_json("/api/models/ada/base", info)
        self.model = dataclasses.replace(
            self.model, revision=f"hf://ada/base@{_COMMIT}"
        )
        hubs.push_model(self.name, self._write())
        self.assertStartsWith(
            self.stored["README.md"].decode(),
            '---\nlicense: "mit"\nbase_model: "ada/base"\n',
        )

    def test_the_hugging_face_form_replaces_a_model_directory(self):
        hubs.push_model(self.name, self._write())
        path = self._write("huggingface")
        self._refused("exists already; choose another name, or", path)
        hubs.push_model(self.name, path, overwrite=True)
        self.assertCountEqual(self.stored, [*os.listdir(path), "README.md"])
        card = self.stored["README.md"].decode()
        self.assertIn('library_name: "transformers"\n', card)

    @parameterized.parameters(
        "me/films", "kaggle://me/films/keras/a", "hf://films", "hf://a/b@main"
    )
    def test_malformed_repository_names_are_refused(self, name):
        self._refused("hf://owner/name.*Received", name=name)

    def test_missing_token_is_refused_before_requests(self):
        with mock.patch.object(huggingface_hub, "get_token", return_value=None):
            self._refused("needs a token; set HF_TOKEN")
        self.assertEmpty(self.server.requests)

    @parameterized.parameters(
        (401, "refuses access.*set HF_TOKEN"),
        (403, "refuses access.*set HF_TOKEN"),
    )
    def test_refuses_a_token_that_may_not_write(self, status, message):
        self.server.pages["/api/repos/create"] = model_server.Page(
            b"{}", status
        )
        self._refused(message)
        self.assertEmpty(self.stored)

    def test_other_files_are_refused_before_requests(self):
        folder = self.create_tempdir()
        for path in (folder.full_path, "bert-base-uncased"):
            self._refused("--model_dir must be a local folder", path)
        folder.create_file("config.json", content="{}")
        folder.create_file("model.weights.h5", content="")
        self._refused("--to=huggingface", folder.full_path)
        self.assertEmpty(self.server.requests)


class HuggingFaceTest(_HubsCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.repository = f"some/{self._testMethodName}"
        self.name = f"hf://{self.repository}"
        self.server.add_repository(self.repository, _FILES)
        self.url = f"/{self.repository}/resolve/{_COMMIT}/model.safetensors"
        self.weights = self.server.pages[self.url]

    def _set_pages(self, api, **values):
        """Changes the pages of the repository."""
        for url, page in self.server.pages.items():
            if url.startswith(f"/{api}{self.repository}"):
                vars(page).update(values)

    @pytest.mark.slow
    def test_fetched_model_is_read_offline(self):
        path, log = self._fetch(self.name)
        self.assertCountEqual(os.listdir(path), _FETCHED)
        self.assertRegex(
            log, rf"at {_COMMIT} \(3 files, 3\.01 kB\) from {self.server.url}"
        )
        self.assertEqual(names.origin(path), f"{self.name}@{_COMMIT}")
        self.server.requests.clear()
        again, log = self._fetch(self.name)
        self.assertEqual(again, path)
        self.assertNotIn("Fetching", log)
        self.assertNotIn("HEAD", [x[0] for x in self.server.requests])
        self._assert_offline(path, self.name, f"{self.name}@{_COMMIT}")
        os.remove(os.path.join(path, "vocab.txt"))
        self._refused(self.name, "or not all of it", offline=True)

    def test_a_moved_branch_is_fetched_again(self):
        old, _ = self._fetch(self.name)
        commit = _COMMIT[::-1]
        files = _FILES | {"vocab.txt": b"[PAD]\n[UNK]\n"}
        self.server.add_repository(self.repository, files, commit)
        new, _ = self._fetch(self.name)
        self.assertEqual(names.origin(new), f"{self.name}@{commit}")
        self._assert_offline(new, self.name)
        self._assert_offline(old, f"{self.name}@{_COMMIT}")
        # A commit cannot move, so no request is sent.
        self.assertEqual(self._fetch(f"{self.name}@{_COMMIT}")[0], old)
        self.assertEmpty(self.server.requests)

    def test_a_hub_that_breaks_off_leaves_the_known_commit(self):
        path, _ = self._fetch(self.name)
        self._set_pages("api/models/", stops=[0] * 9)
        again, log = self._fetch(self.name)
        self.assertEqual(again, path)
        self.assertRegex(log, f"cannot be fetched .* {path} is used")

    def test_a_cache_that_lacks_a_shard_is_not_whole(self):
        index = b'{"weight_map": {"a": "m-1.safetensors", '
        files = {
            "config.json": b"{}",
            "m-1.safetensors": b"one",
            "m-2.safetensors": b"two",
            "model.safetensors.index.json": index + b'"b": "m-2.safetensors"}}',
        }
        self.server.add_repository(self.repository, files)
        path, _ = self._fetch(self.name)
        self._assert_offline(path, self.name)
        os.remove(os.path.join(path, "m-2.safetensors"))
        self._refused(self.name, "or not all of it", offline=True)

    def test_reports_an_error_of_the_hub(self):
        path, _ = self._fetch(self.name)
        self._set_pages("api/models/", status=418)
        self._refused(self.name, "answered with status 418")
        self._assert_offline(path, self.name)

    def test_gated_model_is_refused_with_advice(self):
        headers = {"X-Error-Code": "GatedRepo"}
        self._set_pages("", status=401, headers=headers)
        self._refused(self.name, "refuses access .*accept its terms.*HF_TOKEN")
        self._refused(self.name, "not in the cache", offline=True)

    def test_absent_model_or_revision_is_refused(self):
        self._refused("hf://some/absent", "no such model .*status 404")
        self._refused("hf://some/absent", "not in the cache", offline=True)
        headers = {"X-Error-Code": "RevisionNotFound"}
        self.server.pages[f"/api/models/{self.repository}/revision/v2"] = (
            model_server.Page(status=404, headers=headers)
        )
        self._refused(f"{self.name}@v2", "no such model or revision")

    def test_pickles_are_not_fetched_without_pytorch(self):
        files = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
        self.server.add_repository("some/pickle", files)
        self._refused("hf://some/pickle", "pip install torch")
        self.assertEmpty([x for x in self.server.requests if ".bin" in x[1]])

    def test_resumes_an_interrupted_file(self):
        self.weights.stops = [1000]
        path, _ = self._fetch(self.name)
        self.assertCountEqual(os.listdir(path), _FETCHED)
        self._assert_holds(path, "model.safetensors", _FILES)
        self.assertLen(self.server.gets(self.url), 2)

    @parameterized.parameters(
        ({"sha": None}, "TypeError"),
        ({"sha": "../../elsewhere"}, "the commit '../../elsewhere'"),
        ({"siblings": [5]}, "TypeError"),
        (
            {"siblings": [{"rfilename": "model.safetensors", "size": "x"}]},
            "Typ",
        ),
        (None, "JSONDecodeError"),
    )
    def test_refuses_answers_of_another_form(self, changes, message):
        page = self.server.pages[f"/api/models/{self.repository}/revision/main"]
        values = changes and json.loads(page.contents) | changes
        page.contents = json.dumps(values).encode() if values else b"<html>"
        self._refused(self.name, f"cannot be fetched .*{message}")

    def test_refuses_a_file_that_is_too_large(self):
        page = self.server.pages[f"/api/models/{self.repository}/revision/main"]
        values = json.loads(page.contents)
        values["siblings"] = [{"rfilename": "tf_model.h5", "size": 1 << 36}]
        page.contents = json.dumps(values).encode()
        self._refused(self.name, f"{self.name} is larger than 34359738368 byt")

    @parameterized.parameters("ETag", "X-Linked-Etag", "X-Repo-Commit")
    def test_refuses_names_that_lead_elsewhere(self, key):
        self.weights.headers[key] = '"../../../../elsewhere"'
        self._refused(self.name, f"the {key.lower()} .*no name of a version")
        for _, _, files in os.walk(self.folder):
            self.assertEmpty([x for x in files if "elsewhere" in x])

    def test_wrong_hash_is_refused_and_not_cached(self):
        etag = self.weights.headers["ETag"]
        self.weights.contents = self.weights.contents[::-1]
        self._refused(self.name, f"SHA-256 {etag[1:-1]}. Received")
        self._refused(self.name, "or not all of it", offline=True)


class KaggleTest(_HubsCase, parameterized.TestCase):
    server_class = model_server.kaggle
    name = "kaggle://keras/bert/keras"

    def setUp(self):
        super().setUp()
        self.server.add_kaggle(_PRESET)

    @pytest.mark.slow
    def test_fetched_model_is_read_offline(self):
        path, log = self._fetch(f"{self.name}/a")
        self.assertRegex(log, f"Fetched {self.name}/a from .* to {path}")
        self._assert_holds(path, "model.weights.h5", _PRESET)
        self.assertEqual(names.origin(path), f"{self.name}/a/3")
        self._assert_offline(path, f"{self.name}/a", f"{self.name}/a/3")
        self._refused(f"{self.name}/a/4", "not in the cache", offline=True)

    @parameterized.parameters("keras", "tensorFlow2")
    def test_the_newest_version_counts(self, framework):
        name = f"kaggle://keras/bert/{framework}/d"
        self._fetch(name)
        self.server.add_kaggle(_PRESET | {"config.json": b"[]"}, version=12)
        path, _ = self._fetch(name)
        self.assertEqual(names.origin(path), f"{name}/12")
        self._assert_offline(path, name)

    def test_forbidden_and_absent_models_are_explained(self):
        service = "/api/v1/models.ModelApiService/GetModelInstance"
        self.server.pages[service].status = 403
        self._refused(f"{self.name}/b", "status 403.*KAGGLE_API_TOKEN")
        del self.server.pages[service]
        self._refused(f"{self.name}/b", "no such model or revision .status 404")

    def test_interrupted_model_is_not_cached(self):
        """Keeps a partly fetched model out of the cache."""
        self.server.pages["/store/model.weights.h5"].stops = [2000]
        self._refused(f"{self.name}/c", "IncompleteRead.*same command again")
        self._refused(f"{self.name}/c", "not in the cache", offline=True)
        path, _ = self._fetch(f"{self.name}/c")
        self._assert_holds(path, "model.weights.h5", _PRESET)


class NeededFilesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (list(_FILES), _FETCHED),
        (
            ["model.safetensors.index.json", "model-1.safetensors", "x.bin"],
            ["model-1.safetensors", "model.safetensors.index.json"],
        ),
        (
            ["pytorch_model.bin", "config.json", "training_args.bin", "x.py"],
            ["config.json", "pytorch_model.bin"],
        ),
        (
            ["pytorch_model.bin", "config.json", "tf_model.h5"],
            ["config.json", "tf_model.h5"],
        ),
        (
            ["tf_model.h5.index.json", "tf_model-00001-of-00002.h5", "x.h5"],
            ["tf_model-00001-of-00002.h5", "tf_model.h5.index.json"],
        ),
        (
            ["model.weights.safetensors", "task.json", "plot.png"],
            ["model.weights.safetensors", "task.json"],
        ),
        (
            [*_PRESET, "task.weights.h5", "README.md"],
            sorted([*_PRESET, "task.weights.h5"]),
        ),
        (["onnx/model.safetensors", "config.json"], []),
        (
            ["1_Pooling/config.json", "2_Dense/model.safetensors"]
            + ["model.safetensors", "modules.json"],
            ["1_Pooling/config.json", "model.safetensors", "modules.json"],
        ),
    )
    def test_needed_files_hold_one_format(self, present, expected):
        self.assertEqual(hubs.needed_files(present), expected)


if __name__ == "__main__":
    tf.test.main()

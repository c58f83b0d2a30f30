"""Tests for models by name: the table, archives and the cache."""

import contextlib
import dataclasses
import io
import os
import pathlib
import tarfile
import threading
import zipfile
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.checkpoints import formats
from bert_tf.checkpoints import names
from bert_tf.errors import UserError
from bert_tf.io import download
from bert_tf.recipes import releases
from tests.support import files_case
from tests.support import made_once
from tests.support import model_server
from tests.support import stored_models

_FILE = "/2018_10_18/uncased_L-12_H-768_A-12.zip"


def _make(folder):
    stored = stored_models.build(num_hidden_layers=1)
    formats.module_of("tf1").write_model(folder, stored)


def _files(folder):
    return {x.name: x.read_bytes() for x in pathlib.Path(folder).iterdir()}


def _zip(files, folder="uncased_L-12_H-768_A-12/"):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, contents in files.items():
            file.writestr(folder + name, contents)
        file.writestr("__MACOSX/x", b"")
    return stream.getvalue()


def _tar(files):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as file:
        for name, contents in files.items():
            info = tarfile.TarInfo(f"./m/{name}")
            info.size = len(contents)
            file.addfile(info, io.BytesIO(contents))
    return stream.getvalue()


class NamesTest(files_case.FolderCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = made_once.folder("released_model", _make)
        cls.files = _files(cls.model)

    def setUp(self):
        super().setUp()
        self.cache = self.path("cache")
        self.server = self.enter_context(model_server.ModelServer())
        self.enter_context(contextlib.chdir(self.folder))
        variables = {
            "BERT_TF_CACHE": self.cache,
            "BERT_TF_RELEASES_URL": f"{self.server.url}/",
        }
        self.enter_context(mock.patch.dict(os.environ, variables))
        self.enter_context(mock.patch.object(download, "_PAUSE_SECONDS", 0))

    def _models(self):
        """Returns the names of the models in the cache."""
        if not os.path.isdir(self.cache):
            return []
        names = sorted(os.listdir(self.cache))
        return [name for name in names if not name.endswith(".lock")]

    def _refused(self, name, message, **kwargs):
        with self.assertRaisesRegex(UserError, message):
            names.resolve(name, **kwargs)
        self.assertEqual(self._models(), [])

    def test_short_name_is_fetched_once(self):
        self.server.add(_FILE, _zip(self.files))
        with self.assertLogs(level="INFO") as logs:
            path = names.resolve("bert-base-uncased")
        self.assertRegex(logs.output[0], r"base-uncased \([\d.]+ kB\) .*zip to")
        self.assertEqual(os.path.dirname(path), self.cache)
        self.assertCountEqual(os.listdir(path), [*self.files, "origin.json"])
        # Without pages a download fails, so the cache alone must suffice.
        self.server.pages.clear()
        self.assertEqual(names.resolve("bert-base-uncased"), path)
        stored = formats.read("bert-base-uncased")
        self.assertRegex(
            stored.source,
            r"^bert-base-uncased \(http.*\.zip, ETag .*, SHA-256 \w{64}\)$",
        )
        tokenizer = bert_tf.load_tokenizer("bert-base-uncased", offline=True)
        self.assertEqual(tokenizer.vocabulary.tokens, stored.vocabulary.tokens)
        self.assertLen(self.server.requests, 1)

    def test_cache_dir_of_the_arguments_is_used(self):
        self.server.add(_FILE, _zip(self.files))
        other = self.path("other")
        bert_tf.load_tokenizer("bert-base-uncased", cache_dir=other)
        self.assertEqual(self._models(), [])
        self._refused("bert-base-uncased", "not in the cache", offline=True)
        self.assertLen(self.server.requests, 1)

    def test_offline_refuses_what_is_not_cached(self):
        self.server.add(_FILE, _zip(self.files))
        url = f"{self.server.url}{_FILE}"
        with mock.patch.dict(os.environ, {"BERT_TF_OFFLINE": "1"}):
            for name in ("bert-base-uncased", "bert-tiny", url):
                self._refused(name, "not in the cache .*--offline")
        self.assertEmpty(self.server.requests)

    @parameterized.parameters("0", "", "false")
    def test_a_variable_that_is_off_does_not_forbid_to_fetch(self, value):
        self.server.add(_FILE, _zip(self.files))
        with mock.patch.dict(os.environ, {"BERT_TF_OFFLINE": value}):
            path = names.resolve("bert-base-uncased")
        self.assertEqual(os.path.dirname(path), self.cache)

    def test_the_default_cache_is_in_that_of_the_user(self):
        home = {"HOME": self.folder, "XDG_CACHE_HOME": ""}
        self.server.add(_FILE, _zip(self.files))
        for variables, folder in (
            (home, f"{self.folder}/.cache/bert_tf"),
            (home | {"XDG_CACHE_HOME": self.cache}, f"{self.cache}/bert_tf"),
        ):
            with mock.patch.dict(os.environ, variables):
                del os.environ["BERT_TF_CACHE"]
                path = names.resolve("bert-base-uncased")
            self.assertEqual(os.path.dirname(path), folder)

    def test_an_existing_path_wins(self):
        names._log_path.cache_clear()
        os.mkdir("bert-base-uncased")
        with self.assertLogs(level="INFO") as logs:
            for _ in range(2):
                path = names.resolve("bert-base-uncased")
                self.assertEqual(path, "bert-base-uncased")
        self.assertLen(logs.output, 1)
        self.assertIn("is a path here", logs.output[0])
        with open("bert-base-cased.index", "w"):  # Part of a checkpoint.
            self.assertEqual(
                names.resolve("bert-base-cased"), "bert-base-cased"
            )
        self.assertEmpty(self.server.requests)

    @parameterized.parameters(
        ("hf/bert-tiny", "^No such directory: .*give hf://hf/bert-tiny.$"),
        ("bert-base-uncase", "; did you mean bert-base-uncased.*\\? "),
        ("BERT-base-cased", "; did you mean bert-base-cased\\? "),
        ("uncased_L-24_H-1024_A-16", "; did you mean bert-large-uncased"),
        ("resnet", "hf://.*`python run/models.py` lists the names"),
        ("http://example.com/x.zip", "Expected an https://"),
        ("ftp://a.org/x.zip", "kaggle://, https://, gs://. Rec.*'ftp://a.org"),
        ("https://example.com/model", "which ends with .zip, .tar.gz"),
        ("https://example.com/x.zip#md5=1", "#sha256= and 64"),
        ("hf://bert", "Expected hf://owner/name"),
        ("hf://a/b@c d", "Expected hf://owner/name"),
        ("kaggle://a/b/pytorch/c", "Expected kaggle://owner/model/keras"),
    )
    def test_malformed_or_unknown_names_are_refused(self, name, message):
        self._refused(name, message)

    @parameterized.parameters(
        "./hf/tiny", "/no/such", "a/b/c", "model.ckpt", "gs://a/b", "out/"
    )
    def test_paths_are_left_alone(self, path):
        self.assertEqual(names.resolve(path), path)

    def test_absent_release_is_refused(self):
        self._refused("bert-base-uncased", "no such file .status 404")

    def test_damaged_or_other_archives_are_refused(self):
        for contents, message in (
            (_zip(self.files)[:-100], "not a whole archive"),
            (
                _zip({"vocab.txt": b"[PAD]"}),
                "is not bert-base-.*it lacks bert_",
            ),
            (_zip({"../../x": b""}), "outside its folder"),
        ):
            self.server.add(_FILE, contents)
            self._refused("bert-base-uncased", message)

    def test_released_hashes_are_checked(self):
        release = releases.find("bert-base-uncased")
        self.server.add(_FILE, _zip(self.files))
        base = f"{self.server.url}"
        with mock.patch.object(releases, "official_base", lambda: base):
            self._refused("bert-base-uncased", "not the released one: expected")
        wrong = dataclasses.replace(release, sha256="0" * 64)
        with mock.patch.object(releases, "find", lambda name: wrong):
            self._refused("bert-base-uncased", "the SHA256 0000")
        # The user's base may hold other models, so a wrong hash only warns.
        with self.assertLogs(level="WARNING") as logs:
            names.resolve("bert-base-uncased")
        self.assertIn("not the released one", logs.output[0])

    @parameterized.parameters(("m.zip", _zip), ("m.tar.gz", _tar))
    def test_archive_at_an_address_is_read(self, name, pack):
        contents = pack(self.files)
        self.server.add(f"/{name}", contents)
        url = f"{self.server.url}/{name}"
        self._refused(f"{url}#sha256={'0' * 64}", "the SHA256 0000")
        digest = download.hashlib.sha256(contents).hexdigest()
        stored = formats.read(f"{url}#sha256={digest}")
        self.assertEqual(stored.config.num_hidden_layers, 1)
        self.assertStartsWith(stored.source, f"m ({url}, ETag ")

    def test_refuses_an_archive_without_a_model(self):
        self.server.add("/m.zip", _zip({"a.txt": b"one"}))
        self._refused(f"{self.server.url}/m.zip", "no model: .*: a.txt")

    def test_threads_download_a_model_once(self):
        """Downloads in one of three threads; two wait and find the model."""
        self.server.add(_FILE, _zip(self.files))
        paths = []

        def resolve():
            paths.append(names.resolve("bert-base-uncased"))

        threads = [threading.Thread(target=resolve) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertLen(paths, 3)
        self.assertLen(set(paths), 1)
        self.assertLen(self.server.gets(_FILE), 1)


if __name__ == "__main__":
    tf.test.main()

"""Tests for bert_tf.io.paths."""

import contextlib
import dataclasses
import os

import tensorflow as tf
from absl.testing import parameterized

from bert_tf import config as options
from bert_tf.errors import UserError
from bert_tf.io import paths


@dataclasses.dataclass(frozen=True)
class _Flags:
    data: str | None = options.option(None, name="input", reads="file")
    records: str | None = options.option(None, reads="files")
    folder: str | None = options.option(None, reads="folder")
    model: str | None = options.option(None, reads="model")
    output_dir: str | None = options.option(None)
    output_file: str | None = options.option(None)

    def input_hints(self):
        return {"records": "make them."}


@dataclasses.dataclass(frozen=True)
class _FlagsWithUnread(_Flags):
    def unread_inputs(self):
        return frozenset({"data"})


class PathsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(contextlib.chdir(self.create_tempdir().full_path))
        for folder in ("empty", "texts", "model/sub", "prefix", "run/model"):
            os.makedirs(folder)
        for name in (
            "a.csv",
            ".hidden.csv",
            "texts/a.txt",
            "model/config.json",
            "prefix/model.ckpt-3.index",
        ):
            open(name, "w").close()

    @parameterized.parameters(
        {"data": "a.csv", "records": "a.*, *.csv", "folder": "empty"},
        {"records": ".hid*"},
        {"model": "model"},
        {"model": "run"},
        {"model": "prefix"},
        {"model": "prefix/model.ckpt-3"},
        {"data": "gs://a/b", "records": "gs://a/*,[", "model": "hf://a/b"},
        {"model": "kaggle://a/b/keras/c/3"},
        {"model": "kaggle://a/b/tensorFlow2/c"},
        {"model": "http://localhost:9/m.zip"},
        {"output_dir": "nowhere/x"},
        {"output_dir": "empty"},
        {"output_dir": "gs://a/b"},
        {"output_file": "a.csv"},
    )
    def test_accepts_what_exists(self, **flags):
        paths.check_inputs(_Flags(**flags))

    @parameterized.parameters(
        ({"data": "b.csv"}, "--input: no such file: 'b.csv'.*directory is /"),
        ({"data": "empty"}, "--input: no such file: 'empty'. It is a dir"),
        (
            {"records": "a.*,b*"},
            r"--records matches no file. Received: 'b\*' .*\); make them.",
        ),
        ({"records": "mod*"}, "--records matches no file"),
        ({"records": ","}, "--records matches no file. Received: ''"),
        ({"folder": "a.csv"}, "--folder: no such directory: 'a.csv'"),
        (
            {"model": "nowhere"},
            "--model: expected a path, .*name.*'nowhere', where there is not",
        ),
        ({"model": "empty"}, "--model: .*'empty', a directory that holds noth"),
        ({"model": "texts"}, "--model: .*a directory that holds a.txt"),
        ({"model": "a.csv"}, "--model: .*'a.csv', a file that is no checkp"),
        ({"model": "hf://bert"}, "Expected hf://owner/name, .*'hf://bert'"),
        ({"model": "kaggle://a/b/c"}, "Expected kaggle://owner/model/keras/v"),
        ({"model": "ftp://a.b/m"}, "--model: exp.*hf://, kag.*: 'ftp://a.b/m'"),
        ({"model": "http://a.b/m.zip"}, "Expected an https:// address"),
        ({"model": "https://a.b/m"}, "ends with .zip, .tar.gz, .tgz. Rec"),
        ({"output_dir": "a.csv"}, "_dir=a.csv cannot be .*not a dir"),
        ({"output_dir": "a.csv/x"}, "=a.csv/x cannot .*/a.csv is not a dir"),
        ({"output_file": "a.csv/x"}, "_file=a.csv/x cannot .*csv is not a dir"),
    )
    def test_refuses(self, flags, message):
        with self.assertRaisesRegex(UserError, message):
            paths.check_inputs(_Flags(**flags))

    def test_unread_inputs_may_be_missing(self):
        paths.check_inputs(_FlagsWithUnread(data="b.csv"))

    def test_configurations_of_recipes(self):
        path = paths.resolve_config("configs/tiny/bert_config.json")
        self.assertTrue(os.path.isfile(path))
        self.assertEqual(paths.resolve_config("configs/x"), "configs/x")


if __name__ == "__main__":
    tf.test.main()

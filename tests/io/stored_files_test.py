"""Tests of files that are read: the types of their values, and paths."""

import contextlib
import dataclasses
import os
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf import config as options
from bert_tf.errors import UserError
from bert_tf.io import paths
from bert_tf.io import stored_files
from bert_tf.io.stored_files import FLAG
from bert_tf.io.stored_files import NUMBER
from bert_tf.io.stored_files import TEXT
from tests.support import files_case

_COLUMNS = stored_files.object_of({"text": TEXT}, {"labels": FLAG})


class KindTest(parameterized.TestCase):
    @parameterized.parameters(
        (FLAG, [True, False], ["false", 0, 1, None]),
        (TEXT, ["", "é"], ["a\0", 1, None, ["a"]]),
        (NUMBER, [0, -1.5, 1], [True, float("nan"), 1e39, 10**400, "1"]),
        (stored_files.integer(), [1, 2**31 - 1], [0, True, 1.0, 2**31, "1"]),
        (stored_files.integer(0), [0], [-1, None]),
        (
            stored_files.names(),
            [["a", "b"], ("a",)],
            ["ab", ["a", "a"], ["a", 1], ["a", float("nan")], [""], [], {}],
        ),
        (stored_files.names(0), [[], ["a"]], [["a", "a"]]),
        (stored_files.choice("a", "b"), ["a"], ["c", ["a"], None]),
        (stored_files.optional(FLAG), [None, True], ["a"]),
        (stored_files.list_of(NUMBER), [[], [1]], [[1, "1"], 1]),
        (
            _COLUMNS,
            [{"text": "a"}, {"text": "a", "labels": True}],
            [{}, {"text": "a", "x": "a"}, {"text": 1}, [["text", "a"]]],
        ),
    )
    def test_kind_fits_only_its_values(self, kind, fitting, others):
        for value in fitting:
            self.assertTrue(kind.fits(value), value)
        for value in others:
            self.assertFalse(kind.fits(value), value)

    def test_check_names_file_key_expected_and_received(self):
        schema = {"lower_case": FLAG, "columns": _COLUMNS}
        stored_files.check({"other": 1}, schema, "x.json")
        for values, message in (
            (
                {"lower_case": "false"},
                "x.json: 'lower_case' must be true or false. Received: "
                "'false'; copy the model again or correct the file.",
            ),
            (
                {"columns": ["a" * 500]},
                "x.json: 'columns' must be an object of text: a text, labels: "
                f"true or false. Received: ['{'a' * 198}...; copy the model "
                "again or correct the file.",
            ),
        ):
            with self.assertRaises(UserError) as raised:
                stored_files.check(values, schema, "x.json")
            self.assertEqual(str(raised.exception), message)
        with self.assertRaisesRegex(UserError, "lacks the key 'lower_case'"):
            stored_files.check({}, schema, "x.json", ("lower_case",))


class FileTest(files_case.FolderCase):
    def test_only_regular_files_are_opened(self):
        os.mkfifo(self.path("pipe"))
        os.mkdir(self.path("folder"))
        os.symlink("loop", self.path("loop"))
        os.symlink("/dev/zero", self.path("device"))
        for name in ("pipe", "folder", "loop", "device"):
            with self.assertRaisesRegex(UserError, f"{name} must be a regular"):
                stored_files.read_object(self.path(name))
        with self.assertRaisesRegex(UserError, "There is no .*/nothing"):
            stored_files.read_object(self.path("nothing"))
        with open(self.path("file"), "w", encoding="utf-8") as file:
            file.write('{"a": 1}')
        os.symlink("file", self.path("link"))
        self.assertEqual(stored_files.read_object(self.path("link")), {"a": 1})

    @parameterized.parameters(
        ("a.json", True, True),
        ("variables/a", False, True),
        ("..", False, False),
        ("a/../../b", False, False),
        ("/etc/passwd", False, False),
        ("", False, False),
        ("a//b", False, False),
        (3, False, False),
    )
    def test_inner_paths_are_recognized(self, name, is_base_name, is_inside):
        self.assertEqual(stored_files.is_base_name(name), is_base_name)
        self.assertEqual(stored_files.is_inside(name), is_inside)


class ParseTest(parameterized.TestCase):
    @parameterized.parameters(
        (b'{"a": 1, "a": 1}', "the key 'a' stands twice"),
        (b'{"b": {"a": [], "a": 2}}', "the key 'a' stands twice"),
        (b"", "Expecting value"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'{"a": "\xff"}', "can't decode byte 0xff"),
        (b'{"a": 1}\0', "Extra data"),
        (b"[" * 100_000, "recursion"),
        (b'{"a": "\\ud800"}', "surrogates not allowed"),
        (b"9" * 5000, "digits"),
    )
    def test_unusual_json_is_refused(self, contents, message):
        with self.assertRaisesRegex(UserError, f"^x is not.*{message}"):
            stored_files.parse_json(contents, "x")

    def test_surrogate_pairs_become_one_character(self):
        self.assertEqual(
            stored_files.parse_json('{"a": ["é", "\\ud83d\\ude42"]}', "x"),
            {"a": ["é", "🙂"]},
        )


@dataclasses.dataclass(frozen=True)
class _Flags:
    data: str | None = options.option("", name="input", reads="file")
    records: str | None = options.option("", reads="files")
    folder: str | None = options.option("", reads="folder")
    model: str | None = options.option("", reads="model")
    output_dir: str | None = options.option("")
    output_file: str | None = options.option("")

    def input_hints(self):
        return {"records": "make them."}


def _check(**flags):
    fields = {x.name: x for x in dataclasses.fields(_Flags)}
    read = {x: paths.read_flag(x, fields[x], y) for x, y in flags.items()}
    paths.check_inputs(_Flags(**read))


@dataclasses.dataclass(frozen=True)
class _FlagsWithUnread(_Flags):
    def unread_inputs(self):
        return frozenset({"data"})


class PathsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        home = self.create_tempdir().full_path
        self.enter_context(contextlib.chdir(home))
        self.enter_context(mock.patch.dict(os.environ, HOME=home))
        for folder in ("empty", "texts", "model/sub", "prefix", "run/model"):
            os.makedirs(folder)
        for name in (
            "a.csv",
            ".hidden.csv",
            "texts/a.txt",
            "texts/a_data.csv",
            "texts/data.csv",
            "model/config.json",
            "model/model.safetensors",
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
        {"data": "~/a.csv", "records": "~/*.csv, ~/texts/a*", "model": "~/run"},
        {"output_file": "~/b.csv", "folder": "~"},
    )
    def test_accepts_what_exists(self, **flags):
        _check(**flags)

    @parameterized.parameters(
        ({"data": "b.csv"}, "--input: no such file: 'b.csv'.*directory is /"),
        ({"data": "empty"}, "--input takes a file. Received a folder: 'em"),
        ({"data": "texts/aa.txt"}, "'texts/aa.txt'; did you mean 'a.txt'.$"),
        ({"data": "texts/data.txt"}, "did you mean 'data.csv'"),
        ({"data": "text"}, "no such file: 'text'. The current directory"),
        (
            {"records": "a.*,b*"},
            r"--records matches no file. Received: 'b\*' .*\); make them.",
        ),
        ({"records": "mod*"}, "--records matches no file"),
        ({"records": "empty"}, "folder 'empty'; for all files.*'empty/\\*'"),
        ({"records": "texts/aa.txt"}, "'texts/aa.txt'; did you mean 'a.txt'.$"),
        ({"records": ","}, "--records matches no file. Received: ''"),
        ({"folder": "a.csv"}, "--folder: no such directory: 'a.csv'"),
        (
            {"model": "nowhere"},
            "--model: no model is named 'nowhere', .*hf://owner/name",
        ),
        ({"model": "empty"}, "--model: .*'empty', a directory that holds noth"),
        ({"model": "texts"}, "--model: .*a directory that holds a.txt"),
        ({"model": "a.csv"}, "--model: .*'a.csv', a file that is no checkp"),
        ({"model": "model/model.safetensors"}, "a file that is no checkpoint"),
        ({"model": "hf://bert"}, "Expected hf://owner/name, .*'hf://bert'"),
        ({"model": "kaggle://a/b/c"}, "Expected kaggle://owner/model/keras/v"),
        ({"model": "ftp://a.b/m"}, "--model: exp.*hf://, kag.*: 'ftp://a.b/m'"),
        ({"model": "http://a.b/m.zip"}, "Expected an https:// address"),
        ({"model": "https://a.b/m"}, "ends with .zip, .tar.gz, .tgz. Rec"),
        ({"output_dir": "a.csv"}, "_dir=a.csv cannot be .*not a dir"),
        ({"output_dir": "a.csv/x"}, "=a.csv/x cannot .*/a.csv is not a dir"),
        ({"output_file": "a.csv/x"}, "_file=a.csv/x cannot .*csv is not a dir"),
        ({"output_file": "texts"}, "_file=texts cannot be written .it is a di"),
        ({"output_file": "-"}, "--output_file must .* Received: '-'; name one"),
        ({"output_dir": ""}, "--output_dir must .* Received: ''"),
        ({"records": "*", "output_file": "./a.csv"}, "must differ from --rec"),
    )
    def test_absent_or_wrong_paths_are_refused(self, flags, message):
        with self.assertRaisesRegex(UserError, message):
            _check(**flags)

    def test_unread_inputs_may_be_missing(self):
        paths.check_inputs(_FlagsWithUnread(data="b.csv"))

    def test_finds_configurations_of_recipes(self):
        path = paths.resolve_config("configs/tiny/bert_config.json")
        self.assertTrue(os.path.isfile(path))
        self.assertEqual(paths.resolve_config("configs/x"), "configs/x")


if __name__ == "__main__":
    tf.test.main()

"""Tests for bert_tf.io.paths, and for scripts that check their inputs early."""

import contextlib
import dataclasses
import os
import subprocess
import sys

import tensorflow as tf
from absl.testing import parameterized

from bert_tf import config as options
from bert_tf.errors import UserError
from bert_tf.io import paths

# Prints the error of a script, and whether TensorFlow was imported.
_PROGRAM = """
import importlib, sys
from bert_tf.flags import cli
module = importlib.import_module(f"bert_tf.commands.{sys.argv.pop(1)}")
try:
    cli.run(module.main)
except SystemExit as error:
    print(error.code, "tensorflow" in sys.modules)
"""


@dataclasses.dataclass(frozen=True)
class _Flags:
    data: str | None = options.option(None, name="input", reads="file")
    records: str | None = options.option(None, reads="files")
    folder: str | None = options.option(None, reads="folder")
    model: str | None = options.option(None, reads="model")
    output: str | None = options.option(None)

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
        {"output": "nowhere"},
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

    @parameterized.parameters(
        (
            "finetune_classifier",
            ["--task_name=custom", "--train_file=table.csv", "--do_train"],
            "table.csv has no column 'label'; its first line names the columns "
            "'text', 'topic'; name another with --label_column.",
        ),
        (
            "finetune_classifier",
            ["--task_name=mrp", "--data_dir=empty", "--do_eval"],
            "--task_name must be one of cola",
        ),
        (
            "finetune_multiple_choice",
            ["--task_name=custom", "--train_file=table.csv", "--do_train"],
            "table.csv has no column 'context'",
        ),
        (
            "finetune_tagger",
            ["--train_file=tags.txt", "--word_column=word", "--do_train"]
            + ["--tag_column=tag"],
            "'tag'",
        ),
    )
    def test_scripts_answer_without_tensorflow(self, command, flags, message):
        with open("table.csv", "w") as file:
            file.write("text,topic\na,x\n")
        with open("tags.txt", "w") as file:
            file.write("word label\nBerlin B-LOC\n")
        finished = subprocess.run(
            [sys.executable, "-c", _PROGRAM, command]
            + ["--pretrained_model_dir=model", "--output_dir=out", *flags],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.assertIn(message, finished.stdout)
        self.assertEndsWith(finished.stdout.strip(), " False")


if __name__ == "__main__":
    tf.test.main()

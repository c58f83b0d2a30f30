"""Tests of scripts that check their inputs before TensorFlow is imported."""

import contextlib
import os
import pathlib
import subprocess
import sys

import tensorflow as tf
from absl.testing import parameterized

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


class InputsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(contextlib.chdir(self.create_tempdir().full_path))
        for folder in ("empty", "model", "teacher"):
            os.mkdir(folder)
        os.mkdir("pretrained")
        pathlib.Path("pretrained/task.json").write_text(
            '{"kind": "pretraining"}'
        )
        for folder in ("model", "teacher"):
            open(f"{folder}/config.json", "w").close()

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
        # The last rows of files are read, and all rows together.
        (
            "finetune_classifier",
            ["--task_name=custom", "--train_file=last.csv", "--do_train"],
            "last.csv, line 3003 has no label",
        ),
        (
            "finetune_classifier",
            ["--task_name=custom", "--train_file=one.csv", "--do_train"],
            "one.csv must have at least 2 different labels",
        ),
        (
            "finetune_squad",
            ["--train_file=bad.json", "--do_train"],
            "bad.json, line 1 is not valid JSON",
        ),
        (
            "distill",
            ["--teacher_dir=teacher", "--train_file=table.csv", "--do_train"],
            "table.csv has no column 'label'",
        ),
        (
            "pretrain",
            ["--bert_config_file=configs/tiny/bert_config.json", "--do_train"]
            + ["--input_file=table.csv", "--max_seq_length=9999"],
            "--max_seq_length must be at most",
        ),
        (
            "pretrain",
            ["--bert_config_file=configs/tiny/bert_config.json", "--do_train"]
            + ["--input_file=table.csv", "--vocab_file=tags.txt"],
            "tags.txt lacks [UNK]",
        ),
        (
            "predict",
            ["--model_dir=pretrained", "--input_file=table.csv"],
            "a model of kind='pretraining'; fine-tune it first",
        ),
        (
            "create_pretraining_data",
            ["--input_file=table.csv", "--vocab_file=tags.txt"],
            "tags.txt lacks [UNK]",
        ),
        (
            "tokenize_file",
            ["--input_file=table.csv", "--vocab_file=tags.txt"],
            "tags.txt lacks [UNK]",
        ),
    )
    def test_scripts_answer_without_tensorflow(self, command, flags, message):
        with open("table.csv", "w") as file:
            file.write("text,topic\na,x\n")
        pathlib.Path("one.csv").write_text("text,label\na,x\n")
        rows = "a,x\nb,y\n" * 1500
        pathlib.Path("last.csv").write_text(f"text,label\n{rows}a,x\nb,\n")
        pathlib.Path("bad.json").write_text("{]")
        task = '{"kind": "classification", "labels": ["x", "y"]}'
        pathlib.Path("teacher/task.json").write_text(task)
        with open("tags.txt", "w") as file:
            file.write("word label\nBerlin B-LOC\n")
        trains = command.startswith(("finetune", "distill", "pretrain"))
        flags += ["--output_dir=out" if trains else "--output_file=out"]
        if command.startswith(("finetune", "distill")):
            flags += ["--pretrained_model_dir=model"]
        finished = subprocess.run(
            [sys.executable, "-c", _PROGRAM, command, *flags],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.assertIn(message, finished.stdout)
        self.assertEndsWith(finished.stdout.strip(), " False")


if __name__ == "__main__":
    tf.test.main()

"""Tests for bert_tf.tasks.multiple_choice.flags and the flags it reads."""

import pathlib

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.flags.classifier import MultipleChoiceConfig
from bert_tf.tasks.multiple_choice import examples as multiple_choice_examples
from bert_tf.tasks.multiple_choice import flags as multiple_choice_flags
from bert_tf.tasks.multiple_choice.examples import Columns

_TRAINED_WITH = {
    "choices": ["a", "b"],
    "context": None,
    "start": "s",
    "label": "answer",
}


class MultipleChoiceFlagsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.create_tempdir().full_path)

    def _build(self, stored_task=None, **flags):
        flags = {
            "output_dir": str(self.folder),
            "pretrained_model_dir": "model",
        } | flags
        return multiple_choice_flags.build_task(
            MultipleChoiceConfig(**flags), stored_task
        )

    def _custom(self, stored_task=None, **flags):
        flags = {
            "task_name": "custom",
            "do_eval": True,
            "dev_file": "dev.csv",
        } | flags
        return self._build(stored_task, **flags)

    def test_official_files(self):
        for name in ("train.csv", "val.csv", "test.csv.gz"):
            (self.folder / name).write_text("")
        task = self._build(
            task_name="swag",
            data_dir=str(self.folder),
            do_train=True,
            do_eval=True,
            max_seq_length=80,
            head="bilstm",
            head_dropout_prob=0.3,
        )
        self.assertEqual(
            dict(task.files),
            {
                "train": str(self.folder / "train.csv"),
                "dev": str(self.folder / "val.csv"),
            },
        )
        self.assertEqual(
            task.columns, multiple_choice_examples.OFFICIAL["swag"].columns
        )
        self.assertEqual(task.max_seq_length, 80)
        self.assertEqual(
            task.model_arguments(), {"head": "bilstm", "head_dropout_prob": 0.3}
        )

    def test_custom_files_and_columns(self):
        task = self._custom(
            do_train=True,
            train_file="t.csv",
            test_file="not_asked_for.csv",
            choice_columns="x, y,z",
            context_column="q",
            label_column="right",
        )
        self.assertEqual(dict(task.files), {"train": "t.csv", "dev": "dev.csv"})
        self.assertEqual(
            task.columns, Columns(("x", "y", "z"), "q", label="right")
        )

    def test_default_columns(self):
        self.assertEqual(
            self._custom().columns,
            Columns(("choices",), "context", label="label"),
        )
        self.assertIsNone(self._custom(context_column="").columns.context)

    def test_columns_and_head_of_a_trained_model(self):
        stored = {"columns": _TRAINED_WITH, "head": "bilstm"}
        task = self._custom(stored)
        self.assertEqual(
            task.columns, Columns(("a", "b"), start="s", label="answer")
        )
        self.assertEqual(task.head, "bilstm")
        task = self._custom(stored, choice_columns="c,d")
        self.assertEqual(task.columns, Columns(("c", "d"), label="answer"))

    @parameterized.parameters(
        ("--train_file", {"do_train": True}),
        ("--dev_file", {"dev_file": None}),
        ("--test_file", {"do_predict": True}),
        ("--data_dir is for the tasks with", {"data_dir": "x"}),
        ("must name different columns", {"choice_columns": "a,b,a"}),
        ("must name different columns", {"choice_columns": "a,,b"}),
        (
            "must name different columns. Received: 'a', 'b', 'a'",
            {"choice_columns": "a,b", "label_column": "a"},
        ),
        ("--label_column must not be empty", {"label_column": ""}),
        ("below 1", {"head_dropout_prob": 1.0}),
    )
    def test_rejects_flags_for_custom_files(self, message, flags):
        with self.assertRaisesRegex(UserError, message) as caught:
            self._custom(**flags)
        self.assertNotIn("\n", str(caught.exception))

    @parameterized.parameters(
        ("codah needs --data_dir", {"data_dir": None}),
        ("--choice_columns, --label_column: these are for --task_name=custom",
         {"choice_columns": "a,b", "label_column": "c"}),
        ("--dev_file: these are for", {"dev_file": "x.csv"}),
        ("no file dev.csv or one like it for the split dev of CODAH", {}),
    )  # fmt: skip
    def test_rejects_flags_for_official_files(self, message, flags):
        with self.assertRaisesRegex(UserError, message) as caught:
            self._build(
                task_name="codah",
                do_eval=True,
                **{"data_dir": str(self.folder)} | flags,
            )
        self.assertNotIn("\n", str(caught.exception))


if __name__ == "__main__":
    tf.test.main()

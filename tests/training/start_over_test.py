"""Tests for bert_tf.training.start_over."""

import contextlib
import dataclasses
import os
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf import config as options
from bert_tf.commands.finetune_classifier import ClassifierConfig
from bert_tf.distribute.coordinator import Coordinator
from bert_tf.errors import UserError
from bert_tf.training import start_over as start_overs

_OF_A_RUN = (
    "model.ckpt-7.index",
    "model.ckpt-7.data-00000-of-00001",
    "model.ckpt-7.json",
    "checkpoint",
    "model/checksums.json",
    "model/vocab.txt",
    "model/README.md",
    "vocab.txt",
    "best/model.ckpt-3.index",
    "summaries/train/events.out",
    "runs/rate_5e-05_batch_8_epochs_3_seed_1/run.json",
    "train_metrics.jsonl",
    "learning_curves.png",
    "eval_results.json",
    "runs.txt",
    "dev_predictions.jsonl",
    "dev_mismatched_predictions.jsonl",
    "test_predictions.conll",
    "test_mismatched_results.tsv",
    "test_confusion_matrix.png",
    "entity_scores.txt",
    "nbest_predictions.json",
    "null_odds.json",
)
_OTHERS = (
    "notes.txt",
    "README.md",
    "train.csv",
    "best/idea.txt.d/a",
    "bert_config.json",
    "runs/mine/events",
    "test.jsonl",
    "my_model/checksums.json",
    "train.log",
)


@dataclasses.dataclass(frozen=True)
class _Flags:
    output_dir: str = options.option()
    do_train: bool = options.option(True)
    overwrite_output_dir: bool = options.option(True)
    start: str | None = options.option(None, reads="model")


class StartOverTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.create_tempdir().full_path
        self.enter_context(contextlib.chdir(folder))

    def _write(self, *names):
        for name in names:
            path = os.path.join("out", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            open(path, "w").close()

    def _start_over(self, **flags):
        config = _Flags(**{"output_dir": "out"} | flags)
        start_overs.start_over(
            config, Coordinator(tf.distribute.get_strategy())
        )

    def _left(self):
        return {
            os.path.relpath(os.path.join(folder, name), "out")
            for folder, _, names in os.walk("out")
            for name in names
        }

    def test_removes_what_a_run_wrote_and_nothing_else(self):
        others = set(_OTHERS) - {"best/idea.txt.d/a"}
        self._write(*_OF_A_RUN, *others)
        self._start_over()
        self.assertEqual(self._left(), others)
        self._write("model/checksums.json")
        self._start_over(overwrite_output_dir=False)
        self.assertIn("model/checksums.json", self._left())

    def test_accepts_no_folder_and_an_empty_one(self):
        self._start_over()
        os.mkdir("out")
        self._start_over()
        self._write("train.log", "record_counts.json")
        self._start_over()
        self.assertEqual(self._left(), {"train.log", "record_counts.json"})

    def test_keeps_a_configuration_that_is_no_copy(self):
        for text in ("mine", ""):
            self._write("model/checksums.json", "model/bert_config.json")
            with open("out/bert_config.json", "w") as file:
                file.write(text)
            self._start_over()
            self.assertEqual(bool(self._left()), bool(text))

    def test_only_the_chief_removes_and_only_for_training(self):
        self._write(*_OF_A_RUN)
        self._start_over(do_train=False)
        with mock.patch.object(Coordinator, "is_chief", False):
            self._start_over()
        self.assertEqual(self._left(), set(_OF_A_RUN))

    def test_refuses_a_folder_of_other_files(self):
        self._write(*_OTHERS)
        with self.assertRaisesRegex(
            UserError,
            "out, which has no output .* bert_config.json, best, .* 3 m",
        ):
            self._start_over()
        self.assertEqual(self._left(), set(_OTHERS))

    @parameterized.parameters(
        "out/model",
        "out/model.ckpt-7",
        "out/best/model.ckpt-3.index",
        "elsewhere,out/model",
    )
    def test_refuses_to_remove_an_input(self, path):
        self._write(*_OF_A_RUN)
        named = path.rpartition(",")[2]
        with self.assertRaisesRegex(UserError, f"would remove --start={named}"):
            self._start_over(start=path)
        self.assertEqual(self._left(), set(_OF_A_RUN))

    def test_is_for_training(self):
        with self.assertRaisesRegex(UserError, "_dir needs --do_train"):
            ClassifierConfig(
                task_name="mrpc",
                data_dir="x",
                output_dir="out",
                do_eval=True,
                overwrite_output_dir=True,
            )


if __name__ == "__main__":
    tf.test.main()

"""Tests for run/distill.py: each kind of teacher, end to end."""

from unittest import mock

import pytest
import tensorflow as tf

from bert_tf.commands import distill
from bert_tf.commands.distill import DistillConfig
from bert_tf.distribute.devices import Devices
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.task import ClassificationTask
from tests.support import command_case
from tests.support import tiny_model

_LENGTH = 12


class DistillScriptTest(command_case.CommandCase):
    def setUp(self):
        super().setUp()
        # Compiling takes most of the time, and makes no difference here.
        self.enter_context(mock.patch.object(Devices, "fuse", False))

    def _teacher(self, task):
        return tiny_model.write_task(
            str(self.folder / "teacher"),
            task,
            config=tiny_model.CONFIG,
            max_seq_length=_LENGTH,
        )

    def _run(self, task, **flags):
        """Runs the script; returns its eval_results.txt."""
        distill.main(
            DistillConfig(
                **{
                    "teacher_dir": self._teacher(task),
                    "output_dir": str(self.output),
                    "num_hidden_layers": 1,
                    "train_batch_size": "3",
                    "num_train_epochs": "1",
                    "iterations_per_loop": 1,
                    "do_train": True,
                    "do_eval": True,
                }
                | flags
            )
        )
        results = self.read_scores()
        written = self.read_json("eval_results.json")
        for name in (task.metric, f"teacher_{task.metric}"):
            self.assertAllClose(
                results[f"eval_{name}"], written["dev"][name], rtol=1e-4
            )
        return results

    def _losses(self):
        first, *_ = self.lines("train_metrics.jsonl")
        return {name for name in first if name.endswith("loss")}

    def _check_predictions(self, path, split):
        """Compares what the model says of a file with what was written."""
        written = self.lines(f"{split}_predictions.jsonl")
        for one, other in zip(self.predict(path), written, strict=True):
            self.assertEqual(one["label"], other["label"])
            self.assertAllClose(
                one["probabilities"], other["probabilities"], atol=1e-5
            )

    @pytest.mark.thorough
    def test_classifies_pairs_with_unlabeled_data(self):
        # The first text has another column name in the teacher's data.
        header = ("first", "b", "kind")
        rows = [
            ("the cat", "sat on", "yes"),
            ("dog", "mat .", "no"),
            ("東", "the dog sat", "no"),
            ("cat", "dog", "yes"),
        ]
        data = self.write_csv("data.csv", header, *rows)
        more = self.write_csv("more.csv", header[:2], ("mat", "on the mat"))
        task = ClassificationTask(
            name="custom",
            labels=("no", "yes"),
            metric_names=("accuracy", "macro_f1"),
            columns=Columns("a", "b", ("kind",)),
        )
        results = self._run(
            task,
            train_file=data,
            dev_file=data,
            test_file=more,
            unlabeled_file=more,
            do_predict=True,
            text_column="first",
        )
        self.assertContainsSubset(
            {"eval_loss", "eval_teacher_loss", "eval_teacher_macro_f1"}, results
        )
        names = {"loss", "label_loss", "soft_target_loss", "hidden_loss"}
        self.assertEqual(self._losses(), names)
        self.assertTrue((self.output / "learning_curves.png").exists())
        self._check_predictions(data, "dev")
        self._check_predictions(more, "test")

        with self.subTest("only evaluated"):
            again = self._run(
                task, dev_file=data, text_column="first", do_train=False
            )
            self.assertEqual(again, results)


if __name__ == "__main__":
    tf.test.main()

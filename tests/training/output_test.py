"""Tests for bert_tf.training.output."""

import io
import json
import os
from unittest import mock

import numpy as np
import tensorflow as tf

from bert_tf.io import files
from bert_tf.training import output as training_output


def _finetuning_rows(steps):
    return [
        {
            "step": step,
            "loss": 9 / step,
            "learning_rate": 1e-4 * step,
            "grad_norm": 2.0 + step % 3,
            "examples_per_second": 50.0 + step,
            "tokens_per_second": 900.0 + step,
        }
        for step in steps
    ]


def _evaluations(steps):
    return [
        {
            "global_step": step,
            "loss": 5 / step,
            "HasAns_f1": 60 + step / 10,
            "HasAns_total": 5928,
        }
        for step in steps
    ]


class ReportTest(tf.test.TestCase):
    def test_has_scores_existing_files_and_commands(self):
        folder = self.create_tempdir().full_path
        os.mkdir(os.path.join(folder, "model"))
        for name in ("dev_predictions.jsonl", "train.log", "model.ckpt-5.json"):
            with open(os.path.join(folder, name), "w", encoding="utf-8"):
                pass
        results = {"dev": {"accuracy": 0.91666, "loss": 0.25, "global_step": 7}}
        with mock.patch("sys.stdout", io.StringIO()) as written:
            training_output.print_report(folder, results, ["use a", "use b"])
        expected = f"""
Scores:

    dev: accuracy 0.9167, loss 0.25

Files in {folder}:

    model                  the model, for every script
    train.log              the log
    dev_predictions.jsonl  predictions of dev

Next:

    use a
    use b
"""
        self.assertEqual(written.getvalue(), expected)


class LearningCurvesTest(tf.test.TestCase):
    def test_draws_the_metrics_of_a_run(self):
        folder = self.create_tempdir().full_path
        train = _finetuning_rows(range(1, 60))
        lines = "".join(f"{json.dumps(row)}\n" for row in train)
        path = os.path.join(folder, "train_metrics.jsonl")
        files.write_text(path, lines)
        for panels in (None, training_output.PRETRAINING):
            training_output.draw_learning_curves(
                folder, _evaluations([20, 59]), panels, "A run"
            )
            path = os.path.join(folder, "learning_curves.png")
            picture = tf.io.decode_png(tf.io.read_file(path), 3).numpy()
            orange = np.all(picture == [0xD9, 0x5F, 0x02], axis=-1)
            self.assertGreater(orange.sum(), 500)


if __name__ == "__main__":
    tf.test.main()

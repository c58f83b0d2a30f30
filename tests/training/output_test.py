"""Tests for bert_tf.training.output."""

import io
import os
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.training import output as training_output


def _rows(steps, step_name="step"):
    return [
        {
            step_name: step,
            "loss": 9 / step,
            "masked_lm_loss": 8 / step,
            "next_sentence_loss": 1 / step,
            "masked_lm_accuracy": step / 1000,
            "next_sentence_accuracy": 0.5 + step / 1000,
            "learning_rate": 1e-4 * step,
        }
        for step in steps
    ]


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


class LearningCurvesTest(tf.test.TestCase, parameterized.TestCase):
    def _draw(
        self, train, evaluation=(), draw=training_output.draw_pretraining
    ):
        path = os.path.join(self.create_tempdir().full_path, "curves.png")
        draw(path, train, evaluation, "A run")
        self.assertLen(os.listdir(os.path.dirname(path)), 1)
        return tf.io.decode_png(tf.io.read_file(path), channels=3).numpy()

    def test_draws_training_and_evaluation(self):
        train = self._draw(_rows(range(1, 90)))
        self.assertEqual(train.shape, (700, 1300, 3))
        both = self._draw(
            _rows(range(1, 90)), _rows((30, 80), step_name="global_step")
        )
        orange = np.all(both == [0xD9, 0x5F, 0x02], axis=-1)
        self.assertGreater(orange.sum(), 500)
        self.assertFalse(np.all(train == [0xD9, 0x5F, 0x02], axis=-1).any())

    @parameterized.parameters(0, 1, 3)
    def test_draws_short_runs_with_gaps(self, count):
        rows = _rows(range(1, 1 + count))
        for row in rows:
            row.pop("next_sentence_loss")
            row["loss"] = None
        self.assertEqual(self._draw(rows).shape, (700, 1300, 3))

    def _titles(self, train, evaluation):
        with mock.patch.object(training_output, "_finish") as finish:
            self._draw(train, evaluation, training_output.draw_finetuning)
        return [
            call.args[0].get_title(loc="left") for call in finish.mock_calls
        ]

    def test_finetuning_has_a_panel_for_each_measured_value(self):
        titles = [
            "Loss",
            "Learning rate",
            "Norm of the gradient",
            "Tokens per second",
        ]
        train = _finetuning_rows((1, 10, 20, 30))
        self.assertEqual(self._titles(train, []), titles)
        # One evaluation is a point in the panel of the loss.
        self.assertEqual(self._titles(train, _evaluations([30])), titles)
        # HasAns_total never changes.
        self.assertEqual(
            self._titles(train, _evaluations([10, 20, 30])),
            [*titles, "HasAns f1 on dev"],
        )
        # A model that does not learn shows constant metrics.
        stuck = [row | {"HasAns_f1": 50.0} for row in _evaluations([10, 20])]
        self.assertEqual(
            self._titles(train, stuck),
            [*titles, "HasAns f1 on dev", "HasAns total on dev"],
        )
        for row in train:
            row["grad_norm"] = row.pop("tokens_per_second") * np.nan
            row["learning_rate"] = None
        self.assertEqual(
            self._titles(train, []), ["Loss", "Norm of the gradient"]
        )
        self.assertEqual(self._titles([], []), ["Loss"])

    def test_finetuning_has_the_size_of_its_panels(self):
        draw = training_output.draw_finetuning
        train = _finetuning_rows(range(1, 60))
        picture = self._draw(train, _evaluations([20, 59]), draw)
        self.assertEqual(picture.shape, (700, 1300, 3))
        orange = np.all(picture == [0xD9, 0x5F, 0x02], axis=-1)
        # Loss and F1 are the first and the fifth panel.
        self.assertTrue(orange[:350, :433].any())
        self.assertTrue(orange[350:, 433:866].any())
        self.assertFalse(orange[30:320, 440:].any())
        (row,) = _finetuning_rows([1])
        del row["learning_rate"], row["tokens_per_second"]
        self.assertEqual(self._draw([row], (), draw).shape, (350, 866, 3))

    @parameterized.parameters((5, 1300), (7, 1733), (8, 1733))
    def test_panels_fill_each_row(self, number, width):
        evaluations = [
            {"global_step": step}
            | {f"metric_{n}": step * n for n in range(1, number - 3)}
            for step in (10, 20)
        ]
        picture = self._draw(
            _finetuning_rows((1, 10, 20)),
            evaluations,
            training_output.draw_finetuning,
        )
        self.assertEqual(picture.shape, (700, width, 3))
        orange = np.all(picture == [0xD9, 0x5F, 0x02], axis=-1)
        # The last panel ends near the right edge.
        self.assertTrue(orange[350:640, -60:].any())

    def test_moving_average(self):
        line = np.linspace(5, 1, 100)
        smooth = training_output._moving_average(line, 10)
        self.assertAllClose(smooth[:95], line[:95])
        noise = np.random.default_rng(0).normal(size=1000)
        smooth = training_output._moving_average(noise, 50)
        self.assertLess(smooth[25:].std(), 0.3)


if __name__ == "__main__":
    tf.test.main()

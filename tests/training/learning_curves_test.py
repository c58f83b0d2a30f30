"""Tests for bert_tf.training.learning_curves."""

import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.training import learning_curves


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


class LearningCurvesTest(tf.test.TestCase, parameterized.TestCase):
    def _draw(self, train, evaluation=()):
        path = os.path.join(self.create_tempdir().full_path, "curves.png")
        learning_curves.draw(path, train, evaluation, "A run")
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

    def test_moving_average_keeps_lines_and_length(self):
        line = np.linspace(5, 1, 100)
        smooth = learning_curves._moving_average(line, 10)
        self.assertAllClose(smooth[:95], line[:95])
        noise = np.random.default_rng(0).normal(size=1000)
        smooth = learning_curves._moving_average(noise, 50)
        self.assertLess(smooth[25:].std(), 0.3)


if __name__ == "__main__":
    tf.test.main()

"""Tests for bert_tf.training.losses."""

from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.training import losses

_OBJECTIVE = losses.PretrainingObjective()


def _numpy_losses(logits, labels):
    logits = np.float64(logits)
    chosen = np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return np.log(np.exp(logits).sum(-1)) - chosen


class LossesTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        self.batch = {
            "masked_lm_ids": rng.integers(0, 11, (5, 3)).astype(np.int32),
            # Neighbors have different numbers of predictions.
            "masked_lm_weights": np.float32(
                [[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1]]
            ),
            # Of different lengths.
            "input_mask": np.int32(np.arange(6) < [[6], [2], [4], [1], [5]]),
            "next_sentence_labels": np.int32([[0], [1], [1], [0], [1]]),
        }
        self.outputs = {
            "masked_lm_logits": rng.normal(size=(5, 3, 11)).astype(np.float32),
            "next_sentence_logits": rng.normal(size=(5, 2)).astype(np.float32),
        }

    def _sums(self, rows=slice(None), **options):
        outputs = {name: x[rows] for name, x in self.outputs.items()}
        batch = {name: x[rows] for name, x in self.batch.items()}
        objective = losses.PretrainingObjective(**options)
        return objective.compute_sums(outputs, batch)

    def test_matches_numpy(self):
        weights = self.batch["masked_lm_weights"]
        labels = self.batch["masked_lm_ids"]
        logits = self.outputs["masked_lm_logits"]
        masked_lm = (_numpy_losses(logits, labels) * weights).sum()
        correct = ((logits.argmax(-1) == labels) * weights).sum()
        next_labels = self.batch["next_sentence_labels"][:, 0]
        next_logits = self.outputs["next_sentence_logits"]
        next_sentence = _numpy_losses(next_logits, next_labels).sum()

        values = _OBJECTIVE.normalize(self._sums(), tf.constant([9.0, 5.0]))

        self.assertAllClose(
            values,
            {
                "loss": masked_lm / (9 + 1e-5) + next_sentence / 5,
                "masked_lm_loss": masked_lm / (9 + 1e-5),
                "masked_lm_accuracy": correct / 9,
                "next_sentence_loss": next_sentence / 5,
                "next_sentence_accuracy": np.mean(
                    next_logits.argmax(-1) == next_labels
                ),
            },
        )

    @parameterized.parameters(True, False)
    def test_masked_lm_gradient_matches_numpy(self, overwrites):
        labels = self.batch["masked_lm_ids"]
        weights = self.batch["masked_lm_weights"]
        logits = tf.constant(self.outputs["masked_lm_logits"])
        with (
            mock.patch.object(
                losses, "overwrites_logits", return_value=overwrites
            ),
            tf.GradientTape() as tape,
        ):
            tape.watch(logits)
            sums = losses.masked_lm_sums(logits, labels, weights)
        powers = np.exp(np.float64(logits))
        expected = powers / powers.sum(-1, keepdims=True) - np.eye(11)[labels]
        self.assertAllClose(
            tape.gradient(sums["masked_lm_sum"], logits),
            expected * weights[..., None],
        )

    def test_uneven_parts_add_up_to_the_whole(self):
        parts = [
            _OBJECTIVE.normalize(self._sums(rows), tf.constant([9.0, 5.0]))
            for rows in (slice(0, 1), slice(1, 4), slice(4, 5))
        ]
        whole = _OBJECTIVE.normalize(self._sums(), tf.constant([9.0, 5.0]))

        added = {name: sum(part[name] for part in parts) for name in whole}
        self.assertAllClose(added, whole)

    def test_without_masked_tokens_the_loss_is_0(self):
        self.batch["masked_lm_weights"] *= 0
        objective = losses.PretrainingObjective(use_next_sentence=False)
        values = objective.normalize(
            self._sums(use_next_sentence=False), tf.constant([0.0, 5.0])
        )
        self.assertEqual(
            {name: float(value) for name, value in values.items()},
            {"loss": 0, "masked_lm_loss": 0, "masked_lm_accuracy": 0},
        )

    def test_blank_rows_do_not_count(self):
        self.batch["input_mask"][[2, 4]] = 0
        self.batch["masked_lm_weights"][[2, 4]] = 0
        real = [0, 1, 3]
        self.assertAllClose(self._sums(), self._sums(real))
        counts = _OBJECTIVE.count(self.batch)
        weights = self.batch["masked_lm_weights"].sum()
        self.assertAllClose(counts, [weights, 3])


if __name__ == "__main__":
    tf.test.main()

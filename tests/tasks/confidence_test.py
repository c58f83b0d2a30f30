"""Tests of temperature, thresholds, rejection and calibration errors."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from scipy import special

from bert_tf.tasks import confidence


def _draw(factor=1.0, num_texts=600, num_labels=5, seed=0):
    """Returns logits that are too large by a factor, and drawn label ids."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(num_texts, num_labels))
    probabilities = special.softmax(logits, -1)
    ids = [rng.choice(num_labels, p=row) for row in probabilities]
    return factor * logits, np.array(ids)


def _at(logits, function=special.softmax):
    axis = {"axis": -1} if function is special.softmax else {}
    return lambda x: np.float32(function(logits / x, **axis))


class TemperatureTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(0.5, 1.0, 3.0)
    def test_has_the_least_log_loss(self, factor):
        logits, ids = _draw(factor)
        found = confidence.fit_temperature(_at(logits), ids)
        grid = np.geomspace(0.2, 8, 4001)
        losses = [
            -special.log_softmax(logits / x, -1)[range(len(ids)), ids].mean()
            for x in grid
        ]
        self.assertAllClose(found, grid[np.argmin(losses)], rtol=2e-3)
        self.assertAllClose(found, factor, rtol=0.15)

    def test_several_labels_fit_one_temperature(self):
        rng = np.random.default_rng(1)
        logits = 2 * rng.normal(size=(500, 3))
        ids = np.float32(rng.random(logits.shape) < special.expit(logits))
        predict = _at(4 * logits, special.expit)
        found = confidence.fit_temperature(predict, ids)
        grid = np.geomspace(1, 10, 4001)
        losses = [
            -special.log_expit((2 * ids - 1) * 4 * logits / x).mean()
            for x in grid
        ]
        self.assertAllClose(found, grid[np.argmin(losses)], rtol=2e-3)

    def test_texts_outside_of_the_labels_do_not_count(self):
        logits, ids = _draw(2.0)
        others = np.full(50, confidence.OUTSIDE)
        more = np.concatenate([logits, 9 * logits[:50]])
        self.assertAllClose(
            confidence.fit_temperature(_at(logits), ids),
            confidence.fit_temperature(_at(more), np.append(ids, others)),
            rtol=1e-3,
        )

    @parameterized.parameters(1, 30)
    def test_answers_that_are_all_right_determine_none(self, factor):
        logits, _ = _draw()
        logits += factor * (logits == logits.max(-1, keepdims=True))
        with self.assertLogs(level="WARNING") as logs:
            found = confidence.fit_temperature(_at(logits), logits.argmax(-1))
        self.assertEqual(found, 1.0)
        self.assertIn("determine no temperature", logs.output[0])


class ThresholdsTest(tf.test.TestCase):
    def test_have_the_best_f1(self):
        rng = np.random.default_rng(2)
        ids = np.float32(rng.random((300, 3)) < [0.5, 0.1, 0.0])
        values = np.float32(special.expit(rng.normal(size=ids.shape) + ids))

        def f1(column, threshold):
            found, right = values[:, column] >= threshold, ids[:, column] > 0
            return 2 * (found & right).sum() / (found.sum() + right.sum())

        found = confidence.fit_thresholds(values, ids)
        self.assertEqual(found[2], 0.5)  # No text has the label.
        for column in range(2):
            scores = [f1(column, x) for x in values[:, column]]
            self.assertAllClose(f1(column, found[column]), max(scores))

    def test_are_halfway_to_the_next_probability(self):
        values = np.float32([[0.1], [0.3], [0.7]])
        ids = np.float32([[0], [0], [1]])
        self.assertAllClose(confidence.fit_thresholds(values, ids), [0.5])
        ones = np.ones_like(ids)  # Rounding must not reject the text with 0.1.
        self.assertAllClose(confidence.fit_thresholds(values, ones), [0.099])


class RejectionTest(tf.test.TestCase):
    def test_answers_as_many_as_have_the_precision(self):
        logits, ids = _draw()
        values = special.softmax(logits, -1)
        stated, is_right = values.max(-1), values.argmax(-1) == ids
        found = confidence.fit_rejection(stated, is_right, 0.9)
        is_answer = stated >= found
        self.assertGreaterEqual(is_right[is_answer].mean(), 0.9)
        for least in stated[stated < found]:  # Lower thresholds answer more.
            self.assertLess(is_right[stated >= least].mean(), 0.9)

    def test_equal_probabilities_are_rejected_together(self):
        stated = np.repeat([0.9, 0.6, 0.3], 10)
        is_right = np.tile([True] * 9 + [False], 3)
        is_right[10:] = False
        found = confidence.fit_rejection(stated, is_right, 0.9)
        self.assertAllClose(found, 0.75)

    def test_states_what_few_texts_reach(self):
        stated = np.linspace(0.9, 0.5, 10)
        is_right = np.arange(10) < 8
        with self.assertLogs(level="WARNING") as logs:
            found = confidence.fit_rejection(stated, is_right, 0.95)
        # All are answered, also if rounding takes 1% of a probability.
        self.assertAllClose(found, 0.495)
        self.assertIn(
            "0.95, which takes 20 answers, on the 10 texts to judge by: the "
            "best reaches 0.8, for 100.0%",
            logs.output[0],
        )

    def test_comes_closest_to_a_precision_out_of_reach(self):
        stated = np.linspace(1, 0, 40)
        is_right = np.arange(40) % 4 > 0
        is_right[20:] = False
        with self.assertLogs(level="WARNING"):
            found = confidence.fit_rejection(stated, is_right, 0.9)
        reached = is_right[stated >= found].mean()
        counts = np.arange(10, 41)
        best = max(is_right[:count].mean() for count in counts)
        self.assertAllClose(reached, best)


class MeasuresTest(tf.test.TestCase):
    def test_calibration_error_has_fifteen_bins(self):
        rng = np.random.default_rng(3)
        stated = np.append(rng.random(500), [0.0, 1.0, 1 / 15, 0.2])
        is_right = rng.random(len(stated)) < stated**2
        error = 0.0
        for number in range(15):
            lower, upper = number / 15, (number + 1) / 15
            chosen = (stated > lower) & (stated <= upper)
            chosen |= (stated == 0) & (number == 0)
            if chosen.any():
                gap = abs(stated[chosen].mean() - is_right[chosen].mean())
                error += gap * chosen.mean()
        self.assertAllClose(
            confidence.calibration_error(stated, is_right), error
        )

    def test_accuracy_accumulates_from_the_surest_answer(self):
        right = confidence.right_among_surest(
            np.array([0.2, 0.9, 0.5]), np.array([True, True, False])
        )
        self.assertAllClose(right, [1, 0.5, 2 / 3])


if __name__ == "__main__":
    tf.test.main()

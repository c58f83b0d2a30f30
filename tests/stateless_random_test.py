"""Tests for bert_tf.stateless_random."""

import numpy as np
import tensorflow as tf

from bert_tf import stateless_random

_MASK = 2**64 - 1


def _python_bits(*keys):
    """Computes SplitMix64's finalizer in Python's unbounded integers."""
    state = 0
    for key in keys:
        state = (state + 0x9E3779B97F4A7C15 + key) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


class StatelessRandomTest(tf.test.TestCase):
    def test_equals_python_integers(self):
        # The published first number of SplitMix64 with seed 0.
        self.assertEqual(
            stateless_random.random_bits(0).numpy(), 0xE220A8397B1DCDAF
        )
        positions = tf.range(5, dtype=tf.int64)
        bits = stateless_random.random_bits(12345, 2**40, positions)
        expected = [_python_bits(12345, 2**40, i) for i in range(5)]
        self.assertEqual(bits.numpy().tolist(), expected)

    def test_graph_equals_eager(self):
        draw = tf.function(stateless_random.random_bits)
        index = tf.constant([[3], [7]], tf.int64)
        self.assertAllEqual(
            draw(1, index), stateless_random.random_bits(1, index)
        )

    def test_uniform_has_mean_variance_and_no_correlation(self):
        # Masks of adjacent examples and positions must not be correlated.
        rows = tf.range(400, dtype=tf.int64)[:, None]
        columns = tf.range(500, dtype=tf.int64)
        drawn = stateless_random.uniform(9, rows, columns).numpy()
        self.assertBetween(drawn.min(), 0.0, 1e-4)
        self.assertBetween(drawn.max(), 1 - 1e-4, 1.0)
        # Three standard errors of the mean of 200,000 uniform numbers.
        self.assertNear(drawn.mean(), 0.5, 3 * np.sqrt(1 / 12 / drawn.size))
        self.assertNear(drawn.var(), 1 / 12, 1e-3)
        for first, second in (
            (drawn[1:], drawn[:-1]),
            (drawn[:, 1:], drawn[:, :-1]),
        ):
            correlation = np.corrcoef(first.ravel(), second.ravel())[0, 1]
            self.assertNear(correlation, 0, 0.01)

    def test_below_covers_its_range_evenly(self):
        drawn = stateless_random.below(7, 1, tf.range(70_000, dtype=tf.int64))
        counts = np.bincount(drawn, minlength=7)
        self.assertLen(counts, 7)
        self.assertAllClose(counts, np.full(7, 10_000), atol=300)

    def test_permutations_are_permutations_and_differ(self):
        first = stateless_random.permutation(100, 1, 5).numpy()
        second = stateless_random.permutation(100, 1, 6).numpy()
        self.assertAllEqual(np.sort(first), np.arange(100))
        self.assertAllEqual(np.sort(second), np.arange(100))
        self.assertLess(np.mean(first == second), 0.1)


if __name__ == "__main__":
    tf.test.main()

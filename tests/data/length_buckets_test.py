"""Tests for bert_tf.data.length_buckets."""

import itertools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.data import length_buckets
from bert_tf.errors import UserError

_EIGHTS = length_buckets.every_multiple(128)


def _lengths(count, seed=0):
    """Returns lengths as of sentences: mostly short, a few at the limit."""
    drawn = np.random.default_rng(seed).lognormal(3.0, 0.6, count)
    return np.clip(drawn, 3, 128).astype(np.int64)


def _indices(batches):
    return np.concatenate([batch.indices for batch in batches])


def _count_positions(batches):
    """Returns the number of positions in all batches, padding included."""
    return sum(len(batch.indices) * batch.length for batch in batches)


class TrainingBatchesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        *itertools.product(
            (1, 7, 32, 33, 1000, 7013), (1, 32), ((128,), _EIGHTS)
        )
    )
    def test_batches_are_full_and_padded_just_enough(
        self, count, size, allowed
    ):
        lengths = _lengths(count)
        num_batches = int(2.5 * count / size) + 1
        batches = length_buckets.training_batches(
            lengths, size, 5, num_batches, allowed
        )
        self.assertLen(batches, num_batches)
        # A whole epoch has each index once, a partial one at most once, though
        # windows sort indices across the ends of epochs.
        times = np.bincount(_indices(batches), minlength=count)
        whole = num_batches * size // count
        self.assertEqual(times.min(), whole)
        self.assertEqual(times.sum(), num_batches * size)
        self.assertLessEqual(times.max(), whole + 1)
        for batch in batches:
            self.assertLen(batch.indices, size)
            longest = lengths[batch.indices].max()
            # A longer batch than necessary would waste computation.
            self.assertEqual(
                batch.length, min(a for a in allowed if a >= longest)
            )

    def test_order_is_a_function_of_the_seed(self):
        lengths = _lengths(500)

        def plan(seed):
            batches = length_buckets.training_batches(
                lengths, 16, seed, 60, _EIGHTS
            )
            return [(b.length, *b.indices.tolist()) for b in batches]

        self.assertEqual(plan(3), plan(3))
        # Another seed must not make equal batches in another order.
        self.assertLess(len(set(plan(3)) & set(plan(4))), 3)

    def test_one_length_is_shuffled_like_the_original(self):
        lengths = _lengths(100)
        batches = length_buckets.training_batches(lengths, 25, 0, 4, (128,))
        self.assertEqual([batch.length for batch in batches], [128] * 4)
        # The order is random, so it must not depend on the length.
        order = _indices(batches)
        self.assertNotAllEqual(order, np.arange(100))
        self.assertLess(
            abs(np.corrcoef(lengths[order], np.arange(100))[0, 1]), 0.3
        )

    def test_lengths_of_successive_batches_are_mixed(self):
        lengths = _lengths(20_000)
        batches = length_buckets.training_batches(lengths, 32, 0, 625, _EIGHTS)
        real = lengths[_indices(batches)].sum()
        self.assertLess(_count_positions(batches), 1.25 * real)
        of_batches = np.array([batch.length for batch in batches])
        correlation = np.corrcoef(of_batches[1:], of_batches[:-1])[0, 1]
        self.assertLess(abs(correlation), 0.15)

    def test_rejects_examples_that_are_too_long(self):
        with self.assertRaisesRegex(UserError, "longer than 64. .*length 65"):
            length_buckets.training_batches(
                np.array([65, 3]), 2, 0, 0, (32, 64)
            )
        with self.assertRaisesRegex(UserError, "at least 1. Received: 0"):
            length_buckets.training_batches(np.array([3]), 0, 0, 0, (32,))

    def test_no_examples_are_refused_in_training_only(self):
        none = np.zeros([0], np.int64)
        with self.assertRaisesRegex(UserError, "to train on. Received: none"):
            length_buckets.training_batches(none, 2, 0, 1, _EIGHTS)
        self.assertEmpty(length_buckets.prediction_batches(none, 2, _EIGHTS))


class PredictionBatchesTest(tf.test.TestCase):
    def test_longest_batches_come_first(self):
        batches = length_buckets.prediction_batches(_lengths(101), 8, _EIGHTS)
        self.assertAllEqual(np.sort(_indices(batches)), np.arange(101))
        found = [batch.length for batch in batches]
        self.assertEqual(found, sorted(found, reverse=True))
        self.assertLess(_count_positions(batches), 101 * 40)

    def test_one_length_keeps_the_order(self):
        batches = length_buckets.prediction_batches(_lengths(20), 8, (128,))
        self.assertAllEqual(_indices(batches), np.arange(20))


class LengthsTest(tf.test.TestCase, parameterized.TestCase):
    def test_multiples_of_eight_end_at_the_maximum(self):
        self.assertEqual(length_buckets.every_multiple(24), (8, 16, 24))
        self.assertEqual(length_buckets.every_multiple(20), (8, 16, 20))
        self.assertEqual(length_buckets.every_multiple(7), (7,))

    @parameterized.parameters(1, 2, 3, 4)
    def test_no_other_choice_has_less_padding(self, num_lengths):
        lengths = np.minimum(_lengths(300, seed=num_lengths), 60)
        choices = length_buckets.every_multiple(60)

        def cost(allowed):
            return np.array(allowed)[np.searchsorted(allowed, lengths)].sum()

        chosen = length_buckets.fewest_padding(lengths, 60, num_lengths)
        best = min(
            cost((*others, 60))
            for others in itertools.combinations(choices[:-1], num_lengths - 1)
        )
        self.assertEqual(chosen[-1], 60)
        self.assertLessEqual(set(chosen), set(choices))
        self.assertLen(chosen, num_lengths)
        self.assertEqual(cost(chosen), best)

    def test_leaves_out_useless_lengths(self):
        self.assertEqual(
            length_buckets.fewest_padding(np.array([3, 30]), 64, 4), (8, 32, 64)
        )
        self.assertEqual(
            length_buckets.fewest_padding(np.array([64, 64]), 64, 4), (64,)
        )
        self.assertEqual(
            length_buckets.fewest_padding(np.array([5]), 7, 4), (7,)
        )


if __name__ == "__main__":
    tf.test.main()

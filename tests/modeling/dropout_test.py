"""Tests for bert_tf.modeling.dropout."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.modeling import dropout

_SEEDS = tf.constant([3, 2**31 - 1, 0, 77], tf.int32)


def _mask(shape, rate=0.5, seeds=None, dropout_id=5):
    """Returns the mask as zeros and ones, <float64>[batch, ...]."""
    seeds = tf.range(shape[0]) if seeds is None else seeds
    keys = dropout.draw_keys(seeds, dropout_id)
    return dropout.draw_mask(list(shape), rate, keys).numpy().astype(float)


def _hash(value):
    """Computes the integer hash `lowbias32` with Python's integers."""
    value ^= value >> 16
    value = value * 0x7FEB352D % 2**32
    value ^= value >> 15
    value = value * 0x846CA68B % 2**32
    return value ^ value >> 16


class DropoutTest(tf.test.TestCase, parameterized.TestCase):
    def test_no_seeds_or_rate_zero_change_nothing(self):
        x = tf.reshape(tf.range(24.0), [4, 6])
        self.assertAllEqual(dropout.dropout(x, 0.5, None, 1), x)
        self.assertAllEqual(dropout.dropout(x, 0.0, _SEEDS, 1), x)
        self.assertIsNone(dropout.draw_keys(None, 1))

    @parameterized.parameters(0.1, 0.25, 0.5, 0.9)
    def test_kept_elements_are_scaled_exactly(self, rate):
        x = tf.random.stateless_normal([4, 5000], [1, 2])
        dropped = dropout.dropout(x, rate, _SEEDS, 9)
        kept = dropped.numpy() != 0
        factor = np.float32(1.0 / (1.0 - rate))
        self.assertAllEqual(dropped, np.where(kept, x * factor, 0))

    def test_bfloat16_is_scaled_before_it_is_rounded(self):
        x = tf.ones([4, 1000], tf.bfloat16)
        dropped = tf.cast(dropout.dropout(x, 0.1, _SEEDS, 9), tf.float32)
        expected = float(tf.cast(tf.cast(1 / 0.9, tf.bfloat16), tf.float32))
        self.assertAllInSet(dropped, [0.0, expected])
        self.assertGreater(np.count_nonzero(dropped), 3000)

    def test_matches_an_independent_computation(self):
        mask = _mask([4, 2, 3], 0.4, _SEEDS, dropout_id=7)
        place = 7 * 0x9E3779B9 % 2**32
        for row, seed in enumerate(_SEEDS.numpy().tolist()):
            first = _hash((_hash(seed) + place) % 2**32)
            second = _hash(_hash(seed ^ 0x9E3779B9) ^ place)
            for position in range(6):
                value = position ^ first
                value ^= value >> 16
                value = value * 0x7FEB352D % 2**32
                value = ((value ^ value >> 15) + second) % 2**32
                value = value * 0x846CA68B % 2**32
                value ^= value >> 16
                kept = value >= round(0.4 * 2**32)
                self.assertEqual(mask[row].ravel()[position], kept)

    def test_eager_graph_and_compiled_agree(self):
        x = tf.random.stateless_normal([4, 7, 9], [1, 2])
        eager = dropout.dropout(x, 0.3, _SEEDS, 2)
        spec = tf.TensorSpec([None, None, 9])
        for jit in (False, True):
            function = tf.function(
                lambda x: dropout.dropout(x, 0.3, _SEEDS, 2),
                jit_compile=jit,
                input_signature=[spec],
            )
            self.assertAllEqual(function(x), eager)


class DeriveSeedsTest(tf.test.TestCase):
    def test_every_part_has_its_own_seed(self):
        seeds = np.arange(-500, 500, dtype=np.int32)
        derived = dropout.derive_seeds(seeds, 20).numpy()
        self.assertEqual(derived.shape, (1000, 20))
        self.assertEqual(derived.dtype, np.int32)
        self.assertAllGreaterEqual(derived, 0)
        # Among 20,000 draws of 2**31 seeds, a collision is rare but possible.
        self.assertGreater(len(np.unique(derived)), 19_990)

    def test_first_seeds_do_not_depend_on_number_or_batch(self):
        derived = dropout.derive_seeds([7, -3, 11], 5)
        self.assertAllEqual(
            dropout.derive_seeds([-3], tf.constant(2)), derived[1:2, :2]
        )


if __name__ == "__main__":
    tf.test.main()

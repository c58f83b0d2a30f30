"""Tests for combinations of layers in bert_tf.modeling.heads."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import LAYER_COMBINATIONS
from bert_tf.errors import UserError
from bert_tf.modeling import heads
from tests.support import tiny_layers

_CONFIG = tiny_layers.replace(num_hidden_layers=5)
_EMBEDDINGS = tiny_layers.normal(3, 4, 8)
_LAYERS = [tiny_layers.normal(3, 4, 8, seed=n + 1) for n in range(5)]


def _build(name):
    layer = heads.LayerCombination(_CONFIG, name)
    layer.build((None, None, 8))
    return layer


def _compute(layer):
    return layer(_EMBEDDINGS, encoder_outputs=_LAYERS).numpy()


class LayerCombinationTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("embeddings", _EMBEDDINGS),
        ("second_to_last_hidden", _LAYERS[3]),
        ("last_hidden", _LAYERS[4]),
        ("concat_last_four_hidden", np.concatenate(_LAYERS[1:], axis=-1)),
    )
    def test_without_weights(self, name, expected):
        layer = _build(name)
        self.assertAllEqual(_compute(layer), expected)
        self.assertEqual(layer.width, expected.shape[-1])
        self.assertEmpty(layer.weights)

    @parameterized.parameters(
        ("weighted_sum_last_four_hidden", _LAYERS[1:]),
        ("weighted_sum_all_layers", _LAYERS),
    )
    def test_weighted_sums(self, name, summed):
        layer = _build(name)
        self.assertEqual(layer.width, 8)
        self.assertAllClose(_compute(layer), np.mean(summed, axis=0))
        tiny_layers.randomize(layer)
        exponentials = np.exp(layer.layer_weights.numpy())
        shares = exponentials / exponentials.sum()
        expected = layer.scale.numpy() * np.tensordot(shares, summed, 1)
        self.assertAllClose(_compute(layer), expected, atol=1e-6)

    def test_names_match_the_config(self):
        for name in LAYER_COMBINATIONS:
            self.assertEqual(_compute(_build(name)).shape[:2], (3, 4))

    @parameterized.parameters(
        ("first_hidden", 5, "must be one of embeddings, .*'first_hidden'"),
        ("concat_last_four_hidden", 3, "4 layers at least. Received: one of 3"),
        ("weighted_sum_last_four_hidden", 3, "4 layers at least"),
        ("second_to_last_hidden", 1, "2 layers at least. Received: one of 1"),
    )
    def test_wrong_combinations_are_refused(self, name, num_layers, message):
        config = tiny_layers.replace(num_hidden_layers=num_layers)
        with self.assertRaisesRegex(UserError, message):
            heads.LayerCombination(config, name)


if __name__ == "__main__":
    tf.test.main()

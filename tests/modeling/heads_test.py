"""Tests for bert_tf.modeling.heads."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.modeling import heads
from tests.support import tiny_layers

_POSITIONS = np.array([[3, 0], [4, 4], [1, 2]], np.int32)

_FIVE_LAYERS = tiny_layers.replace(num_hidden_layers=5)
_EMBEDDINGS = tiny_layers.normal(3, 4, 8)
_LAYERS = [tiny_layers.normal(3, 4, 8, seed=n + 1) for n in range(5)]


class HeadsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.hidden = tiny_layers.normal(3, 5, 8)
        self.table = tiny_layers.normal(19, 8, seed=1)

    def _masked_lm_head(self, **kwargs):
        head = heads.MaskedLMHead(tiny_layers.CONFIG, **kwargs)
        head.build(self.hidden.shape)
        return tiny_layers.randomize(head, seed=3)

    def test_gradient_of_the_last_token_is_no_scatter(self):
        mask = tf.sequence_mask([5, 0, 3], 5, tf.int32)
        upstream = tiny_layers.normal(3, 8, seed=2)

        @tf.function(autograph=False)
        def compute(sequence, for_inference):
            token = heads.take_last_token(sequence, mask, for_inference)
            return token, tf.gradients(token, sequence, upstream)[0]

        sequence = tf.constant(self.hidden)
        received = compute(sequence, False)
        self.assertAllEqual(received[0], self.hidden[range(3), [4, 0, 2]])
        expected = compute(sequence, True)
        for one, other in zip(received, expected, strict=True):
            self.assertAllEqual(one, other)
        graph = compute.get_concrete_function(sequence, False).graph
        for op in graph.get_operations():
            self.assertNotRegex(op.type, "Scatter|Segment")

    def test_without_positions_every_position_is_scored(self):
        head = self._masked_lm_head()
        everywhere = head(self.hidden, self.table).numpy()
        self.assertEqual(everywhere.shape, (3, 5, 19))
        chosen = head(self.hidden, self.table, masked_lm_positions=_POSITIONS)
        for row, positions in enumerate(_POSITIONS):
            self.assertAllClose(
                chosen[row], everywhere[row, positions], atol=1e-5
            )

    @parameterized.parameters(
        ("float32", 1e-6), ("mixed_bfloat16", 2e-2), ("mixed_float16", 1e-6)
    )
    def test_gradient_of_the_tied_product_matches_numpy(
        self, policy, tolerance
    ):
        rows, upstream = (
            tiny_layers.normal(6, 8),
            tiny_layers.normal(6, 19, seed=2),
        )
        table = tf.constant(self.table)
        with tf.GradientTape() as tape:
            x = tf.constant(rows)
            tape.watch([x, table])
            logits = heads._tied_product(x, table, "bfloat16" in policy)
        self.assertAllClose(logits, rows @ self.table.T, atol=1e-5)
        received = tape.gradient(logits, [x, table], upstream)
        for gradient, expected in zip(
            received, (upstream @ self.table, upstream.T @ rows), strict=True
        ):
            self.assertEqual(gradient.dtype, tf.float32)
            atol = tolerance * np.abs(expected).max()
            self.assertAllClose(gradient, expected, rtol=0, atol=atol)


def _build_combination(name):
    layer = heads.LayerCombination(_FIVE_LAYERS, name)
    layer.build((None, None, 8))
    return layer


def _combine(layer):
    return layer(_EMBEDDINGS, encoder_outputs=_LAYERS).numpy()


class LayerCombinationTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("embeddings", _EMBEDDINGS),
        ("second_to_last_hidden", _LAYERS[3]),
        ("last_hidden", _LAYERS[4]),
        ("concat_last_four_hidden", np.concatenate(_LAYERS[1:], axis=-1)),
    )
    def test_chosen_layers_are_taken_without_weights(self, name, expected):
        layer = _build_combination(name)
        self.assertAllEqual(_combine(layer), expected)
        self.assertEqual(layer.width, expected.shape[-1])
        self.assertEmpty(layer.weights)

    @parameterized.parameters(
        ("weighted_sum_last_four_hidden", _LAYERS[1:]),
        ("weighted_sum_all_layers", _LAYERS),
    )
    def test_weighted_sums_begin_as_the_mean(self, name, summed):
        layer = _build_combination(name)
        self.assertEqual(layer.width, 8)
        self.assertAllClose(_combine(layer), np.mean(summed, axis=0))
        tiny_layers.randomize(layer)
        exponentials = np.exp(layer.layer_weights.numpy())
        shares = exponentials / exponentials.sum()
        expected = layer.scale.numpy() * np.tensordot(shares, summed, 1)
        self.assertAllClose(_combine(layer), expected, atol=1e-6)

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

"""Tests for bert_tf.modeling.attention."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.modeling import attention
from bert_tf.modeling import dropout
from tests.support import tiny_layers

_MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], np.int32)


def _numpy_attention(layer, x, seen):
    """Computes attention from its definition, one head at a time."""
    heads = layer.bert_config.num_attention_heads
    size = x.shape[-1] // heads
    contexts, weights = [], []
    for head in range(heads):
        columns = slice(head * size, (head + 1) * size)
        q, k, v = (
            x @ projection.kernel.numpy()[:, columns]
            + projection.bias.numpy()[columns]
            for projection in (layer.query, layer.key, layer.value)
        )
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(size)
        scores = np.where(seen, scores, scores - 10000)
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        probs /= probs.sum(-1, keepdims=True)
        weights.append(probs)
        contexts.append(probs @ v)
    return np.concatenate(contexts, -1), np.stack(weights, 1)


class AttentionTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.x = tiny_layers.normal(3, 5, 8)
        self.layer = attention.SelfAttention(tiny_layers.CONFIG)
        self.layer.build(self.x.shape)
        tiny_layers.randomize(self.layer)

    @parameterized.product(left_to_right=(False, True), fuse=(False, True))
    def test_context_and_probs_match_numpy(self, left_to_right, fuse):
        self.layer.fuse = fuse
        attention_bias = attention.build_attention_bias(_MASK, left_to_right)
        seen = np.broadcast_to(_MASK[:, np.newaxis], (3, 5, 5)) == 1
        if left_to_right:
            seen = seen & np.tril(np.ones((5, 5), bool))
        context, probs = self.layer(self.x, attention_bias)
        expected, weights = _numpy_attention(self.layer, self.x, seen)
        self.assertAllClose(context, expected, atol=1e-5)
        self.assertAllClose(probs, weights, atol=1e-6)

    def test_attention_bias_masks_padding_and_later_tokens(self):
        self.assertAllEqual(
            attention.build_attention_bias([[1, 1, 0]]), [[[[0, 0, -10000]]]]
        )
        self.assertAllEqual(
            attention.build_attention_bias([[1, 1, 0]], left_to_right=True)[
                0, 0
            ],
            [[0, -1e4, -1e4], [0, 0, -1e4], [0, 0, -1e4]],
        )

    def test_dropout_applies_to_attention_weights(self):
        attention_bias = attention.build_attention_bias(_MASK)
        seeds = tf.constant([4, 5, 6])
        context, dropped = self.layer(
            self.x, attention_bias, dropout_seeds=seeds
        )
        _, probs = self.layer(self.x, attention_bias)
        keys = dropout.draw_keys(seeds, self.layer.dropout_id)
        kept = dropout.draw_mask([3, 2, 5, 5], 0.3, keys)
        self.assertAllClose(dropped, np.where(kept, probs / 0.7, 0), atol=1e-6)
        value = self.x @ self.layer.value.kernel + self.layer.value.bias
        value = tf.reshape(value, [3, 5, 2, 4])
        expected = np.einsum("bnqk,bknd->bqnd", dropped, value)
        self.assertAllClose(context, expected.reshape(3, 5, 8), atol=1e-5)


if __name__ == "__main__":
    tf.test.main()

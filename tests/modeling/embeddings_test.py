"""Tests for bert_tf.modeling.embeddings."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.modeling import dropout
from bert_tf.modeling import embeddings
from tests.support import tiny_layers


class EmbeddingsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.layer = embeddings.Embeddings(tiny_layers.CONFIG, dropout_id=6)
        self.layer.build((None, None))
        tiny_layers.randomize(self.layer)
        self.inputs = tiny_layers.inputs()
        self.ids = self.inputs["input_ids"]
        self.segments = self.inputs["segment_ids"]

    def _expected(self):
        total = self.layer.word_embeddings.numpy()[self.ids]
        total = total + self.layer.token_type_embeddings.numpy()[self.segments]
        total = total + self.layer.position_embeddings.numpy()[:5]
        standard = total - total.mean(-1, keepdims=True)
        standard /= standard.std(-1, keepdims=True)
        norm = self.layer.layer_norm
        return standard * norm.gamma + norm.beta

    @parameterized.parameters(False, True)
    def test_matches_numpy(self, fuse):
        self.layer.layer_norm.fuse = fuse
        received = self.layer(self.ids, self.segments)
        self.assertAllClose(received, self._expected(), atol=1e-5)

    def test_dropout_comes_last(self):
        seeds = tf.constant([1, 2, 3])
        received = self.layer(self.ids, self.segments, dropout_seeds=seeds)
        kept = dropout.draw_mask([3, 5, 8], 0.2, dropout.draw_keys(seeds, 6))
        expected = np.where(kept, self._expected() / 0.8, 0)
        self.assertAllClose(received, expected, atol=1e-5)

    def test_longest_sequence(self):
        ids = np.zeros((1, 7), np.int32)
        self.assertEqual(self.layer(ids, ids).shape, (1, 7, 8))

    def test_longer_sequence_is_refused(self):
        ids = np.zeros((1, 8), np.int32)
        message = "sequence of 8, max_position_embeddings=7"
        with self.assertRaisesRegex(UserError, message):
            self.layer(ids, ids)

    def test_gradient_is_dense_and_adds_up_repeated_ids(self):
        table = tf.Variable(tiny_layers.normal(6, 2))
        ids = tf.constant([[4, 1, 4], [0, 4, 1]])
        upstream = tiny_layers.normal(2, 3, 2, seed=5)
        with tf.GradientTape() as tape:
            rows = embeddings.lookup(tf.convert_to_tensor(table), ids)
        self.assertAllEqual(rows, table.numpy()[ids.numpy()])
        gradient = tape.gradient(rows, table, upstream)
        self.assertIsInstance(gradient, tf.Tensor)
        expected = np.zeros((6, 2), np.float32)
        np.add.at(expected, ids.numpy(), upstream)
        self.assertAllClose(gradient, expected, atol=1e-6)


if __name__ == "__main__":
    tf.test.main()

"""Tests for bert_tf.modeling.bilstm."""

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.modeling import bilstm
from tests.support import tiny_layers

_UNITS = 3
_MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], np.int32)


def _layer(**kwargs):
    layer = bilstm.BiLSTM(_UNITS, **kwargs)
    layer.build((None, None, 4))
    return tiny_layers.randomize(layer)


def _reference(layer):
    """Returns Keras' own BiLSTM with the same weights."""
    reference = keras.layers.Bidirectional(
        keras.layers.LSTM(_UNITS, return_sequences=True)
    )
    reference.build((None, None, 4))
    reference.set_weights(layer.get_weights())
    return reference


def _gradients(function, variables):
    """Returns the result and the gradients of its sum weighted by position."""
    with tf.GradientTape() as tape:
        tape.watch(variables)
        result = tf.cast(function(), tf.float32)
        factors = tiny_layers.normal(*result.shape, seed=7)
        total = tf.reduce_sum(result * factors * _MASK[..., np.newaxis])
    return result, tape.gradient(total, variables)


class BiLSTMTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.inputs = tf.constant(tiny_layers.normal(3, 5, 4))

    def test_outputs_and_gradients_equal_keras(self):
        layer = _layer()
        reference = _reference(layer)
        received, gradients = _gradients(
            lambda: layer(self.inputs, _MASK),
            [self.inputs, *(x.value for x in layer.weights)],
        )
        expected, expected_gradients = _gradients(
            lambda: reference(self.inputs, mask=_MASK.astype(bool)),
            [self.inputs, *(x.value for x in reference.weights)],
        )
        tokens = _MASK == 1
        self.assertAllClose(
            received.numpy()[tokens], expected.numpy()[tokens], atol=1e-6
        )
        self.assertAllEqual(received.numpy()[~tokens], np.zeros((6, 6)))
        for ours, theirs in zip(gradients, expected_gradients, strict=True):
            self.assertAllClose(ours, theirs, atol=1e-5)

    @parameterized.parameters("float32", "mixed_bfloat16")
    def test_padding_changes_nothing(self, policy):
        layer = _layer(dtype=policy)
        states = layer(self.inputs, _MASK)
        padded = np.concatenate(
            [self.inputs, tiny_layers.normal(3, 4, 4)], axis=1
        )
        mask = np.pad(_MASK, [(0, 0), (0, 4)])
        longer = layer(padded, mask)
        self.assertAllClose(longer[:, :5], states, atol=1e-6)
        self.assertAllEqual(longer[:, 5:], np.zeros((3, 4, 6)))
        changed = np.where(_MASK[..., np.newaxis] == 1, self.inputs, 9.0)
        self.assertAllEqual(layer(changed.astype("f4"), _MASK), states)

    def test_initial_recurrent_kernels_are_orthogonal(self):
        layer = bilstm.BiLSTM(_UNITS)
        layer.build((None, None, 4))
        forward, backward = layer.directions
        for direction in (forward, backward):
            self.assertAllEqual(
                direction.bias, [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0]
            )
            recurrent = direction.recurrent_kernel.numpy()
            self.assertAllClose(recurrent @ recurrent.T, np.eye(3), atol=1e-5)
            limit = np.sqrt(6 / (4 + 12))
            self.assertLessEqual(np.abs(direction.kernel).max(), limit)
        self.assertNotAllClose(forward.kernel, backward.kernel)


if __name__ == "__main__":
    tf.test.main()

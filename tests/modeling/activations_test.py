"""Tests for bert_tf.modeling.activations."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import HIDDEN_ACTS
from bert_tf.modeling import activations

_X = np.linspace(-6.0, 6.0, 241)


class ActivationsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*HIDDEN_ACTS)
    def test_derivative_matches_the_function(self, name):
        x = tf.constant(_X + 0.01, tf.float64)  # Avoids relu's kink at 0.
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = activations.get(name)(x)
        self.assertAllClose(
            activations.get_derivative(name)(x),
            tape.gradient(y, x),
            rtol=1e-9,
            atol=1e-9,
        )


if __name__ == "__main__":
    tf.test.main()

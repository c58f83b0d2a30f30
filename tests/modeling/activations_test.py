"""Tests for bert_tf.modeling.activations."""

import math

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import HIDDEN_ACTS
from bert_tf.errors import UserError
from bert_tf.modeling import activations

_X = np.linspace(-6.0, 6.0, 241)


def _tanh_form(x):
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + math.tanh(inner))


def _erf_form(x):
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


class ActivationsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("gelu", _tanh_form),
        ("gelu_erf", _erf_form),
        ("relu", lambda x: max(x, 0.0)),
        ("tanh", math.tanh),
        ("linear", lambda x: x),
    )
    def test_matches_the_formula(self, name, formula):
        received = activations.get(name)(tf.constant(_X, tf.float64))
        expected = [formula(x) for x in _X]
        self.assertAllClose(received, expected, rtol=1e-9, atol=1e-9)

    def test_the_two_gelu_forms_differ(self):
        x = tf.constant(_X, tf.float64)
        difference = activations.get("gelu")(x) - activations.get("gelu_erf")(x)
        self.assertBetween(np.abs(difference).max(), 3e-4, 6e-4)

    @parameterized.parameters(*HIDDEN_ACTS)
    def test_derivative_matches_the_function(self, name):
        x = tf.constant(_X + 0.01, tf.float64)  # Not at relu's corner.
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = activations.get(name)(x)
        self.assertAllClose(
            activations.get_derivative(name)(x),
            tape.gradient(y, x),
            rtol=1e-9,
            atol=1e-9,
        )

    def test_unknown_name_is_refused(self):
        for get in (activations.get, activations.get_derivative):
            with self.assertRaisesRegex(UserError, "'swish'"):
                get("swish")


if __name__ == "__main__":
    tf.test.main()

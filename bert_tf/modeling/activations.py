"""The activations of `hidden_act`, and their derivatives."""

import contextlib
import contextvars
import math

import numpy as np
import tensorflow as tf

_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715
_CUBIC_SLOPE = np.float32(3.0) * np.float32(_CUBIC)


def gelu(x):
    """Returns the tanh approximation of GELU, the original's form.

    Source: modeling.py:264-277 of the original, since its commit bee6030.
    """
    return tf.nn.gelu(x, approximate=True)


def gelu_erf(x):
    """Returns the exact GELU, the original's form before bee6030."""
    return 0.5 * x * (1.0 + tf.math.erf(x / math.sqrt(2.0)))


def _gelu_derivative(x):
    tanh = tf.math.tanh(_SQRT_2_OVER_PI * (x + _CUBIC * x * x * x))
    inner = _SQRT_2_OVER_PI * (1.0 + 3.0 * _CUBIC * x * x)
    return 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner


def _gelu_erf_derivative(x):
    density = tf.math.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    return 0.5 * (1.0 + tf.math.erf(x / math.sqrt(2.0))) + x * density


def _tanh_derivative(x):
    tanh = tf.math.tanh(x)
    return 1.0 - tanh * tanh


# In a tf.function that all layers share, operations have other names than in a
# plain graph. So TensorFlow's graph optimizer would multiply constants in
# another order, and results would round differently. The functions _ordered_*
# fix the order: `_ordered_gelu` uses MulNoNan, which is never reordered.
_is_in_function = contextvars.ContextVar("is_in_function", default=False)


@contextlib.contextmanager
def in_function():
    """Makes `get_ordered` return the `_ordered_*` functions."""
    token = _is_in_function.set(True)
    try:
        yield
    finally:
        _is_in_function.reset(token)


@tf.custom_gradient
def _ordered_gelu(x):
    half, square = 0.5 * x, tf.square(x)
    cubic = tf.raw_ops.MulNoNan(x=_CUBIC * x, y=square)
    tanh = tf.math.tanh(_SQRT_2_OVER_PI * (cubic + x))

    def gradient(upstream):
        inner = tf.raw_ops.TanhGrad(y=tanh, dy=half * upstream)
        inner *= _SQRT_2_OVER_PI
        cubic = tf.raw_ops.MulNoNan(x=_CUBIC_SLOPE * square, y=inner)
        outer = tf.raw_ops.MulNoNan(x=0.5 * (1.0 + tanh), y=upstream)
        return tf.add_n([cubic, outer, inner])

    return half * (1.0 + tanh), gradient


@tf.custom_gradient
def _ordered_gelu_erf(x):
    half, scaled = 0.5 * x, x / math.sqrt(2.0)
    total = 1.0 + tf.math.erf(scaled)

    def gradient(upstream):
        density = _SQRT_2_OVER_PI * tf.math.exp(-tf.square(scaled))
        return total * (0.5 * upstream) + density * (half * upstream)

    return half * total, gradient


_ORDERED = {"gelu": _ordered_gelu, "gelu_erf": _ordered_gelu_erf}


# Maps a name in `HIDDEN_ACTS` to the activation and its derivative. With XLA,
# these derivatives are three times as fast as TensorFlow's gradients.
_ACTIVATIONS = {
    "gelu": (gelu, _gelu_derivative),
    "gelu_erf": (gelu_erf, _gelu_erf_derivative),
    "relu": (tf.nn.relu, lambda x: tf.cast(x > 0.0, x.dtype)),
    "tanh": (tf.math.tanh, _tanh_derivative),
    "linear": (tf.identity, tf.ones_like),
}


def get(name):
    """Returns the activation `name`."""
    return _ACTIVATIONS[name][0]


def get_ordered(name):
    """Returns the activation `name`; `in_function` prefers its ordered form."""
    return (_is_in_function.get() and _ORDERED.get(name)) or get(name)


def get_derivative(name):
    """Returns the derivative of the activation `name`."""
    return _ACTIVATIONS[name][1]

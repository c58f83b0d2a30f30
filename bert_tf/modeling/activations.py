"""The activations that `hidden_act` may name."""

import math

import tensorflow as tf

from bert_tf.config import HIDDEN_ACTS
from bert_tf.errors import UserError


def gelu(x):
    """Returns the tanh approximation of GELU, the original's form.

    Source: modeling.py:264-277 of the original, since its commit bee6030.
    """
    return tf.nn.gelu(x, approximate=True)


def gelu_erf(x):
    """Returns the exact GELU, the original's form before bee6030."""
    return 0.5 * x * (1.0 + tf.math.erf(x / math.sqrt(2.0)))


_ACTIVATIONS = {
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "relu": tf.nn.relu,
    "tanh": tf.math.tanh,
    "linear": tf.identity,
}


def get(name):
    """Returns the function that `name`, one of `HIDDEN_ACTS`, stands for.

    Raises:
      UserError: If there is none of that name.
    """
    if name not in _ACTIVATIONS:
        raise UserError(
            f"`hidden_act` must be one of {', '.join(HIDDEN_ACTS)}. "
            f"Received: hidden_act={name!r}."
        )
    return _ACTIVATIONS[name]

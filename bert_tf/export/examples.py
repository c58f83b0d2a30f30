"""Parses tf.train.Examples into the input strings of a head.

Shapes:
  B: batch size.
"""

from collections.abc import Mapping

import tensorflow as tf


def spec(name: str) -> tf.TensorSpec:
    """Returns the spec of serialized Examples, <string>[B]."""
    return tf.TensorSpec([None], tf.string, name=name)


def parse(
    serialized: tf.Tensor, specs: Mapping[str, tf.TensorSpec]
) -> dict[str, tf.Tensor]:
    """Returns the features of Examples.

    Args:
      serialized: <string>[B].
      specs: The names of the features, each with the spec <string>[B] for one
        string per Example, or <string>[B, None] for any number.

    Returns:
      A tensor for each of `specs`. Examples with fewer strings than others are
      padded with "".
    """
    features = {
        name: tf.io.FixedLenFeature([], tf.string)
        if spec.shape.rank == 1
        else tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True)
        for name, spec in specs.items()
    }
    return tf.io.parse_example(serialized, features)

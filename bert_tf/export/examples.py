"""From tf.train.Examples to the strings of a head.

Shapes:
  B: batch size.
"""

from collections.abc import Mapping

import tensorflow as tf


def spec(name: str) -> tf.TensorSpec:
    """Returns what a signature of serialized Examples takes, <string>[B]."""
    return tf.TensorSpec([None], tf.string, name=name)


def parse(
    serialized: tf.Tensor, specs: Mapping[str, tf.TensorSpec]
) -> dict[str, tf.Tensor]:
    """Returns the features of Examples.

    Args:
      serialized: <string>[B].
      specs: What is wanted: the features' names, with <string>[B] where each
        Example has one string, or <string>[B, None] for any number.

    Returns:
      A tensor for each of `specs`; fewer strings than in other Examples are
      filled up with "".
    """
    features = {
        name: tf.io.FixedLenFeature([], tf.string)
        if wanted.shape.rank == 1
        else tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True)
        for name, wanted in specs.items()
    }
    return tf.io.parse_example(serialized, features)

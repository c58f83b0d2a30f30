"""Rematerialization: recomputes layers in the backward pass to save memory.

Only the input and the output of a layer are kept: the encoder takes the memory
of one layer's activations instead of all layers', for a third more work. As
dropout is a function of its arguments, results are the same, bit for bit if the
chains between the products are compiled; otherwise TensorFlow may fuse other
operations and round differently.

Source: Chen et al., 2016, "Training deep nets with sublinear memory cost".
"""

from collections.abc import Callable

import tensorflow as tf

from bert_tf.errors import UserError


def check(remat: bool, return_attention_probs: bool) -> None:
    """Checks that a model does not return what `remat` does not keep.

    Raises:
      UserError: If it does.
    """
    if remat and return_attention_probs:
        raise UserError(
            "`remat` keeps no attention probabilities, which "
            "`return_attention_probs` asks for; drop one of the two."
        )


def rematerialize(
    compute: Callable[[tf.Tensor], tf.Tensor], inputs: tf.Tensor
) -> tf.Tensor:
    """Returns compute(inputs), which the backward pass computes again.

    Args:
      compute: A function whose gradients flow to its argument and to variables
        only.
      inputs: <float>[...].
    """
    return tf.recompute_grad(compute)(inputs)


def keep_recomputation(num_local_replicas: int) -> None:
    """Keeps TensorFlow from undoing rematerialization on several devices.

    With several devices in a process, its optimizer drops the control
    dependencies that delay the recomputation until the backward pass needs it:
    all layers would be recomputed at once, and kept.

    Args:
      num_local_replicas: Devices of this process.
    """
    if num_local_replicas > 1:
        tf.config.optimizer.set_experimental_options(
            {"dependency_optimization": False}
        )

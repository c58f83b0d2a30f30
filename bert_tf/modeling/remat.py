"""Computing layers again in the backward pass, in place of keeping all.

Of a layer only its input and its output are kept: memory for the encoder falls
from all that each layer computes to that of one, for a third more work. Results
are the same, as dropout is a function of its arguments: to the last bit where
the chains between the products are compiled; else TensorFlow may join other
operations to one and round differently.

Source: Chen et al., 2016, "Training deep nets with sublinear memory cost".
"""

from collections.abc import Callable

import tensorflow as tf

from bert_tf.errors import UserError


def check(remat: bool, return_attention_probs: bool) -> None:
    """Makes sure that what a model is to return is kept.

    Raises:
      UserError: If it is not.
    """
    if remat and return_attention_probs:
        raise UserError(
            "`remat` keeps no attention probabilities, which "
            "`return_attention_probs` asks for; drop one of the two."
        )


def rematerialize(
    compute: Callable[[tf.Tensor], tf.Tensor], inputs: tf.Tensor
) -> tf.Tensor:
    """Returns compute(inputs), which the backward pass computes once more.

    Args:
      compute: Depends, where gradients flow, on its argument and on variables.
      inputs: <float>[...].
    """
    return tf.recompute_grad(compute)(inputs)


def keep_recomputation(num_local_replicas: int) -> None:
    """Keeps TensorFlow from undoing it, with several devices in a process.

    There its optimizer drops the control dependencies that hold the second
    computation back until the backward pass needs it: all of them would run at
    once, and be kept.

    Args:
      num_local_replicas: Devices of this process.
    """
    if num_local_replicas > 1:
        tf.config.optimizer.set_experimental_options(
            {"dependency_optimization": False}
        )

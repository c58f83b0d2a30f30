"""Loss scaling for float16."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from bert_tf.training import optimizer as optimizers

_FIRST_SCALE = 2.0**15
_STEPS_UNTIL_LARGER = 2000


class LossScale:
    """Dynamic loss scaling: halves on overflow, doubles after 2,000 good steps.

    Without it float16 loses small gradients (Micikevicius et al. 2018, "Mixed
    precision training", section 3.2). Create it in the strategy's scope.
    """

    def __init__(self):
        self._scale = tf.Variable(_FIRST_SCALE, trainable=False)
        self._good_steps = tf.Variable(0, trainable=False, dtype=tf.int64)

    def value(self) -> tf.Tensor:
        """Returns the current scale, <float32>[]."""
        return tf.convert_to_tensor(self._scale)

    def adapt(self, is_finite: tf.Tensor, apply: tf.Tensor) -> tf.Tensor:
        """Adapts the scale after a step, in replica context.

        Args:
          is_finite: <bool>[], whether the gradients were finite.
          apply: <bool>[], false to change nothing.

        Returns:
          <bool>[], false if they were not and the scale cannot be halved again.
        """
        scale, old = self.value(), tf.convert_to_tensor(self._good_steps)
        good_steps = tf.where(is_finite, old + 1, 0)
        is_due = good_steps >= _STEPS_UNTIL_LARGER
        grown = tf.where(is_due, scale * 2.0, scale)
        adapted = tf.where(is_finite, grown, scale / 2.0)
        good_steps = tf.where(is_due, tf.zeros_like(good_steps), good_steps)
        assign = optimizers.assign_on_replica
        assign(self._scale, tf.where(apply, adapted, scale))
        assign(self._good_steps, tf.where(apply, good_steps, old))
        return is_finite | (scale > 1.0)

    def state(self) -> dict[str, Any]:
        """Returns the JSON values that a checkpoint stores."""
        return {
            "loss_scale": float(self._scale.numpy()),
            "calm_steps": int(self._good_steps.numpy()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `state`; does nothing if none was stored."""
        if "loss_scale" in state:
            self._scale.assign(state["loss_scale"])
            self._good_steps.assign(state["calm_steps"])

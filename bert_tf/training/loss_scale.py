"""Dynamic loss scaling, without which float16 loses small gradients.

Source: Micikevicius et al. 2018, "Mixed precision training", section 3.2.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

_FIRST_SCALE = 2.0**15
_STEPS_UNTIL_LARGER = 2000


class LossScale:
    """The factor of the loss: halved on overflow, doubled after long calm.

    Make it in the scope of the strategy.
    """

    def __init__(self):
        self._scale = tf.Variable(_FIRST_SCALE, trainable=False)
        self._calm = tf.Variable(0, trainable=False, dtype=tf.int64)

    def value(self) -> tf.Tensor:
        """Returns the current scale, <float32>[]."""
        return tf.convert_to_tensor(self._scale)

    def adapt(self, is_finite: tf.Tensor) -> tf.Tensor:
        """Takes note of a step.

        Args:
          is_finite: <bool>[], whether its gradients were finite.

        Returns:
          <bool>[]: false if they were not, though nothing is left to halve.
        """
        scale = self.value()
        calm = tf.where(is_finite, tf.convert_to_tensor(self._calm) + 1, 0)
        is_due = calm >= _STEPS_UNTIL_LARGER
        grown = tf.where(is_due, scale * 2.0, scale)
        self._scale.assign(tf.where(is_finite, grown, scale / 2.0))
        self._calm.assign(tf.where(is_due, tf.zeros_like(calm), calm))
        return is_finite | (scale > 1.0)

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint has to keep, as JSON values."""
        return {
            "loss_scale": float(self._scale.numpy()),
            "calm_steps": int(self._calm.numpy()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Sets it to what `state` returned; leaves it if nothing was kept."""
        if "loss_scale" in state:
            self._scale.assign(state["loss_scale"])
            self._calm.assign(state["calm_steps"])

"""The arithmetic of one update, the same for all of our optimizers.

Per weight, with gradient g after t updates (optimization.py:87-175 of the
original; Loshchilov and Hutter 2019; You et al. 2020, Algorithm 2):

    m = beta_1 m + (1 - beta_1) g
    v = beta_2 v + (1 - beta_2) g^2
    u = (m / c1) / (sqrt(v / c2) + epsilon) + decay * weight
    weight -= learning_rate * trust * u

The original has c1 = c2 = 1, AdamW and LAMB have c = 1 - beta^(t + 1). trust is
1, but for LAMB |weight| / |u|.
"""

import dataclasses
import functools
import math

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class UpdateRule:
    """The constants of the rule at the top of this file.

    Attributes:
      beta_1: Share of m that stays.
      beta_2: Share of v that stays.
      epsilon: Added to the square root.
      weight_decay_rate: The factor of the weight in its own update.
      bias_correction: Whether c1 and c2 undo the start of m and v at 0.
      trust_ratio: Whether the update is scaled to the norm of the weight.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    weight_decay_rate: float = 0.01
    bias_correction: bool = False
    trust_ratio: bool = False

    def without_decay(self) -> "UpdateRule":
        """Returns the rule for biases and layer normalisation."""
        return dataclasses.replace(
            self, weight_decay_rate=0.0, trust_ratio=False
        )


def update(
    rule: UpdateRule,
    weight: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    gradient: tf.Tensor,
    learning_rate: tf.Tensor,
    step: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Computes one update of one weight; pure.

    Args:
      rule: The constants.
      weight: <float32>[...].
      m: <float32>[...], the mean of the gradients.
      v: <float32>[...], the mean of their squares.
      gradient: <float32>[...].
      learning_rate: <float32>[].
      step: <int64>[], updates done before this one.

    Returns:
      The new weight, m and v.
    """
    m = rule.beta_1 * m + (1.0 - rule.beta_1) * gradient
    v = rule.beta_2 * v + (1.0 - rule.beta_2) * tf.square(gradient)
    mean, mean_square = m, v
    if rule.bias_correction:
        count = tf.cast(step, tf.float32) + 1.0
        # expm1, because 1 - 0.999 has but four good digits in float32.
        mean = m / -tf.math.expm1(count * math.log(rule.beta_1))
        mean_square = v / -tf.math.expm1(count * math.log(rule.beta_2))
    change = mean / (tf.sqrt(mean_square) + rule.epsilon)
    if rule.weight_decay_rate:
        change += rule.weight_decay_rate * weight
    if rule.trust_ratio:
        weight_norm = tf.norm(weight)
        change_norm = tf.norm(change)
        known = (weight_norm > 0) & (change_norm > 0)
        ratio = tf.math.divide_no_nan(weight_norm, change_norm)
        change *= tf.where(known, ratio, 1.0)
    return weight - learning_rate * change, m, v


# In the name of the function that `guarded_update` returns.
COMPILED_NAME = "update_of_weight"


@functools.cache
def guarded_update(rule: UpdateRule, jit: bool = True):
    """Returns `update` with what goes before it.

    Clipping, unscaling and the decision to skip a step with an infinite
    gradient cost a pass over all gradients each if they are done on their own.

    Args:
      rule: The constants.
      jit: Whether XLA makes one pass over memory of it.
    """

    # Weights of many shapes share it, so no shape may be generalised away.
    @tf.function(
        jit_compile=jit or None, autograph=False, reduce_retracing=False
    )
    def update_of_weight(
        weight, m, v, gradient, scale, learning_rate, step, apply
    ):
        old = (weight, m, v)
        new = update(rule, *old, gradient * scale, learning_rate, step)
        return [
            tf.where(apply, after, before)
            for after, before in zip(new, old, strict=True)
        ]

    return update_of_weight


def clip_factor(norm: tf.Tensor, clip_norm: float | None) -> tf.Tensor:
    """Returns the factor that brings gradients to at most `clip_norm`.

    Args:
      norm: <float32>[], the global norm of the gradients.
      clip_norm: The most it may be, or None.
    """
    if clip_norm is None:
        return tf.ones_like(norm)
    # The arithmetic of tf.clip_by_global_norm.
    return clip_norm * tf.minimum(1.0 / norm, 1.0 / clip_norm)

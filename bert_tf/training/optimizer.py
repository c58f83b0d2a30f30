"""BERT's Adam, AdamW and LAMB: one update rule with three presets.

Per weight, with gradient g after t updates (optimization.py:87-175 of the
original; Loshchilov and Hutter, 2019; You et al., 2020, Algorithm 2):

    m = beta_1 m + (1 - beta_1) g
    v = beta_2 v + (1 - beta_2) g^2
    u = (m / c1) / (sqrt(v / c2) + epsilon) + decay * weight
    weight -= learning_rate * trust * u

The original has c1 = c2 = 1; AdamW and LAMB have c = 1 - beta^(t + 1). trust is
1, or |weight| / |u| for LAMB. For g = 0.1 in the first update and no decay, u
is 0.01 / sqrt(0.00001) = 3.16 in the original, and 0.1 / 0.1 = 1 in AdamW.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from bert_tf import errors
from bert_tf.config import check_bools
from bert_tf.errors import UserError

# Variables with one of these in their names do not decay, and LAMB does not
# scale their updates (optimization.py:59-66 of the original).
EXCLUDED_FROM_DECAY = ("LayerNorm", "layer_norm", "bias")
SCHEDULES = ("linear", "wsd")
_DECAY_SHARE = 0.2
# `xla` recognizes functions that update weights by this part of their names.
COMPILED_NAME = "update_of_weight"


@keras.saving.register_keras_serializable(package="bert_tf")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """The original's learning rate: linear warm-up, then linear decay to 0.

    The decay begins at step 0, so the rate drops when the warm-up ends. With a
    warm-up of 100 of 1,000 steps, the rate at the steps 99, 100 and 1,000 is
    `learning_rate` times 0.99, 0.9 and 0 (optimization.py:29-54).

    Args:
      learning_rate: The rate at which the warm-up ends.
      num_train_steps: The step at which the rate reaches 0.
      num_warmup_steps: Steps of the warm-up.
      first_step: The step at which the schedule begins, for the second phase of
        a run. All other arguments count steps from `first_step`.
      num_decay_steps: The number of steps at the end in which the rate decays;
        before, it is constant. None means all steps.

    Call arguments:
      step: <int64>[], updates done before this one.

    Returns:
      <float32>[].
    """

    def __init__(
        self,
        learning_rate: float,
        num_train_steps: int,
        num_warmup_steps: int = 0,
        first_step: int = 0,
        num_decay_steps: int | None = None,
    ):
        super().__init__()
        self.learning_rate = learning_rate
        self.num_train_steps = num_train_steps
        self.num_warmup_steps = num_warmup_steps
        self.first_step = first_step
        self.num_decay_steps = num_decay_steps

    def __call__(self, step):
        if self.first_step:
            step = tf.maximum(step - self.first_step, 0)
        step = tf.cast(step, tf.float32)
        last = tf.cast(self.num_train_steps, tf.float32)
        if self.num_decay_steps is None:
            rest = 1.0 - tf.minimum(step, last) / last
        else:
            rest = (last - tf.minimum(step, last)) / self.num_decay_steps
        rate = self.learning_rate * tf.minimum(rest, 1.0)
        if not self.num_warmup_steps:
            return rate
        warmup = self.learning_rate * (step / self.num_warmup_steps)
        return tf.where(step < self.num_warmup_steps, warmup, rate)

    def get_config(self) -> dict[str, Any]:
        return {
            "learning_rate": self.learning_rate,
            "num_train_steps": self.num_train_steps,
            "num_warmup_steps": self.num_warmup_steps,
            "first_step": self.first_step,
            "num_decay_steps": self.num_decay_steps,
        }


@dataclasses.dataclass(frozen=True)
class UpdateRule:
    """The constants of the update rule at the top of this file.

    Attributes:
      weight_decay_rate: The constant `decay` of the rule.
      bias_correction: Whether c1 and c2 correct the bias of m and v toward 0.
      trust_ratio: Whether the update is multiplied by |weight| / |u|.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    weight_decay_rate: float = 0.01
    bias_correction: bool = False
    trust_ratio: bool = False


def update(
    rule: UpdateRule,
    weight: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    gradient: tf.Tensor,
    learning_rate: tf.Tensor,
    step: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns weight, m and v, <float32>[...] each, after one update.

    `learning_rate` is <float32>[]; `step` <int64>[] counts earlier updates.
    """
    m = rule.beta_1 * m + (1.0 - rule.beta_1) * gradient
    v = rule.beta_2 * v + (1.0 - rule.beta_2) * tf.square(gradient)
    mean, mean_square = m, v
    if rule.bias_correction:
        count = tf.cast(step, tf.float32) + 1.0
        # In float32, 1 - 0.999 has only four correct digits, so use expm1.
        mean = m / -tf.math.expm1(count * math.log(rule.beta_1))
        mean_square = v / -tf.math.expm1(count * math.log(rule.beta_2))
    change = mean / (tf.sqrt(mean_square) + rule.epsilon)
    if rule.weight_decay_rate:
        change += rule.weight_decay_rate * weight
    if rule.trust_ratio:
        weight_norm = tf.norm(weight)
        change_norm = tf.norm(change)
        is_defined = (weight_norm > 0) & (change_norm > 0)
        ratio = tf.math.divide_no_nan(weight_norm, change_norm)
        change *= tf.where(is_defined, ratio, 1.0)
    return weight - learning_rate * change, m, v


@functools.cache
def guarded_update(rule: UpdateRule, jit: bool = True):
    """Returns a function that scales and applies a gradient if `apply` is true.

    Separate operations to clip, unscale and skip a gradient would each take a
    pass over all gradients. With `jit`, XLA fuses the update into one pass.
    """

    # Trace one graph per shape: with reduce_retracing, shapes would be unknown.
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


@functools.cache
def _shared_update(rule: UpdateRule, dtype: tf.DType):
    """Returns a function that updates variables of any shape, by handles.

    With a graph for each of hundreds of weights, updates would take half of the
    time before the first step of `fit`, and half of each step.
    """
    gradient, rate = (tf.TensorSpec(shape, dtype) for shape in (None, []))

    # Without _noinline, TensorFlow would copy this graph for every weight.
    @tf.function(
        input_signature=[
            [tf.TensorSpec([], tf.resource)] * 3,
            gradient,
            rate,
            tf.TensorSpec([], tf.int64),
        ],
        autograph=False,
        experimental_attributes={"_noinline": True},
    )
    def shared_update(handles, *arguments):
        old = [
            tf.raw_ops.ReadVariableOp(resource=x, dtype=dtype) for x in handles
        ]
        new = update(rule, *old, *arguments)
        for handle, value in zip(handles, new, strict=True):
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    return shared_update


def assign_on_replica(variable: tf.Variable, value: tf.Tensor) -> tf.Operation:
    """Assigns this replica's copy of a variable.

    All replicas must assign equal values. In replica context, `variable.assign`
    would raise an error. Outside of a strategy, assigns the variable itself.
    """
    return tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def clip_factor(norm: tf.Tensor, clip_norm: float | None) -> tf.Tensor:
    """Returns the factor, <float32>[], that clips gradients to `clip_norm`.

    `norm` <float32>[] is their global norm. If `clip_norm` is None, returns 1.
    """
    if clip_norm is None:
        return tf.ones_like(norm)
    # Use the formula of tf.clip_by_global_norm, so that results round equally.
    return clip_norm * tf.minimum(1.0 / norm, 1.0 / clip_norm)


@keras.saving.register_keras_serializable(package="bert_tf")
class BertOptimizer(keras.optimizers.Optimizer):
    """An optimizer with the `UpdateRule` at the top of this file.

    Works with `compile` and `fit` like any Keras optimizer. The training step
    calls `update_weight` instead, which needs only one pass over memory.

    Args:
      learning_rate: A number, or a schedule called with the count of updates.
      beta_1 to trust_ratio: See `UpdateRule`.
      exclude_from_decay: Regular expressions; matching variables do not decay.
      global_clipnorm: Maximum global norm of the gradients, or None.
      **kwargs: As for `keras.optimizers.Optimizer`.

    Attributes:
      trained_variables: The variables that the optimizer was built with.
    """

    def __init__(
        self,
        learning_rate=1e-4,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        weight_decay_rate=0.01,
        bias_correction=False,
        trust_ratio=False,
        exclude_from_decay=EXCLUDED_FROM_DECAY,
        global_clipnorm=1.0,
        name="bert_adam",
        **kwargs,
    ):
        check_bools(bias_correction=bias_correction, trust_ratio=trust_ratio)
        super().__init__(
            learning_rate=learning_rate,
            global_clipnorm=global_clipnorm,
            name=name,
            **kwargs,
        )
        self.rule = UpdateRule(
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            weight_decay_rate=weight_decay_rate,
            bias_correction=bias_correction,
            trust_ratio=trust_ratio,
        )
        self.exclude_from_decay = tuple(exclude_from_decay)

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.trained_variables = tuple(variables)
        add = self.add_variable_from_reference
        self._adam_m = [add(v, name="adam_m") for v in variables]
        self._adam_v = [add(v, name="adam_v") for v in variables]
        self._rules = [self._choose_rule(v.path) for v in variables]
        self._rate_factors = [1.0] * len(self.trained_variables)

    def _choose_rule(self, name):
        if any(re.search(part, name) for part in self.exclude_from_decay):
            return dataclasses.replace(
                self.rule, weight_decay_rate=0.0, trust_ratio=False
            )
        return self.rule

    def slots(self, variable) -> tuple[keras.Variable, keras.Variable]:
        """Returns the m and v of a variable."""
        index = self._get_variable_index(variable)
        return self._adam_m[index], self._adam_v[index]

    def rule_for(self, variable) -> UpdateRule:
        """Returns the rule for a variable, chosen by its name."""
        return self._rules[self._get_variable_index(variable)]

    def set_rate_factors(self, factor_of: Callable[[str], float]) -> None:
        """Sets the learning rate factor of each variable, given its path."""
        self._rate_factors = [
            factor_of(variable.path) for variable in self.trained_variables
        ]

    def _rate_factor(self, variable):
        return self._rate_factors[self._get_variable_index(variable)]

    def learning_rate_at(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the learning rate, <float32>[], after `step` updates."""
        schedule = self._learning_rate
        if isinstance(
            schedule, keras.optimizers.schedules.LearningRateSchedule
        ):
            return tf.cast(schedule(step), tf.float32)
        return tf.cast(self.learning_rate, tf.float32)

    def update_step(self, gradient, variable, learning_rate):
        # Hundreds of weights each add these operations, so keep them few.
        rate = tf.cast(learning_rate, variable.dtype)
        if (factor := self._rate_factor(variable)) != 1.0:
            rate *= factor
        rule = self.rule_for(variable)
        targets = (variable, *(slot.value for slot in self.slots(variable)))
        step = self.iterations if rule.bias_correction else tf.constant(0)
        gradient = tf.cast(gradient, variable.dtype)
        arguments = (rate, tf.cast(step, tf.int64))
        # TensorFlow orders LAMB's products by shape. With the shared function,
        # which knows no shapes, results would round differently.
        if rule.trust_ratio or tf.executing_eagerly():
            gradient = tf.ensure_shape(gradient, variable.shape)
            old = [tf.convert_to_tensor(x) for x in targets]
            new = update(rule, *old, gradient, *arguments)
            for target, value in zip(targets, new, strict=True):
                self.assign(target, value)
            return
        handles = [target.handle for target in targets]
        _shared_update(rule, variable.dtype)(handles, gradient, *arguments)

    def update_weight(
        self, variable, gradient, *, jit=True, **scalars
    ) -> list[tf.Operation]:
        """Updates one variable on each replica that calls this method.

        Args:
          variable: A variable that the optimizer was built with.
          gradient: <float32>[...], summed over the replicas.
          jit: Whether to compile the update.
          **scalars: `scale` <float32>[], the factor of the gradient;
            `learning_rate` <float32>[]; `step` <int64>[], updates done before;
            `apply` <bool>[], false to change nothing.

        Returns:
          The assignments, if called in a graph.
        """
        if (factor := self._rate_factor(variable)) != 1.0:
            scalars["learning_rate"] *= factor
        targets = (variable, *self.slots(variable))
        old = [tf.convert_to_tensor(target) for target in targets]
        update_one = guarded_update(self.rule_for(variable), jit)
        new = update_one(*old, gradient, **scalars)
        return [
            assign_on_replica(target.value, value)
            for target, value in zip(targets, new, strict=True)
        ]

    def get_config(self) -> dict[str, Any]:
        values = dataclasses.asdict(self.rule)
        values["exclude_from_decay"] = list(self.exclude_from_decay)
        return super().get_config() | values


_PRESETS: dict[str, dict[str, Any]] = {
    "bert_adam": {},
    # PyTorch and Optax have this epsilon for AdamW, too.
    "adamw": {"bias_correction": True, "epsilon": 1e-8},
    "lamb": {"bias_correction": True, "trust_ratio": True},
}


def build_optimizer(
    name: str = "bert_adam",
    learning_rate: float = 1e-4,
    num_train_steps: int | None = None,
    num_warmup_steps: int = 0,
    weight_decay_rate: float = 0.01,
    schedule_start_step: int = 0,
    schedule: str = "linear",
    **kwargs: Any,
) -> BertOptimizer:
    """Returns an optimizer for `compile` and `fit`, or for the training step.

    Args:
      name: "bert_adam", BERT's own; "adamw", with bias correction; or "lamb".
      learning_rate: The peak rate.
      num_train_steps: The schedule's last step; None keeps the rate constant.
      num_warmup_steps: Steps of linear warm-up.
      weight_decay_rate: Decoupled weight decay.
      schedule_start_step: The step at which the schedule begins.
      schedule: "linear" is BERT's own, warm-up and then decay. "wsd" (warm-up,
        stable, decay) decays only over the last fifth (Hu et al., 2024,
        "MiniCPM", section 4).
      **kwargs: Further arguments of `BertOptimizer`.

    Raises:
      UserError: For an unknown name, or a warm-up without a schedule.

    Example:
      >>> optimizer = bert_tf.build_optimizer(
      ...     learning_rate=5e-5, num_train_steps=1000, num_warmup_steps=100
      ... )
      >>> optimizer.name, float(optimizer.learning_rate)  # At step 0.
      ('bert_adam', 0.0)
    """
    errors.require_choice("name", name, _PRESETS)
    errors.require_choice("schedule", schedule, SCHEDULES)
    known = errors.arguments_of(BertOptimizer)
    errors.check_arguments("build_optimizer", kwargs, known)
    if num_train_steps is None and num_warmup_steps:
        raise UserError(
            "A warm-up needs `num_train_steps`, the length of the schedule. "
            f"Received: num_warmup_steps={num_warmup_steps}."
        )
    rate: Any = learning_rate
    if num_train_steps is not None:
        steps = num_train_steps - schedule_start_step
        if num_warmup_steps > steps:
            logging.warning(
                "num_warmup_steps=%d is more than the schedule's %d steps, so "
                "the learning rate ends at %.2g instead of reaching %.2g.",
                num_warmup_steps,
                steps,
                learning_rate * steps / num_warmup_steps,
                learning_rate,
            )
        rate = WarmupLinearDecay(
            learning_rate,
            steps,
            num_warmup_steps,
            schedule_start_step,
            math.ceil(_DECAY_SHARE * steps) if schedule == "wsd" else None,
        )
    settings = _PRESETS[name] | {"weight_decay_rate": weight_decay_rate}
    return BertOptimizer(rate, name=name, **(settings | kwargs))

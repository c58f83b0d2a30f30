"""The original's optimizer, AdamW and LAMB: one rule with three presets."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.training.update_rule import UpdateRule
from bert_tf.training.update_rule import guarded_update
from bert_tf.training.update_rule import update

# Variables whose name contains one of these are not decayed, and LAMB takes
# their update as it is (optimization.py:59-66 of the original).
EXCLUDED_FROM_DECAY = ("LayerNorm", "layer_norm", "bias")


@keras.saving.register_keras_serializable(package="bert_tf")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """The original's learning rate: linear warm-up, then linear decay to 0.

    At the end of the warm-up it drops by num_warmup_steps / num_train_steps,
    as the decay has been running all along (optimization.py:29-54).

    Args:
      learning_rate: The rate that the warm-up aims at.
      num_train_steps: The step at which the rate gets 0.
      num_warmup_steps: Steps of the warm-up.
      first_step: The step at which the schedule begins, as for the second
        phase of a run that counts on from the first; all of the above count
        from there.

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
    ):
        super().__init__()
        self.learning_rate = learning_rate
        self.num_train_steps = num_train_steps
        self.num_warmup_steps = num_warmup_steps
        self.first_step = first_step

    def __call__(self, step):
        if self.first_step:
            step = tf.maximum(step - self.first_step, 0)
        step = tf.cast(step, tf.float32)
        last = tf.cast(self.num_train_steps, tf.float32)
        rate = self.learning_rate * (1.0 - tf.minimum(step, last) / last)
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
        }


@keras.saving.register_keras_serializable(package="bert_tf")
class BertOptimizer(keras.optimizers.Optimizer):
    """An optimizer of the family that `UpdateRule` describes.

    It serves `compile` and `fit` like any other of Keras. The training loop
    calls `update_weight` instead, which does the same in one pass.

    Args:
      learning_rate: A number or a schedule of the updates done so far.
      beta_1: See `UpdateRule`.
      beta_2: See `UpdateRule`.
      epsilon: See `UpdateRule`.
      weight_decay_rate: See `UpdateRule`.
      bias_correction: See `UpdateRule`.
      trust_ratio: See `UpdateRule`.
      exclude_from_decay: Patterns of the names that are not decayed.
      global_clipnorm: Most that the norm of all gradients may be, or None.
      name: The optimizer's name.
      **kwargs: As for `keras.optimizers.Optimizer`.

    Attributes:
      trained_variables: What it was built with.
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
        self._adam_m = [self._add_slot(v, "adam_m") for v in variables]
        self._adam_v = [self._add_slot(v, "adam_v") for v in variables]
        self._rules = [self._choose_rule(v.path) for v in variables]
        self._rate_factors = [1.0] * len(self.trained_variables)

    def _choose_rule(self, name):
        if any(re.search(part, name) for part in self.exclude_from_decay):
            return self.rule.without_decay()
        return self.rule

    def _add_slot(self, variable, name):
        return self.add_variable_from_reference(variable, name=name)

    def slots(self, variable) -> tuple[keras.Variable, keras.Variable]:
        """Returns the m and v of a variable."""
        index = self._get_variable_index(variable)
        return self._adam_m[index], self._adam_v[index]

    def rule_for(self, variable) -> UpdateRule:
        """Returns the rule that a variable's name asks for."""
        return self._rules[self._get_variable_index(variable)]

    def set_rate_factors(self, factor_of: Callable[[str], float]) -> None:
        """Lets variables learn at rates of their own.

        Args:
          factor_of: Returns what the rate of a variable is multiplied with,
            given its path.
        """
        self._rate_factors = [
            factor_of(variable.path) for variable in self.trained_variables
        ]

    def _rate_factor(self, variable):
        return self._rate_factors[self._get_variable_index(variable)]

    def learning_rate_at(self, step: tf.Tensor) -> tf.Tensor:
        """Returns <float32>[], the rate after `step` updates."""
        schedule = self._learning_rate
        if isinstance(
            schedule, keras.optimizers.schedules.LearningRateSchedule
        ):
            return tf.cast(schedule(step), tf.float32)
        return tf.cast(self.learning_rate, tf.float32)

    def update_step(self, gradient, variable, learning_rate):
        m, v = self.slots(variable)
        old = tuple(tf.convert_to_tensor(x) for x in (variable, m, v))
        new = update(
            self.rule_for(variable),
            *old,
            tf.cast(gradient, variable.dtype),
            tf.cast(learning_rate, variable.dtype)
            * self._rate_factor(variable),
            tf.convert_to_tensor(self.iterations),
        )
        for target, value in zip((variable, m, v), new, strict=True):
            self.assign(target, value)

    def update_weight(
        self, strategy, variable, gradient, *, jit=True, **scalars
    ) -> None:
        """Updates one variable on every device, for the training loop.

        To be called in cross-replica context.

        Args:
          strategy: The `tf.distribute.Strategy`.
          variable: One that the optimizer was built with.
          gradient: <float32>[...], added up over the replicas; with several
            replicas a distributed value.
          jit: Whether to compile the update.
          **scalars: `scale` <float32>[], to multiply the gradient with;
            `learning_rate` <float32>[]; `step` <int64>[], updates done before;
            `apply` <bool>[], false to leave everything as it is.
        """
        update_one = guarded_update(self.rule_for(variable), jit)
        m, v = self.slots(variable)
        factor = self._rate_factor(variable)
        # Not where it is 1: a product would be one more operation a weight.
        if factor != 1.0:
            scalars["learning_rate"] *= factor

        def on_device(weight, m, v, gradient):
            targets = (weight, m, v)
            old = [target.read_value() for target in targets]
            new = update_one(*old, gradient, **scalars)
            for target, value in zip(targets, new, strict=True):
                target.assign(value, read_value=False)

        strategy.extended.update(
            variable.value, on_device, args=(m.value, v.value, gradient)
        )

    def get_config(self) -> dict[str, Any]:
        values = dataclasses.asdict(self.rule)
        values["exclude_from_decay"] = list(self.exclude_from_decay)
        return super().get_config() | values


_PRESETS: dict[str, dict[str, Any]] = {
    "bert_adam": {},
    # PyTorch's and optax' epsilon.
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
    **kwargs: Any,
) -> BertOptimizer:
    """Returns an optimizer for `compile` and `fit`, or for the training loop.

    Args:
      name: "bert_adam", the original's; "adamw", with bias correction; "lamb".
      learning_rate: The peak rate.
      num_train_steps: The step at which the schedule ends; None keeps the rate
        constant.
      num_warmup_steps: Steps of linear warm-up.
      weight_decay_rate: Decoupled weight decay.
      schedule_start_step: The step at which the schedule begins.
      **kwargs: Further arguments of `BertOptimizer`.

    Raises:
      UserError: For an unknown name, or a warm-up without a schedule.
    """
    if name not in _PRESETS:
        raise UserError(
            f"The optimizer must be one of {', '.join(_PRESETS)}. Received: "
            f"{name!r}."
        )
    if num_train_steps is None and num_warmup_steps:
        raise UserError(
            "A warm-up needs `num_train_steps`, the length of the schedule. "
            f"Received: num_warmup_steps={num_warmup_steps}."
        )
    rate: Any = learning_rate
    if num_train_steps is not None:
        rate = WarmupLinearDecay(
            learning_rate,
            num_train_steps - schedule_start_step,
            num_warmup_steps,
            schedule_start_step,
        )
    settings = _PRESETS[name] | {"weight_decay_rate": weight_decay_rate}
    return BertOptimizer(rate, name=name, **(settings | kwargs))

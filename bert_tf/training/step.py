"""The training step, its loss scaling, and the loop over steps in one graph.

A step is split over replicas and, within a replica, over micro-batches. The
counts of the whole step are summed first, so that the losses of all parts add
up to the loss of the whole; then gradients are summed, clipped once and applied
once.

Shapes:
  B: examples of a step, all replicas and micro-batches.
  R: examples of a replica.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.distribute.batches import StepPlan
from bert_tf.training import optimizer as optimizers
from bert_tf.training.losses import Objective
from bert_tf.training.memory import MemoryWatch
from bert_tf.training.xla import Compilation

_STEP_METRICS = ("learning_rate", "grad_norm")

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

    def adapt(self, is_finite: tf.Tensor) -> tf.Tensor:
        """Adapts the scale after a step.

        Args:
          is_finite: <bool>[], whether the gradients were finite.

        Returns:
          <bool>[], false if they were not and the scale cannot be halved again.
        """
        scale = self.value()
        good_steps = tf.where(
            is_finite, tf.convert_to_tensor(self._good_steps) + 1, 0
        )
        is_due = good_steps >= _STEPS_UNTIL_LARGER
        grown = tf.where(is_due, scale * 2.0, scale)
        self._scale.assign(tf.where(is_finite, grown, scale / 2.0))
        self._good_steps.assign(
            tf.where(is_due, tf.zeros_like(good_steps), good_steps)
        )
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


class TrainingStep:
    """Computes gradients and updates the weights, one or more steps per call.

    Args:
      strategy: The strategy in whose scope model and optimizer were built.
      model: A model of `bert_tf.modeling`, with any head.
      optimizer: A `BertOptimizer`, built with the variables to train; its
        `iterations` count the steps.
      scale_loss: Whether to scale the loss against underflow, for float16. A
        step whose gradient overflows then counts, but changes no weight.
      compilation: What XLA compiles; by default the chains of the model.
      memory_watch: Logs the memory of the steps, if given.

    Attributes:
      model: The model.
      optimizer: The optimizer.
      loss_scale: The `LossScale`, or None.
      compiled: A description of what XLA compiled; empty before the first step.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model,
        objective: Objective,
        optimizer: optimizers.BertOptimizer,
        plan: StepPlan,
        scale_loss: bool = False,
        compilation: Compilation | None = None,
        memory_watch: MemoryWatch | None = None,
    ):
        self._strategy = strategy
        self.model = model
        self.objective = objective
        self.optimizer = optimizer
        self.plan = plan
        self._variables = optimizer.trained_variables
        self._compilation = compilation or Compilation()
        self._compilation.check(len(strategy.extended.worker_devices))
        self._compute = self._compilation.wrap(self._replica_gradients)
        self._memory_watch = memory_watch
        self.compiled = ""
        self._metric_names = objective.metrics + _STEP_METRICS
        self.loss_scale = None
        if scale_loss:
            self._metric_names += ("loss_scale",)
            with strategy.scope():
                self.loss_scale = LossScale()

    @property
    def global_step(self) -> int:
        """The number of steps done."""
        return int(self.optimizer.iterations.numpy())

    def run(
        self, iterator: Iterator[dict[str, tf.Tensor]], num_steps: int
    ) -> tuple[bool, dict[str, float]]:
        """Runs some steps in one call into the graph.

        `iterator` yields each replica's rows of the batch of a step.

        Returns:
          True if loss and gradients were finite, and the metrics of the last
          step, computed before its update. If a step is not finite, the loop
          stops before its update and the metrics are those of that step.

        Raises:
          UserError: If memory is exhausted.
        """
        watch = self._memory_watch
        if watch is None:
            return self._run_steps(iterator, num_steps)
        watch.before_step()
        try:
            results = self._run_steps(iterator, num_steps)
        except (tf.errors.ResourceExhaustedError, MemoryError) as error:
            explanation = watch.explain(error)
            if explanation is None:
                raise
            raise explanation from error
        watch.after_steps(num_steps)
        return results

    def _run_steps(self, iterator, num_steps):
        if not self.compiled:
            traced = self._run.get_concrete_function(
                iterator, tf.TensorSpec([], tf.int32)
            )
            self.compiled = self._compilation.describe(traced.graph)
            logging.info("%s", self.compiled)
        is_finite, metrics = self._run(iterator, tf.constant(num_steps))
        values = {name: float(value) for name, value in metrics.items()}
        return bool(is_finite), values

    @tf.function(autograph=False, reduce_retracing=True)
    def _run(self, iterator, num_steps):
        def is_unfinished(done, is_finite, metrics):
            del metrics
            return (done < num_steps) & is_finite

        def run_next(done, is_finite, metrics):
            del is_finite, metrics
            is_finite, metrics = self._run_step(next(iterator))
            return done + 1, is_finite, metrics

        nothing = dict.fromkeys(self._metric_names, tf.constant(0.0))
        _, is_finite, metrics = tf.while_loop(
            is_unfinished,
            run_next,
            (tf.constant(0), tf.constant(True), nothing),
            parallel_iterations=1,
        )
        return is_finite, metrics

    def _run_step(self, batch):
        """Runs one step, in cross-replica context."""
        strategy = self._strategy
        count = self._add_up(strategy.run(self.objective.count, (batch,)))
        gradients, sums = strategy.run(
            self._compute, (batch, count, self._scale())
        )
        sums = {name: self._add_up(value) for name, value in sums.items()}
        metrics = self.objective.normalize(sums, count)
        gradients = strategy.extended.batch_reduce_to(
            tf.distribute.ReduceOp.SUM,
            [
                (gradient, variable.value)
                for gradient, variable in zip(
                    gradients, self._variables, strict=True
                )
            ],
        )
        is_finite, applied = self._apply(gradients, metrics["loss"])
        return is_finite, metrics | applied

    def _add_up(self, value):
        """Returns the sum over the replicas."""
        reduce = self._strategy.reduce
        return reduce(tf.distribute.ReduceOp.SUM, value, axis=None)

    def _scale(self):
        if self.loss_scale is None:
            return tf.constant(1.0)
        return self.loss_scale.value()

    def _replica_gradients(self, rows, count, scale):
        """Returns gradients and sums of a replica's rows, [R, ...]."""
        parts = self.plan.num_micro_batches
        if parts == 1:
            return self._gradients(rows, count, scale)
        size = self.plan.micro_batch_size

        def add_part(index, so_far):
            part = {
                name: _slice(value, index * size, size)
                for name, value in rows.items()
            }
            added = self._gradients(part, count, scale)
            return index + 1, tf.nest.map_structure(tf.add, so_far, added)

        _, total = tf.while_loop(
            lambda index, _: index < parts,
            add_part,
            (tf.constant(0), self._zeros()),
            parallel_iterations=1,  # More would need more memory.
        )
        return total

    def _zeros(self):
        gradients = [tf.zeros(v.shape, v.dtype) for v in self._variables]
        return gradients, dict.fromkeys(self.objective.sums, tf.constant(0.0))

    def _gradients(self, rows, count, scale):
        """Returns gradients and sums of some rows, in replica context."""
        objective = self.objective
        weights = [variable.value for variable in self._variables]
        rows = objective.add_targets(rows)
        with tf.GradientTape() as tape:
            outputs = self.model(
                {name: rows[name] for name in objective.inputs},
                training=True,
                dropout_seeds=rows["dropout_seeds"],
            )
            sums = objective.compute_sums(outputs, rows)
            loss = objective.normalize(sums, count)["loss"] * scale
        gradients = tape.gradient(loss, weights)
        return [tf.convert_to_tensor(g) for g in gradients], sums

    def _apply(self, gradients, loss):
        """Clips and applies gradients; returns is_finite and more metrics."""
        optimizer = self.optimizer
        step = tf.cast(tf.convert_to_tensor(optimizer.iterations), tf.int64)
        scale = self._scale()
        norm = self._global_norm(gradients) / scale
        rate = optimizer.learning_rate_at(step)
        apply = tf.math.is_finite(loss) & tf.math.is_finite(norm)
        factor = optimizers.clip_factor(norm, optimizer.global_clipnorm)
        for variable, gradient in zip(self._variables, gradients, strict=True):
            optimizer.update_weight(
                self._strategy,
                variable,
                gradient,
                jit=self._compilation.compiles_updates,
                scale=factor / scale,
                learning_rate=rate,
                step=step,
                apply=apply,
            )
        metrics = {"learning_rate": rate, "grad_norm": norm}
        is_finite = apply
        if self.loss_scale is not None:
            metrics["loss_scale"] = scale
            # A smaller scale can fix infinite gradients, but no infinite loss.
            can_recover = self.loss_scale.adapt(apply)
            is_finite = can_recover & tf.math.is_finite(loss)
        optimizer.iterations.value.assign_add(
            tf.cast(is_finite, optimizer.iterations.dtype)
        )
        return is_finite, metrics

    def _global_norm(self, gradients):
        """Returns the norm, <float32>[], of gradients equal on all devices."""
        first = [
            self._strategy.experimental_local_results(gradient)[0]
            for gradient in gradients
        ]
        return tf.linalg.global_norm(first)


def _slice(value, start, size):
    """Returns `size` rows with a static size."""
    # For value[start : start + size] XLA would not know the size.
    shape = tf.shape(value)
    rest = tf.zeros_like(shape[1:])
    part = tf.slice(
        value,
        tf.concat([[start], rest], 0),
        tf.concat([[size], shape[1:]], 0),
    )
    return tf.ensure_shape(part, [size, *value.shape[1:]])

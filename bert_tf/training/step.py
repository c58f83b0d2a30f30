"""The training step and the loop around it, inside one graph.

A step is spread over replicas and, within a replica, over micro-batches. The
counts of the whole step are added up first, so that the losses of all parts
add up to that of the whole; then gradients are added up, clipped once and
applied once (design: losses are normalised globally).

Shapes:
  B: examples of a step, all replicas and micro-batches.
  R: examples of a replica.
"""

from collections.abc import Iterator
from typing import Protocol

import tensorflow as tf
from absl import logging

from bert_tf import stateless_random
from bert_tf.distribute.batches import StepPlan
from bert_tf.training import optimizer as optimizers
from bert_tf.training import update_rule
from bert_tf.training.loss_scale import LossScale
from bert_tf.training.memory_watch import MemoryWatch
from bert_tf.training.xla import Compilation

_DROPOUT_SALT = 21

_STEP_METRICS = ("learning_rate", "grad_norm")


def add_dropout_seeds(dataset: tf.data.Dataset, seed: int) -> tf.data.Dataset:
    """Gives each example the seed of its dropout, `dropout_seeds` <int32>[B].

    It depends on the run's seed and the example's number in the stream, thus
    on step and position, but not on who computes it together with what.
    """

    def add(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        batch = dict(batch)
        index = batch.pop("example_index")
        bits = stateless_random.random_bits(seed, _DROPOUT_SALT, index)
        low = tf.bitwise.bitwise_and(bits, tf.constant(2**31 - 1, tf.uint64))
        return batch | {"dropout_seeds": tf.cast(low, tf.int32)}

    return dataset.map(add, num_parallel_calls=tf.data.AUTOTUNE)


class Objective(Protocol):
    """What is minimised, in a form that parts of a step add up to.

    Attributes:
      inputs: Names of the features that the model reads.
      sums: Names of what `compute_sums` returns.
      metrics: Names of what `normalize` returns; `loss` is one of them.
    """

    inputs: tuple[str, ...]
    sums: tuple[str, ...]
    metrics: tuple[str, ...]

    def add_targets(self, rows: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the rows with what is computed for them without gradient."""

    def count(self, rows: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns <float32>[...], by which sums of these rows are divided.

        Blank rows (bert_tf/distribute/batches.py) add nothing to it.
        """

    def compute_sums(
        self, outputs: dict[str, tf.Tensor], rows: dict[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Returns <float32>[] each, from what the model returned."""

    def normalize(
        self, sums: dict[str, tf.Tensor], count: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Divides sums, of a part or the whole, by the count of the whole."""


class TrainingLoop:
    """Runs training steps.

    Args:
      strategy: Where model and optimizer were made.
      model: A model of ours, with whatever head.
      objective: What to minimise.
      optimizer: A `BertOptimizer`, built with the variables to train; its
        `iterations` count the steps.
      plan: How a step is spread.
      scale_loss: Whether to scale the loss against underflow, for float16. A
        step whose gradient overflows then counts, but changes no weight.
      compilation: What XLA compiles; by default the chains of the model.
      memory_watch: Says what memory the steps take, if given.

    Attributes:
      loss_scale: The `LossScale`, or None.
      compiled: What XLA has compiled, to read; empty before the first step.
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
        self._model = model
        self._objective = objective
        self._optimizer = optimizer
        self._plan = plan
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
    def step(self) -> int:
        """The number of steps done."""
        return int(self._optimizer.iterations.numpy())

    def run(
        self, iterator: Iterator[dict[str, tf.Tensor]], num_steps: int
    ) -> tuple[bool, dict[str, float]]:
        """Runs some steps in one call into the graph.

        Args:
          iterator: Gives each replica its rows of the batch of a step.
          num_steps: How many steps.

        Returns:
          Whether all went well, and the metrics of the last step, taken
          before its update. If a loss or a gradient was not finite, the steps
          end before that one, and the metrics are those of that one.

        Raises:
          UserError: If memory did not suffice.
        """
        watch = self._memory_watch
        if watch is None:
            return self._run_some(iterator, num_steps)
        watch.before_step()
        try:
            results = self._run_some(iterator, num_steps)
        except (tf.errors.ResourceExhaustedError, MemoryError) as error:
            explanation = watch.explain(error)
            if explanation is None:
                raise
            raise explanation from error
        watch.after_steps(num_steps)
        return results

    def _run_some(self, iterator, num_steps):
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
        def unfinished(done, is_finite, metrics):
            del metrics
            return (done < num_steps) & is_finite

        def run_step(done, is_finite, metrics):
            del is_finite, metrics
            is_finite, metrics = self._step(next(iterator))
            return done + 1, is_finite, metrics

        nothing = dict.fromkeys(self._metric_names, tf.constant(0.0))
        _, is_finite, metrics = tf.while_loop(
            unfinished,
            run_step,
            (tf.constant(0), tf.constant(True), nothing),
            parallel_iterations=1,
        )
        return is_finite, metrics

    def _step(self, batch):
        """Runs one step, in cross-replica context."""
        strategy = self._strategy
        count = self._add_up(strategy.run(self._objective.count, (batch,)))
        gradients, sums = strategy.run(
            self._compute, (batch, count, self._scale())
        )
        sums = {name: self._add_up(value) for name, value in sums.items()}
        metrics = self._objective.normalize(sums, count)
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
        parts = self._plan.num_micro_batches
        if parts == 1:
            return self._gradients(rows, count, scale)
        size = self._plan.micro_batch_size

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
            parallel_iterations=1,  # More would need memory for more.
        )
        return total

    def _zeros(self):
        gradients = [tf.zeros(v.shape, v.dtype) for v in self._variables]
        return gradients, dict.fromkeys(self._objective.sums, tf.constant(0.0))

    def _gradients(self, rows, count, scale):
        """Returns gradients and sums of some rows, in replica context."""
        objective = self._objective
        weights = [variable.value for variable in self._variables]
        rows = objective.add_targets(rows)
        with tf.GradientTape() as tape:
            outputs = self._model(
                {name: rows[name] for name in objective.inputs},
                training=True,
                dropout_seeds=rows["dropout_seeds"],
            )
            sums = objective.compute_sums(outputs, rows)
            loss = objective.normalize(sums, count)["loss"] * scale
        gradients = tape.gradient(loss, weights)
        return [tf.convert_to_tensor(g) for g in gradients], sums

    def _apply(self, gradients, loss):
        """Clips and applies; returns whether to go on, and more metrics."""
        optimizer = self._optimizer
        step = tf.cast(tf.convert_to_tensor(optimizer.iterations), tf.int64)
        scale = self._scale()
        norm = self._global_norm(gradients) / scale
        rate = optimizer.learning_rate_at(step)
        apply = tf.math.is_finite(loss) & tf.math.is_finite(norm)
        factor = update_rule.clip_factor(norm, optimizer.global_clipnorm)
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
            # A smaller scale helps an infinite gradient, not an infinite loss.
            can_recover = self.loss_scale.adapt(apply)
            is_finite = can_recover & tf.math.is_finite(loss)
        optimizer.iterations.value.assign_add(
            tf.cast(is_finite, optimizer.iterations.dtype)
        )
        return is_finite, metrics

    def _global_norm(self, gradients):
        """Returns <float32>[], of gradients that are equal on all devices."""
        first = [
            self._strategy.experimental_local_results(gradient)[0]
            for gradient in gradients
        ]
        return tf.linalg.global_norm(first)


def _slice(value, start, size):
    """Returns `size` rows, their number known to the graph."""
    # Written as value[start : start + size] it has no size for XLA.
    shape = tf.shape(value)
    rest = tf.zeros_like(shape[1:])
    part = tf.slice(
        value,
        tf.concat([[start], rest], 0),
        tf.concat([[size], shape[1:]], 0),
    )
    return tf.ensure_shape(part, [size, *value.shape[1:]])

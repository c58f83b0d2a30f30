"""The training step, and the loop over steps in one graph.

A step is split over replicas and, within a replica, over micro-batches. The
counts of the whole step are added up first, so that the losses of all parts add
up to the loss of the whole step. Then gradients are added up, clipped once and
applied once. Each replica updates its own copy of the weights, and all copies
stay equal. On TPUs, and on several GPUs with `--xla=on`, a replica's program
includes the sums over replicas. Otherwise, sums run outside of the programs.

If the loss of a row reads outputs of other rows, as with in-batch negatives, a
step first computes the outputs of all rows, without gradients, and the slopes:
the derivatives of the loss with respect to these outputs. Each micro-batch
computes the gradients of weights from its slopes, so the loss does not depend
on how a step is split (Gao et al., 2021, https://arxiv.org/abs/2101.06983).

The host does not wait for the device during a call, because it counts the steps
itself. If a step is not finite, the remaining steps of the call update nothing.

Shapes:
  B: number of examples in a step, over all replicas and micro-batches.
  R: number of examples of a replica.
"""

import dataclasses
import re
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf.distribute.batches import StepPlan
from bert_tf.errors import UserError
from bert_tf.features import INPUT_MASK
from bert_tf.io import terminal
from bert_tf.modeling import layouts
from bert_tf.training import losses
from bert_tf.training import optimizer as optimizers
from bert_tf.training import xla

_STEP_METRICS = ("learning_rate", "grad_norm")
_FIRST_SCALE = 2.0**15
_STEPS_UNTIL_LARGER = 2000

# Allocators raise these errors, in XLA and CUDA as well. So do full disks, and
# kernels that need more shared memory than a GPU has. Therefore the message
# must match `_OUT_OF_MEMORY`, too.
_MEMORY_ERRORS = (
    tf.errors.InternalError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnknownError,
)
_OUT_OF_MEMORY = re.compile(
    r"oom when allocating|\w*out[ _]of[ _]memory|"
    "resource_exhausted(?!(?s:.*)(no space left|shared memory))",
    re.IGNORECASE,
)


class OutOfMemoryError(UserError):
    """A device has too little memory for a step."""


class LossScale:
    """Dynamic loss scaling: halves on overflow, doubles after 2,000 good steps.

    Small float16 gradients would underflow (Micikevicius et al., 2018, "Mixed
    precision training", section 3.2). Create a scale in the strategy's scope.
    """

    def __init__(self):
        self._scale = tf.Variable(_FIRST_SCALE, trainable=False)
        self._good_steps = tf.Variable(0, trainable=False, dtype=tf.int64)

    def value(self) -> tf.Tensor:
        """Returns the current scale, <float32>[]."""
        return tf.convert_to_tensor(self._scale)

    def adapt(self, is_finite: tf.Tensor, apply: tf.Tensor) -> tf.Tensor:
        """Adapts the scale after a step, in replica context, if `apply`.

        Returns false if gradients are not finite at a scale of 1 or less. All
        arguments and the result are <bool>[].
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


class TrainingStep:
    """Computes gradients and updates the weights, one or more steps per call.

    Args:
      strategy: The strategy in whose scope model and optimizer were built.
      model: A model of `bert_tf.modeling`, with any head.
      optimizer: A `BertOptimizer`, built with the variables to train; its
        `iterations` count the steps.
      scale_loss: Whether to scale the loss against underflow, for float16. Then
        a step with an overflow is counted but changes no weight.
      compilation: What XLA compiles; by default, "chains" (see `xla`).
      all_reduce_dtype: The dtype in which gradients are summed over replicas.

    Attributes:
      plan: How a step is split; `recover` may change it.
      loss_scale: The `LossScale`; None without loss scaling.
      compiled: A description of what XLA compiled; empty before the first step.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model,
        objective: losses.Objective,
        optimizer: optimizers.BertOptimizer,
        plan: StepPlan,
        scale_loss: bool = False,
        compilation: xla.Compilation | None = None,
        all_reduce_dtype: str = "float32",
    ):
        self._strategy = strategy
        self.model = model
        self.objective = objective
        self.optimizer = optimizer
        self.plan = plan
        self._variables = optimizer.trained_variables
        self._num_devices = len(strategy.extended.worker_devices)
        self._compilation = compilation or xla.Compilation()
        self._compilation.check(self._num_devices)
        self._all_reduce_dtype = all_reduce_dtype
        self._metric_names = objective.metrics + _STEP_METRICS
        # The flags' micro-batch size, and the size since memory ran out.
        self._halved: tuple[int, int] | None = None
        self.loss_scale = None
        with strategy.scope():
            self._is_updating = tf.Variable(False, trainable=False)
            if scale_loss:
                self._metric_names += ("loss_scale",)
                self.loss_scale = LossScale()
        self._build_programs()

    def _build_programs(self) -> None:
        """Makes the functions of a step, to be traced in the first call."""
        compilation = self._compilation
        self.compiled = ""
        self._has_run = False
        self._count = self.objective.count
        self._encode = self._coupled_output
        self._compute = self._replica_gradients
        self._update = self._update_weights
        self._step_on_replica = self._replica_step
        if compilation.includes_collectives(self._num_devices):
            self._step_on_replica = compilation.wrap(self._replica_step)
        else:
            self._count = compilation.wrap_part(self._count)
            self._encode = compilation.wrap(self._encode)
            self._compute = compilation.wrap(self._compute)
            self._update = compilation.wrap_part(self._update)
        self._run = tf.function(
            self._run_loop, autograph=False, reduce_retracing=True
        )

    @property
    def global_step(self) -> int:
        """The number of steps done."""
        return int(self.optimizer.iterations.numpy())

    def state(self) -> dict[str, Any]:
        """Returns the JSON values that a checkpoint stores."""
        state = {} if self.loss_scale is None else self.loss_scale.state()
        if self._halved:
            state["halved_micro_batch"] = self._halved
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `state`, before the first step."""
        if self.loss_scale is not None:
            self.loss_scale.restore(state)
        whole, size = state.get("halved_micro_batch", (0, 0))
        # With another --micro_batch_size, the stored size does not apply.
        if whole == self.plan.micro_batch_size:
            logging.info(
                "%d sequences are computed at once, as memory was exhausted "
                "with %d before.",
                size,
                whole,
            )
            self._limit_micro_batch(size)

    def _limit_micro_batch(self, size: int) -> None:
        """Limits the micro-batch size, from the next tracing of steps on."""
        whole = self._halved[0] if self._halved else self.plan.micro_batch_size
        self.plan = dataclasses.replace(self.plan, max_micro_batch_size=size)
        self._halved = (whole, self.plan.micro_batch_size)

    def run(
        self, iterator: Iterator[dict[str, tf.Tensor]], num_steps: int
    ) -> tuple[bool, dict[str, float], dict[str, float]]:
        """Runs some steps in one call into the graph.

        `iterator` yields a batch for each step, divided among the replicas.

        Returns:
          True if training may continue; the metrics of the last step, computed
          before its update; and the sums of the objective's metrics over the
          steps. If a step is not finite, this step and all later steps change
          nothing, and the metrics of this step are returned.

        Raises:
          OutOfMemoryError: If memory is exhausted.
        """
        try:
            if not self.compiled:
                count = tf.TensorSpec([], tf.int32)
                graph = self._run.get_concrete_function(iterator, count).graph
                unpad = layouts.TOKEN_INDICES in iterator.element_spec
                self.compiled = self._compilation.describe(
                    graph, self._num_devices, unpad
                )
                terminal.detail("%s", self.compiled)
            is_finite, *values = self._run(iterator, tf.constant(num_steps))
            metrics, sums = tf.nest.map_structure(float, values)
        except (tf.errors.OpError, MemoryError) as error:
            size = self.plan.micro_batch_size
            explanation = explain_out_of_memory(error, size)
            if explanation is None:
                raise
            raise explanation from error
        self._has_run = True
        return bool(is_finite), metrics, sums

    def recover(self, error: Exception) -> bool:
        """Falls back to another way of computing steps after `run` failed.

        If memory ran out, halves the micro-batch; if a GPU failed to compile
        the step, compiles only its "chains" (see `xla`). Weights, optimizer and
        step count do not change. The caller must read the failed batch again.

        Returns False if there is no fallback, if weights are partly updated, or
        with several workers, because the others wait for this one.
        """
        is_single = self._num_devices == self._strategy.num_replicas_in_sync
        if not is_single or not self._is_between_steps():
            return False
        size = self.plan.micro_batch_size
        if isinstance(error, OutOfMemoryError) and size > 1:
            self._limit_micro_batch(-(-size // 2))
            logging.warning(
                "%s Training continues from step %d with micro-batches of %d; "
                "results differ by rounding.",
                error,
                self.global_step,
                self.plan.micro_batch_size,
            )
        elif self._compilation.fall_back(error, self._has_run):
            logging.warning(
                "The compiled step failed, so only its chains are compiled "
                "from now on, which is slower (%s).",
                xla.reason(error),
            )
        else:
            return False
        self._build_programs()
        return True

    def _is_between_steps(self) -> bool:
        """Returns whether all replicas have done all updates of a step."""
        results = self._strategy.experimental_local_results
        steps = {int(x) for x in results(self.optimizer.iterations.value)}
        return len(steps) == 1 and not any(
            map(bool, results(self._is_updating))
        )

    def _run_loop(self, iterator, num_steps):
        # `done` is on the host. If the condition read `is_healthy`, the host
        # would have to wait for the device after each step.
        def is_unfinished(done, is_healthy, metrics, sums):
            del is_healthy, metrics, sums
            return done < num_steps

        def run_next(done, is_healthy, metrics, sums):
            results = self._strategy.run(
                self._step_on_replica, (next(iterator), is_healthy, metrics)
            )
            # All replicas return equal values, so take one replica's values.
            is_healthy, metrics = tf.nest.map_structure(
                lambda x: self._strategy.experimental_local_results(x)[0],
                results,
            )
            # Use float64, or rounding would depend on the steps per call.
            sums = {
                name: total + tf.cast(metrics[name], tf.float64)
                for name, total in sums.items()
            }
            return done + 1, is_healthy, metrics, sums

        nothing = dict.fromkeys(self._metric_names, tf.constant(0.0))
        zero = tf.constant(0.0, tf.float64)
        sums = dict.fromkeys(self.objective.metrics, zero)
        _, is_healthy, metrics, sums = tf.while_loop(
            is_unfinished,
            run_next,
            (tf.constant(0), tf.constant(True), nothing, sums),
            parallel_iterations=1,
        )
        return is_healthy, metrics, sums

    def _replica_step(self, rows, is_healthy, metrics):
        """Runs one step on a replica's rows, [R, ...], inside `strategy.run`.

        If an earlier step of the call was not finite, `is_healthy` <bool>[] is
        false, and this step changes nothing. Returns `is_healthy` and `metrics`
        after the step.
        """
        count = self._add_up(self._count(rows))
        if self._is_coupled:
            rows |= self._couple(rows)
        gradients, sums = self._compute(rows, count, self._scale())
        sums, gradients = self._add_up(sums), self._reduce(gradients)
        return self._update(gradients, sums, count, is_healthy, metrics)

    def _add_up(self, values):
        """Returns the sums of nested values over the replicas."""
        if self._strategy.num_replicas_in_sync == 1:
            return values
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, values)

    def _reduce(self, gradients):
        """Returns the sums of gradients over the replicas."""
        if self._all_reduce_dtype == "float32":
            return self._add_up(gradients)
        small = [tf.cast(g, self._all_reduce_dtype) for g in gradients]
        return [
            tf.cast(total, gradient.dtype)
            for total, gradient in zip(
                self._add_up(small), gradients, strict=True
            )
        ]

    def _scale(self):
        if self.loss_scale is None:
            return tf.constant(1.0)
        return self.loss_scale.value()

    @property
    def _is_coupled(self):
        """True if the loss of a part reads outputs of other parts."""
        parts = self.plan.num_micro_batches * self.plan.num_replicas
        return parts > 1 and bool(self.objective.coupled)

    def _couple(self, rows):
        """Returns `COUPLED_LOSS` and `SLOPES` of a replica's rows."""
        name, own = self.objective.coupled, self.plan.per_replica
        inputs = {*self.objective.inputs, *layouts.INPUTS, "dropout_seeds"}
        every = {x: y for x, y in rows.items() if x not in inputs}
        # The mask of [CLS] shows which rows are blank, so gather no other mask.
        every[INPUT_MASK.name] = rows[INPUT_MASK.name][..., :1]
        every[name] = self._encode(rows)
        context = tf.distribute.get_replica_context()
        if self.plan.num_replicas > 1:
            every = context.all_gather(every, axis=0)
        with tf.GradientTape() as tape:
            tape.watch(every[name])
            total = self.objective.compute_sums(every, every)["loss_sum"]
        slopes = tape.gradient(total, every[name])
        first = tf.cast(context.replica_id_in_sync_group, tf.int32) * own
        return {
            losses.COUPLED_LOSS: tf.fill(
                [own], total / (own * self.plan.num_replicas)
            ),
            losses.SLOPES: _slice(slopes, first, own),
        }

    def _coupled_output(self, rows):
        """Returns the coupled output of a replica's rows, [R, ...]."""

        def compute(index):
            outputs = self._call_model(self._part(rows, index))
            return tf.cast(outputs[self.objective.coupled], tf.float32)

        parts = tf.map_fn(
            compute,
            tf.range(self.plan.num_micro_batches),
            parallel_iterations=1,
            fn_output_signature=tf.float32,
        )
        return tf.reshape(parts, tf.concat([[-1], tf.shape(parts)[2:]], 0))

    def _part(self, rows, index):
        size = self.plan.micro_batch_size
        return {x: _slice(y, index * size, size) for x, y in rows.items()}

    def _replica_gradients(self, rows, count, scale):
        """Returns gradients and sums of a replica's rows, [R, ...]."""
        parts = self.plan.num_micro_batches
        if parts == 1:
            return self._gradients(rows, count, scale)
        gradients = [tf.zeros(v.shape, v.dtype) for v in self._variables]
        sums = dict.fromkeys(self.objective.sums, tf.constant(0.0))

        def add_part(index, so_far):
            added = self._gradients(self._part(rows, index), count, scale)
            return index + 1, tf.nest.map_structure(tf.add, so_far, added)

        _, total = tf.while_loop(
            lambda index, _: index < parts,
            add_part,
            (tf.constant(0), (gradients, sums)),
            parallel_iterations=1,  # To save memory.
        )
        return total

    def _gradients(self, rows, count, scale):
        """Returns gradients and sums of some rows, in replica context."""
        objective = self.objective
        weights = [variable.value for variable in self._variables]
        rows = objective.add_targets(rows)
        with tf.GradientTape() as tape:
            outputs = self._call_model(rows)
            sums = objective.compute_sums(outputs, rows)
            loss = objective.normalize(sums, count)["loss"] * scale
        gradients = tape.gradient(loss, weights)
        return [tf.convert_to_tensor(g) for g in gradients], sums

    def _call_model(self, rows):
        return self.model(
            losses.model_inputs(self.objective.inputs, rows),
            training=True,
            dropout_seeds=rows["dropout_seeds"],
        )

    def _update_weights(self, gradients, sums, count, is_healthy, last):
        """Clips and applies a step's gradients, in replica context.

        If `is_healthy` <bool>[] is false, nothing changes and the metrics are
        `last`. Returns whether training may continue, <bool>[], and metrics.
        """
        optimizer = self.optimizer
        metrics = self.objective.normalize(sums, count)
        step = tf.cast(tf.convert_to_tensor(optimizer.iterations), tf.int64)
        scale = self._scale()
        norm = tf.linalg.global_norm(gradients) / scale
        rate = optimizer.learning_rate_at(step)
        is_finite = tf.math.is_finite(metrics["loss"])
        can_continue = apply = is_finite & tf.math.is_finite(norm)
        factor = optimizers.clip_factor(norm, optimizer.global_clipnorm) / scale
        # While this is True, updates may be partial: `recover` returns False.
        with tf.control_dependencies([norm]):
            begin = optimizers.assign_on_replica(self._is_updating, True)
        with tf.control_dependencies([begin]):
            is_applied = tf.identity(apply & is_healthy)
        updates = []
        for variable, gradient in zip(self._variables, gradients, strict=True):
            updates += optimizer.update_weight(
                variable,
                gradient,
                jit=self._compilation.compiles_each_update,
                scale=factor,
                learning_rate=rate,
                step=step,
                apply=is_applied,
            )
        metrics |= {"learning_rate": rate, "grad_norm": norm}
        if self.loss_scale is not None:
            metrics["loss_scale"] = scale
            # Stop if the loss is not finite: a smaller scale would not help.
            can_recover = self.loss_scale.adapt(apply, is_healthy)
            can_continue = can_recover & is_finite
        can_continue &= is_healthy
        optimizers.assign_on_replica(
            optimizer.iterations,
            optimizer.iterations
            + tf.cast(can_continue, optimizer.iterations.dtype),
        )
        with tf.control_dependencies(updates):
            optimizers.assign_on_replica(self._is_updating, False)
        return can_continue, {
            name: tf.where(is_healthy, value, last[name])
            for name, value in metrics.items()
        }


def explain_out_of_memory(
    error: Exception, micro_batch_size: int
) -> OutOfMemoryError | None:
    """Returns the error to raise if memory is exhausted, else None."""
    text = str(error)
    match = _OUT_OF_MEMORY.search(text)
    if isinstance(error, _MEMORY_ERRORS):
        if match is None:
            return None
    elif not isinstance(error, MemoryError):
        return None
    start = match.start() if match else 0
    reason = text[start:].strip().split("\n")[0].strip().rstrip(".")
    flags = "--remat, --mixed_precision=bfloat16 or shorter sequences"
    if micro_batch_size > 1:
        flags = f"--micro_batch_size={micro_batch_size // 2}, {flags}"
    return OutOfMemoryError(
        f"Out of memory ({reason or 'no memory left'}) in a step of "
        f"{micro_batch_size} sequences at once on a device; try {flags}."
    )


def _slice(value, start, size):
    """Returns `size` rows with a static size."""
    # With value[start : start + size], XLA would not know the static size.
    shape = tf.shape(value)
    rest = tf.zeros_like(shape[1:])
    part = tf.slice(
        value,
        tf.concat([[start], rest], 0),
        tf.concat([[size], shape[1:]], 0),
    )
    return tf.ensure_shape(part, [size, *value.shape[1:]])

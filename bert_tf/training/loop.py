"""The training step and the loop around it, inside one graph.

A step is spread over replicas and, within a replica, over micro-batches. The
counts of the whole step are added up first, so that the losses of all parts
add up to that of the whole; then gradients are added up, clipped once and
applied once (design: losses are normalised globally).

Shapes:
  B: examples of a step, all replicas and micro-batches.
  R: examples of a replica.
"""

import dataclasses
from collections.abc import Iterator

import tensorflow as tf

from bert_tf import stateless_random
from bert_tf.errors import UserError
from bert_tf.training import losses
from bert_tf.training import optimization
from bert_tf.training import update_rule
from bert_tf.training.loss_scale import LossScale

_DROPOUT_SALT = 21

# What the model reads; the losses read the other features.
_MODEL_INPUTS = (
    "input_ids",
    "input_mask",
    "segment_ids",
    "masked_lm_positions",
)
_METRICS = ("loss", "masked_lm_loss", "masked_lm_accuracy")
_NEXT_SENTENCE_METRICS = ("next_sentence_loss", "next_sentence_accuracy")
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


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """How the examples of a step are spread.

    Attributes:
      batch_size: Examples of a step, B.
      num_replicas: Devices that share them.
      micro_batch_size: Examples a device computes at once; 0 means all.

    Raises:
      UserError: If something does not divide something.
    """

    batch_size: int
    num_replicas: int = 1
    micro_batch_size: int = 0

    def __post_init__(self) -> None:
        if self.batch_size % self.num_replicas:
            raise UserError(
                f"The {self.num_replicas} replicas must share a step's "
                f"examples evenly. Received: {self.batch_size} examples a "
                "step (--train_batch_size x --gradient_accumulation_steps)."
            )
        if self.micro_batch_size and self.per_replica % self.micro_batch_size:
            raise UserError(
                "--micro_batch_size must divide the examples of a replica. "
                f"Received: micro_batch_size={self.micro_batch_size}, "
                f"{self.per_replica} examples per replica and step."
            )

    @property
    def per_replica(self) -> int:
        """Examples of a replica and step, R."""
        return self.batch_size // self.num_replicas

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of a replica and step."""
        return self.per_replica // (self.micro_batch_size or self.per_replica)


class TrainingLoop:
    """Runs training steps.

    Args:
      strategy: Where model and optimizer were made.
      model: A `BertForPretraining`.
      optimizer: A `BertOptimizer`, built with the variables to train; its
        `iterations` count the steps.
      plan: How a step is spread.
      use_next_sentence: Whether the next-sentence loss takes part.
      scale_loss: Whether to scale the loss against underflow, for float16. A
        step whose gradient overflows then counts, but changes no weight.

    Attributes:
      loss_scale: The `LossScale`, or None.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model,
        optimizer: optimization.BertOptimizer,
        plan: StepPlan,
        use_next_sentence: bool = True,
        scale_loss: bool = False,
    ):
        self._strategy = strategy
        self._model = model
        self._optimizer = optimizer
        self._plan = plan
        self._use_next_sentence = use_next_sentence
        self._variables = optimizer.trained_variables
        self._metric_names = _METRICS + _STEP_METRICS
        if use_next_sentence:
            self._metric_names += _NEXT_SENTENCE_METRICS
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
        """
        healthy, metrics = self._run(iterator, tf.constant(num_steps))
        values = {name: float(value) for name, value in metrics.items()}
        return bool(healthy), values

    @tf.function(autograph=False, reduce_retracing=True)
    def _run(self, iterator, num_steps):
        def unfinished(done, healthy, metrics):
            del metrics
            return (done < num_steps) & healthy

        def run_step(done, healthy, metrics):
            del healthy, metrics
            healthy, metrics = self._step(next(iterator))
            return done + 1, healthy, metrics

        nothing = dict.fromkeys(self._metric_names, tf.constant(0.0))
        _, healthy, metrics = tf.while_loop(
            unfinished,
            run_step,
            (tf.constant(0), tf.constant(True), nothing),
            parallel_iterations=1,
        )
        return healthy, metrics

    def _step(self, batch):
        """Runs one step, in cross-replica context."""
        strategy = self._strategy
        weight_total = self._add_up(
            strategy.run(
                lambda rows: tf.reduce_sum(rows["masked_lm_weights"]), (batch,)
            )
        )
        gradients, sums = strategy.run(
            self._replica_gradients, (batch, weight_total, self._scale())
        )
        sums = {name: self._add_up(value) for name, value in sums.items()}
        metrics = losses.normalize(sums, weight_total, self._plan.batch_size)
        gradients = strategy.extended.batch_reduce_to(
            tf.distribute.ReduceOp.SUM,
            [
                (gradient, variable.value)
                for gradient, variable in zip(
                    gradients, self._variables, strict=True
                )
            ],
        )
        healthy, applied = self._apply(gradients, metrics["loss"])
        return healthy, metrics | applied

    def _add_up(self, value):
        """Returns the sum over the replicas."""
        reduce = self._strategy.reduce
        return reduce(tf.distribute.ReduceOp.SUM, value, axis=None)

    def _scale(self):
        if self.loss_scale is None:
            return tf.constant(1.0)
        return self.loss_scale.value()

    def _replica_gradients(self, rows, weight_total, scale):
        """Returns gradients and sums of a replica's rows, [R, ...]."""
        count = self._plan.num_micro_batches
        if count == 1:
            return self._gradients(rows, weight_total, scale)
        parts = {
            name: tf.reshape(value, [count, -1, *value.shape[1:]])
            for name, value in rows.items()
        }

        def add_part(index, so_far):
            part = {name: value[index] for name, value in parts.items()}
            added = self._gradients(part, weight_total, scale)
            return index + 1, tf.nest.map_structure(tf.add, so_far, added)

        _, total = tf.while_loop(
            lambda index, _: index < count,
            add_part,
            (tf.constant(0), self._zeros()),
            parallel_iterations=1,  # More would need memory for more.
        )
        return total

    def _zeros(self):
        names = ["masked_lm_sum", "masked_lm_correct"]
        if self._use_next_sentence:
            names += ["next_sentence_sum", "next_sentence_correct"]
        gradients = [tf.zeros(v.shape, v.dtype) for v in self._variables]
        return gradients, dict.fromkeys(names, tf.constant(0.0))

    def _gradients(self, rows, weight_total, scale):
        """Returns gradients and sums of some rows, in replica context."""
        weights = [variable.value for variable in self._variables]
        with tf.GradientTape() as tape:
            outputs = self._model(
                {name: rows[name] for name in _MODEL_INPUTS},
                training=True,
                dropout_seeds=rows["dropout_seeds"],
            )
            sums = losses.pretraining_sums(
                outputs, rows, self._use_next_sentence
            )
            loss = losses.normalize(sums, weight_total, self._plan.batch_size)[
                "loss"
            ]
            loss *= scale
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
                scale=factor / scale,
                learning_rate=rate,
                step=step,
                apply=apply,
            )
        metrics = {"learning_rate": rate, "grad_norm": norm}
        healthy = apply
        if self.loss_scale is not None:
            metrics["loss_scale"] = scale
            # A smaller scale helps an infinite gradient, not an infinite loss.
            bearable = self.loss_scale.adapt(apply)
            healthy = bearable & tf.math.is_finite(loss)
        optimizer.iterations.value.assign_add(
            tf.cast(healthy, optimizer.iterations.dtype)
        )
        return healthy, metrics

    def _global_norm(self, gradients):
        """Returns <float32>[], of gradients that are equal on all devices."""
        first = [
            self._strategy.experimental_local_results(gradient)[0]
            for gradient in gradients
        ]
        return tf.linalg.global_norm(first)

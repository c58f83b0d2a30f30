"""The losses of pretraining and of tasks, as sums and their normalization.

A step may be split over replicas and micro-batches with different numbers of
masked tokens, so no part may divide by its own number of tokens. Every part
computes sums, and all parts divide by the counts of the whole step. Sums of 2
over 2 tokens and 12 over 6 tokens give (2 + 12) / 8 = 1.75, not (1 + 2) / 2.
Blank rows (bert_tf/distribute/batches.py) add nothing to sums or counts.

Shapes:
  B: batch size.
  P: predictions per sequence.
  V: vocabulary size.
"""

import abc
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import keras
import tensorflow as tf

from bert_tf.distribute import batches as batches_lib
from bert_tf.modeling import layouts
from bert_tf.tasks.task import Task

# Avoids dividing by zero in a step without any masked token
# (run_pretraining.py:277-280 of the original).
_NO_WEIGHT = 1e-5

# If the loss of a row depends on other rows, a micro-batch cannot compute it.
# So the step's loss is computed first. Then each row gets two features: an
# equal share of this loss, and its gradient with respect to the row's output.
COUPLED_LOSS = "coupled_loss"
SLOPES = "slopes"


def overwrites_logits() -> bool:
    """Returns whether the masked-LM loss reuses the memory of the logits."""
    # Only the CPU kernel overwrites logits. GPUs and TPUs use
    # `compared_cross_entropy`, which is fused and deterministic there.
    return not any(map(tf.config.list_logical_devices, ("GPU", "TPU")))


@tf.custom_gradient
def compared_cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, None]]]:
    """Returns the loss of each label <int32>[...], found by comparison.

    A gather of the label's logit would be slow: its gradient writes one number
    per row into zeros as large as the logits, <float32>[..., V].
    """
    # Use int64: without XLA, a GPU would compare int32 values on its host.
    ids = tf.range(logits.shape[-1], dtype=tf.int64)
    is_label = ids == tf.cast(labels, tf.int64)[..., tf.newaxis]
    total = tf.reduce_logsumexp(logits, axis=-1, keepdims=True)

    def gradient(upstream):
        slope = tf.exp(logits - total) - tf.cast(is_label, tf.float32)
        return slope * upstream[..., tf.newaxis], None

    chosen = tf.reduce_sum(tf.where(is_label, logits, 0.0), axis=-1)
    return total[..., 0] - chosen, gradient


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    if not overwrites_logits():
        return compared_cross_entropy(logits, labels)
    losses, _ = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
        features=tf.reshape(logits, [-1, logits.shape[-1]]),
        labels=tf.reshape(labels, [-1]),
    )
    return tf.reshape(losses, tf.shape(labels))


def prediction_sums(
    name: str, logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Sums a loss and the correct predictions.

    Args:
      name: The prefix of the results, "masked_lm" or "next_sentence".
      logits: <float32>[B, P, V] of masked tokens, or [B, 2] of next sentences.
      labels: <int32>[B, P], the ids of the masked tokens; or [B], 0 for the
        next sentence and 1 for a random one.
      weights: <float32> as `labels`, 0 at unused positions and blank rows.

    Returns:
      `<name>_sum` and `<name>_correct`, both <float32>[].
    """
    # Compare int64 values: a GPU would compare int32 values on its host.
    predictions = tf.argmax(logits, axis=-1)
    correct = tf.cast(predictions == tf.cast(labels, tf.int64), tf.float32)
    # The loss may overwrite the logits, so compute `correct` before the loss.
    with tf.control_dependencies([correct]):
        losses = _cross_entropy(logits, labels)
    return {
        f"{name}_sum": tf.reduce_sum(losses * weights),
        f"{name}_correct": tf.reduce_sum(correct * weights),
    }


def model_inputs(
    names: Sequence[str], rows: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Returns the features `names`, and `layouts.INPUTS` if rows have them."""
    tokens = [name for name in layouts.INPUTS if name in rows]
    return {name: rows[name] for name in (*names, *tokens)}


class Objective(abc.ABC):
    """A loss as sums over rows, so that parts of a step can be added up.

    Attributes:
      inputs: Names of the features that the model reads.
      sums: Names of the values that `compute_sums` returns.
      metrics: Names of the values that `normalize` returns, `loss` included.
      variables: Maps names to trained variables outside of the model.
      coupled: The name of an output, or None. If set, each row's loss depends
        on this output of all rows, as with in-batch negatives.
    """

    inputs: tuple[str, ...]
    sums: tuple[str, ...]
    metrics: tuple[str, ...]
    variables: Mapping[str, keras.Variable] = {}
    coupled: str | None = None

    def add_targets(self, rows: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the rows with targets added, computed without gradients."""
        return rows

    @abc.abstractmethod
    def count(self, rows: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns <float32>[...], the divisors for the sums of these rows."""

    @abc.abstractmethod
    def compute_sums(
        self, outputs: dict[str, tf.Tensor], rows: dict[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Returns the sums, <float32>[] each, from the outputs of the model."""

    @abc.abstractmethod
    def normalize(
        self, sums: dict[str, tf.Tensor], count: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Divides sums of a step or a part of it by the count of the step."""


class PretrainingObjective(Objective):
    """Masked-LM loss and, by default, next-sentence loss."""

    inputs = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")

    def __init__(self, use_next_sentence: bool = True):
        self._use_next_sentence = use_next_sentence
        self.sums = ("masked_lm_sum", "masked_lm_correct")
        self.metrics = ("loss", "masked_lm_loss", "masked_lm_accuracy")
        if use_next_sentence:
            self.sums += ("next_sentence_sum", "next_sentence_correct")
            self.metrics += ("next_sentence_loss", "next_sentence_accuracy")

    def count(self, rows: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns <float32>[2]: masked-LM weights and examples."""
        return tf.stack(
            [
                tf.reduce_sum(rows["masked_lm_weights"]),
                tf.reduce_sum(batches_lib.example_weights(rows)),
            ]
        )

    def compute_sums(
        self, outputs: dict[str, tf.Tensor], rows: dict[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        sums = prediction_sums(
            "masked_lm",
            outputs["masked_lm_logits"],
            rows["masked_lm_ids"],
            rows["masked_lm_weights"],
        )
        if self._use_next_sentence:
            sums |= prediction_sums(
                "next_sentence",
                outputs["next_sentence_logits"],
                tf.reshape(rows["next_sentence_labels"], [-1]),
                batches_lib.example_weights(rows),
            )
        return sums

    def normalize(
        self, sums: dict[str, tf.Tensor], count: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns `metrics`, <float32>[] each."""
        weight_total, num_examples = tf.unstack(count)
        masked_lm_loss = sums["masked_lm_sum"] / (weight_total + _NO_WEIGHT)
        values = {
            "loss": masked_lm_loss,
            "masked_lm_loss": masked_lm_loss,
            "masked_lm_accuracy": tf.math.divide_no_nan(
                sums["masked_lm_correct"], weight_total
            ),
        }
        if self._use_next_sentence:
            next_sentence_loss = tf.math.divide_no_nan(
                sums["next_sentence_sum"], num_examples
            )
            values |= {
                "loss": masked_lm_loss + next_sentence_loss,
                "next_sentence_loss": next_sentence_loss,
                "next_sentence_accuracy": tf.math.divide_no_nan(
                    sums["next_sentence_correct"], num_examples
                ),
            }
        return values


def loss_weights(task: Task, rows: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns `Task.loss_weights`, 0 for blank rows."""
    return weigh(task.loss_weights(rows), batches_lib.example_weights(rows))


def weigh(weights: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Multiplies weights <float32>[B, ...] by weights of rows <float32>[B].

    `rows` may have further axes, if `weights` has the same axes first.
    """
    for _ in range(weights.shape.rank - rows.shape.rank):
        rows = rows[..., tf.newaxis]
    return weights * rows


class TaskObjective(Objective):
    """The loss of a fine-tuning task.

    `compute_sums` multiplies losses by `sample_weight` <float32>[B, ...], a
    weight for each row or each label; `count` ignores these weights.
    """

    inputs = ("input_ids", "input_mask", "segment_ids")
    sums = ("loss_sum",)
    metrics = ("loss",)

    def __init__(self, task: Task, sample_weight: tf.Tensor | None = None):
        self._task = task
        self._sample_weight = sample_weight
        self.coupled = task.coupled

    def count(self, rows: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.reduce_sum(loss_weights(self._task, rows))

    def compute_sums(
        self, outputs: dict[str, tf.Tensor], rows: dict[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        if COUPLED_LOSS in rows:
            # The products cancel out, but the gradient, SLOPES, remains.
            product = tf.reduce_sum(outputs[self.coupled] * rows[SLOPES])
            value = tf.reduce_sum(rows[COUPLED_LOSS])
            return {"loss_sum": value + product - tf.stop_gradient(product)}
        losses = self._task.losses(outputs, rows)
        weights = loss_weights(self._task, rows)
        if self._sample_weight is not None:
            weights = weigh(weights, self._sample_weight)
        return {"loss_sum": tf.reduce_sum(losses * weights)}

    def normalize(
        self, sums: dict[str, tf.Tensor], count: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns `loss` <float32>[]; 0 if all weights are 0."""
        return {"loss": tf.math.divide_no_nan(sums["loss_sum"], count)}

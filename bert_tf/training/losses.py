"""The losses of pretraining and tasks, as sums: normalising is another step.

A step may be spread over replicas and micro-batches with different numbers of
masked pieces, so no part of it can divide by its own count. Every part adds
up sums, and all divide by the counts of the whole step. Blank rows, which only
fill up a share (bert_tf/distribute/batches.py), count nowhere.

Shapes:
  B: batch size.
  P: predictions per sequence.
  V: vocabulary size.
"""

from collections.abc import Mapping

import keras
import tensorflow as tf

from bert_tf.distribute import batches as batches_lib
from bert_tf.tasks.task import Task

# Keeps a step without any masked piece from dividing by zero
# (run_pretraining.py:277-280 of the original).
_NO_WEIGHT = 1e-5


def overwrites_logits() -> bool:
    """Tells whether the masked-LM loss needs no memory beside the logits'."""
    # The kernel of a GPU adds up in any order, so it is refused where runs are
    # to repeat; what TensorFlow computes instead takes several arrays.
    return not tf.config.list_logical_devices("GPU")


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the loss of each label, of its shape."""
    if not overwrites_logits():
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    losses, _ = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
        features=tf.reshape(logits, [-1, logits.shape[-1]]),
        labels=tf.reshape(labels, [-1]),
    )
    return tf.reshape(losses, tf.shape(labels))


def masked_lm_sums(
    logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Adds up the masked-LM loss and the right guesses.

    Args:
      logits: <float32>[B, P, V].
      labels: <int32>[B, P], the pieces that were masked.
      weights: <float32>[B, P], 0 where there is no prediction.

    Returns:
      `masked_lm_sum` and `masked_lm_correct`, both <float32>[].
    """
    guesses = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    # Nothing else reads the logits then, so that the loss may overwrite them.
    with tf.control_dependencies([guesses]):
        losses = _cross_entropy(logits, labels)
    correct = tf.cast(guesses == labels, tf.float32)
    return {
        "masked_lm_sum": tf.reduce_sum(losses * weights),
        "masked_lm_correct": tf.reduce_sum(correct * weights),
    }


def next_sentence_sums(
    logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Adds up the next-sentence loss and the right guesses.

    Args:
      logits: <float32>[B, 2].
      labels: <int32>[B, 1] or [B]; 0 is the next sentence, 1 a random one.
      weights: <float32>[B], 0 for rows that do not count.

    Returns:
      `next_sentence_sum` and `next_sentence_correct`, both <float32>[].
    """
    labels = tf.reshape(labels, [-1])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    guesses = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    correct = tf.cast(guesses == labels, tf.float32)
    return {
        "next_sentence_sum": tf.reduce_sum(losses * weights),
        "next_sentence_correct": tf.reduce_sum(correct * weights),
    }


def pretraining_sums(
    outputs: dict[str, tf.Tensor],
    batch: dict[str, tf.Tensor],
    use_next_sentence: bool = True,
) -> dict[str, tf.Tensor]:
    """Adds up both losses of a batch.

    Args:
      outputs: What `BertForPretraining` returns.
      batch: The pretraining features.
      use_next_sentence: Whether the next-sentence loss takes part.

    Returns:
      What `masked_lm_sums` and `next_sentence_sums` return.
    """
    sums = masked_lm_sums(
        outputs["masked_lm_logits"],
        batch["masked_lm_ids"],
        batch["masked_lm_weights"],
    )
    if use_next_sentence:
        sums |= next_sentence_sums(
            outputs["next_sentence_logits"],
            batch["next_sentence_labels"],
            batches_lib.example_weights(batch),
        )
    return sums


def pretraining_counts(batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns <float32>[2]: the masked-LM weights and the examples of a batch.

    Args:
      batch: The pretraining features.
    """
    return tf.stack(
        [
            tf.reduce_sum(batch["masked_lm_weights"]),
            tf.reduce_sum(batches_lib.example_weights(batch)),
        ]
    )


def normalize(
    sums: dict[str, tf.Tensor], counts: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Divides sums by the counts of the step that they are a part of.

    Args:
      sums: What `pretraining_sums` returns, of a part or of the whole.
      counts: What `pretraining_counts` returns, added up over the whole step.

    Returns:
      <float32>[] each: `loss`, `masked_lm_loss`, `masked_lm_accuracy` and, if
      it takes part, `next_sentence_loss` and `next_sentence_accuracy`. What
      the parts give adds up to what the whole gives.
    """
    weight_total, num_examples = tf.unstack(counts)
    masked_lm_loss = sums["masked_lm_sum"] / (weight_total + _NO_WEIGHT)
    values = {
        "loss": masked_lm_loss,
        "masked_lm_loss": masked_lm_loss,
        "masked_lm_accuracy": tf.math.divide_no_nan(
            sums["masked_lm_correct"], weight_total
        ),
    }
    if "next_sentence_sum" in sums:
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


class PretrainingObjective:
    """Both losses as what the training loop minimises.

    Args:
      use_next_sentence: Whether the next-sentence loss takes part.
    """

    inputs = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")

    def __init__(self, use_next_sentence: bool = True):
        self._use_next_sentence = use_next_sentence
        self.sums = ("masked_lm_sum", "masked_lm_correct")
        self.metrics = ("loss", "masked_lm_loss", "masked_lm_accuracy")
        if use_next_sentence:
            self.sums += ("next_sentence_sum", "next_sentence_correct")
            self.metrics += ("next_sentence_loss", "next_sentence_accuracy")

    def add_targets(self, rows: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the rows as they are: they have their labels."""
        return rows

    def count(self, rows: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns what `pretraining_counts` does."""
        return pretraining_counts(rows)

    def compute_sums(
        self, outputs: dict[str, tf.Tensor], rows: dict[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Returns what `pretraining_sums` does."""
        return pretraining_sums(outputs, rows, self._use_next_sentence)

    def normalize(
        self, sums: dict[str, tf.Tensor], count: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns what the function `normalize` does."""
        return normalize(sums, count)


def loss_weights(task: Task, rows: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns `Task.loss_weights`, 0 for blank rows.

    Args:
      task: The task.
      rows: What `Features.batch` returned.
    """
    return weigh(task.loss_weights(rows), batches_lib.example_weights(rows))


def weigh(weights: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Multiplies weights <float32>[B, ...] by those of rows <float32>[B]."""
    rank = weights.shape.rank
    return weights * tf.reshape(rows, [-1] + [1] * (rank - 1))


class TaskObjective:
    """The loss of a task as what the training loop minimises.

    Args:
      task: A `tasks.task.Task`.
    """

    inputs = ("input_ids", "input_mask", "segment_ids")
    sums = ("loss_sum",)
    metrics = ("loss",)
    # By name; none, as for all that has no weights of its own.
    variables: Mapping[str, keras.Variable] = {}

    def __init__(self, task: Task):
        self._task = task

    def add_targets(self, rows: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the rows as they are: they have their labels."""
        return rows

    def count(self, rows: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns the weights of some rows, <float32>[]."""
        return tf.reduce_sum(loss_weights(self._task, rows))

    def compute_sums(
        self, outputs: dict[str, tf.Tensor], rows: dict[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Returns `loss_sum` <float32>[], weighted."""
        losses = self._task.losses(outputs, rows)
        weights = loss_weights(self._task, rows)
        return {"loss_sum": tf.reduce_sum(losses * weights)}

    def normalize(
        self, sums: dict[str, tf.Tensor], count: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns `loss` <float32>[]; 0 where nothing has a weight."""
        return {"loss": tf.math.divide_no_nan(sums["loss_sum"], count)}

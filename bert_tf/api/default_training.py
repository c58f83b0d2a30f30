"""Defaults of `fit`: loss, optimizer, schedule, and masks without labels.

Shapes:
  B: batch size.
  S: sequence length.
  P: predictions per sequence.
  V: vocabulary size.
"""

import math
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf import stateless_random
from bert_tf.errors import UserError
from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.modeling.keras_methods import NO_LABEL
from bert_tf.tasks.tagging.features import LABEL_IDS
from bert_tf.tasks.tagging.features import LABEL_WEIGHTS
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.tasks.task import Task
from bert_tf.text.masking import DynamicMasking
from bert_tf.text.vocabulary import Vocabulary
from bert_tf.training import losses as losses_lib
from bert_tf.training.losses import weigh
from bert_tf.training.optimizer import build_optimizer

# Those of run_classifier.py of the original.
_LEARNING_RATE = 5e-5
_WARMUP_PROPORTION = 0.1
# Keras' own.
_BATCH_SIZE = 32
_RATE_SETTERS = (
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
)

# Those of create_pretraining_data.py of the original.
_MASKED_LM_PROB = 0.15
_ROW_SALT = 21


def count_steps(
    x: Any,
    batch_size: int | None,
    validation_split: float,
    steps_per_epoch: int | None,
    epochs: int,
    callbacks: Any = None,
) -> int | None:
    """Returns the steps of the schedule of `fit`.

    None for data of unknown length, and beside callbacks that set the learning
    rate, as Keras refuses to set that of a schedule.
    """
    if any(isinstance(x, _RATE_SETTERS) for x in tf.nest.flatten(callbacks)):
        return None
    if steps_per_epoch is not None:
        return steps_per_epoch * epochs
    if isinstance(x, tf.data.Dataset):
        steps = int(x.cardinality())
        return steps * epochs if steps > 0 else None
    if isinstance(x, keras.utils.PyDataset):
        return x.num_batches and x.num_batches * epochs
    leaf = next(iter(tf.nest.flatten(x)), None)
    if not hasattr(leaf, "shape") or not leaf.shape:
        return None
    num_rows = math.floor(leaf.shape[0] * (1 - validation_split))
    return -(-num_rows // (batch_size or _BATCH_SIZE)) * epochs


def compile_arguments(
    task: Task | None, num_steps: int | None
) -> dict[str, Any]:
    """Returns the arguments of `compile` for a run of so many steps.

    They are the defaults of run/finetune_classifier.py. Without `num_steps` the
    learning rate is constant. `task` is None for masked language models.
    """
    optimizer = build_optimizer(
        learning_rate=_LEARNING_RATE,
        num_train_steps=num_steps,
        num_warmup_steps=int((num_steps or 0) * _WARMUP_PROPORTION),
    )
    metrics = ["accuracy"]
    if getattr(task, "problem_type", None) == "regression":
        metrics = ["mean_absolute_error"]
    return {"optimizer": optimizer, "metrics": metrics}


def compute_loss(
    task: Task | None,
    outputs: Mapping[str, tf.Tensor],
    x: Mapping[str, tf.Tensor],
    y: Any,
    sample_weight: Any,
) -> tf.Tensor:
    """Returns the mean of the task's losses, <float32>[], in graph.

    Args:
      task: The task; None for masked language models.
      outputs: The model's outputs.
      x: Its inputs.
      y: The labels that `Preprocessor` returns.
      sample_weight: The weight of each row or label, or None. As in Keras, the
        sum is divided by the number of losses, not by the sum of weights.
    """
    if task is None:
        return _masked_lm_loss(outputs, y, sample_weight)
    batch = {
        INPUT_MASK.name: tf.ones_like(x[INPUT_IDS.name]),
        **x,
        **_batch_labels(task, y),
    }
    losses = task.losses(outputs, batch)
    weights = task.loss_weights(batch)
    losses *= weights
    if sample_weight is not None:
        # Keras repeats it for each of several labels.
        weight = tf.nest.flatten(sample_weight)[0]
        weight = tf.cast(weight, losses.dtype)
        is_for_rows = weight.shape.rank == 1
        losses = weigh(losses, weight) if is_for_rows else losses * weight
    return tf.math.divide_no_nan(tf.reduce_sum(losses), tf.reduce_sum(weights))


def _batch_labels(task: Task, y: Any) -> dict[str, tf.Tensor]:
    """Returns the labels as `Task.losses` reads them."""
    if y is None:
        raise UserError("Expected labels: fit(x, y). Received: none.")
    if isinstance(y, Mapping):
        if len(y) > 1:
            return {name: tf.cast(y[name], tf.int32) for name in y}
        (y,) = y.values()
    if isinstance(task, TaggingTask):
        return {
            LABEL_IDS: tf.maximum(tf.cast(y, tf.int32), 0),
            LABEL_WEIGHTS: tf.cast(tf.not_equal(y, NO_LABEL), tf.float32),
        }
    problem_type = getattr(task, "problem_type", None)
    if problem_type == "multi_label":
        return {LABEL_IDS: tf.cast(y, tf.float32)}
    is_score = problem_type == "regression"
    y = tf.cast(y, tf.float32 if is_score else tf.int32)
    return {LABEL_IDS: tf.reshape(y, [-1])}


def draw_masks(
    features: Mapping[str, tf.Tensor],
    vocabulary: Vocabulary,
    seed: tf.Tensor | int,
    step: tf.Tensor | int,
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Masks a batch of packed texts, in graph.

    The masks of a row depend on its tokens, the seed and the step alone, not
    on the other rows or on padding.

    Args:
      features: The inputs of the model, <int32>[B, S] each.
      vocabulary: The vocabulary.
      seed: <int64>[].
      step: <int64>[].

    Returns:
      The features with masked `input_ids` and with `masked_lm_positions`
      <int32>[B, P]; and the labels, the ids of the masked tokens <int32>[B, P],
      -1 where there is none.
    """
    ids = tf.cast(features[INPUT_IDS.name], tf.int32)
    mask = features.get(INPUT_MASK.name)
    mask = tf.ones_like(ids) if mask is None else tf.cast(mask, tf.int32)
    places = tf.range(tf.shape(ids, tf.int64)[1])
    bits = stateless_random.random_bits(_ROW_SALT, places, ids)
    bits = tf.where(mask > 0, tf.bitcast(bits, tf.int64), 0)
    row_key = tf.reduce_sum(bits, axis=1)
    key = stateless_random.random_bits(seed, step, row_key)
    width = tf.cast(tf.shape(ids)[1], tf.float64)
    num_slots = tf.cast(tf.round(width * _MASKED_LM_PROB), tf.int32)
    blank = tf.zeros([tf.shape(ids)[0], tf.maximum(1, num_slots)], tf.int32)
    rule = DynamicMasking.from_vocabulary(vocabulary, _MASKED_LM_PROB)
    masked = rule.apply(
        {
            **features,
            INPUT_IDS.name: ids,
            INPUT_MASK.name: mask,
            "masked_lm_positions": blank,
            "masked_lm_ids": blank,
            "masked_lm_weights": tf.cast(blank, tf.float32),
        },
        tf.bitcast(key, tf.int64),
        seed=0,
    )
    weights = masked.pop("masked_lm_weights")
    labels = tf.where(weights > 0, masked.pop("masked_lm_ids"), NO_LABEL)
    return masked, labels


def _masked_lm_loss(
    outputs: Mapping[str, tf.Tensor], y: Any, sample_weight: Any
) -> tf.Tensor:
    """Returns the loss of the masked-LM head as in pretraining, <float32>[].

    Args:
      outputs: `masked_lm_logits` <float32>[B, P, V].
      y: The labels <int>[B, P], -1 where there is none.
      sample_weight: The weight of each row <float>[B], or None. The sum of
        losses is divided by the number of labels, not by the sum of weights.
    """
    if y is None:
        raise UserError(
            "Expected labels for masked_lm_positions: fit(x, y). Received: "
            "none."
        )
    if isinstance(y, Mapping):
        (y,) = y.values()
    weights = tf.cast(tf.not_equal(y, NO_LABEL), tf.float32)
    counts = tf.stack([tf.reduce_sum(weights), 0.0])  # No next sentences.
    if sample_weight is not None:
        weight = tf.cast(tf.nest.flatten(sample_weight)[0], tf.float32)
        weights = weigh(weights, weight)
    sums = losses_lib.masked_lm_sums(
        outputs["masked_lm_logits"],
        tf.maximum(tf.cast(y, tf.int32), 0),
        weights,
    )
    return losses_lib.normalize(sums, counts)["loss"]

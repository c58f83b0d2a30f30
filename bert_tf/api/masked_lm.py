"""Masks and the loss of masked language models, for `fit` without labels.

Shapes:
  B: batch size.
  S: sequence length.
  P: predictions per sequence.
  V: vocabulary size.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from bert_tf import stateless_random
from bert_tf.errors import UserError
from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.modeling.keras_methods import NO_LABEL
from bert_tf.text.masking import DynamicMasking
from bert_tf.text.vocabulary import Vocabulary
from bert_tf.training import losses
from bert_tf.training.losses import weigh

# Those of create_pretraining_data.py of the original.
_MASKED_LM_PROB = 0.15
_ROW_SALT = 21


def draw(
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


def compute_loss(
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
    sums = losses.masked_lm_sums(
        outputs["masked_lm_logits"],
        tf.maximum(tf.cast(y, tf.int32), 0),
        weights,
    )
    return losses.normalize(sums, counts)["loss"]

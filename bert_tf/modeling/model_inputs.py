"""The inputs of a BERT model, checked and with defaults."""

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.modeling import layouts


def standardize(inputs):
    """Returns the three inputs as <int32>[B, S], with defaults filled in."""
    names = ("input_ids", "input_mask", "segment_ids")
    unknown = sorted(set(inputs) - {*names, *layouts.INPUTS})
    if unknown or "input_ids" not in inputs:
        raise UserError(
            "The model's inputs are `input_ids` and, optionally, `input_mask` "
            f"and `segment_ids`. Received: {', '.join(sorted(inputs))}."
        )
    input_ids = tf.cast(inputs["input_ids"], tf.int32)
    input_mask = inputs.get("input_mask")
    if input_mask is None:
        input_mask = tf.ones_like(input_ids)
    segment_ids = inputs.get("segment_ids")
    if segment_ids is None:
        segment_ids = tf.zeros_like(input_ids)
    return input_ids, input_mask, tf.cast(segment_ids, tf.int32)

"""What models take.

Shapes:
  B: batch size.
  S: sequence length.
"""

import tensorflow as tf

from bert_tf.errors import UserError


def require_numbers(x):
    """Raises `UserError` for texts, which `predict` takes in lists only."""
    for leaf in tf.nest.flatten(x):
        kind = getattr(getattr(leaf, "dtype", None), "kind", None)
        if isinstance(leaf, str | bytes) or kind in ("U", "S", "O"):
            raise UserError(
                "Raw rows are predicted in a list: predict([row, row, ...]). "
                f"Received: {type(x).__name__} with texts."
            )


def standardize(inputs):
    """Returns the three inputs as <int32>[B, S], with defaults filled in."""
    known = ("input_ids", "input_mask", "segment_ids")
    unknown = sorted(set(inputs) - set(known))
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

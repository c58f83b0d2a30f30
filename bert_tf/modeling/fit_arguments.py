"""Checks of the numbers that `fit`, `evaluate` and `predict` take."""

import numbers

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.modeling import raw_batches


def check(x, batch_size, epochs=1, steps_per_epoch=None, validation_split=0.0):
    """Checks arguments that Keras would misread, or refuse in other words.

    Raises:
      UserError: If a number is not a whole one from 1, or rows of `x` cannot
        be held out.
    """
    counts = {
        "batch_size": batch_size,
        "epochs": epochs,
        "steps_per_epoch": steps_per_epoch,
    }
    for name, value in counts.items():
        if value is None and name != "epochs":
            continue
        is_whole = isinstance(value, numbers.Integral)
        if not is_whole or isinstance(value, bool) or value < 1:
            raise UserError(
                f"Expected {name} to be a whole number, at least 1. Received: "
                f"{name}={value!r}."
            )
    is_number = isinstance(validation_split, numbers.Real)
    if not is_number or not 0 <= validation_split < 1:
        raise UserError(
            "Expected validation_split to be the part of the rows to hold out, "
            f"from 0 to less than 1. Received: {validation_split!r}."
        )
    is_read_once = raw_batches.is_stream(x) or isinstance(x, tf.data.Dataset)
    if validation_split and is_read_once:
        raise UserError(
            "validation_split holds out rows of lists and arrays; give "
            f"validation_data beside data that is read in batches. Received: "
            f"validation_split={validation_split} and a {type(x).__name__}."
        )

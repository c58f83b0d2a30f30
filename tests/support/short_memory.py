"""Losses that lack memory for large micro-batches."""

from unittest import mock

import tensorflow as tf


def need_memory_for(
    objective,
    most_rows,
    is_short=lambda: True,
    error_class=MemoryError,
    message="out of memory, as a test wants it",
):
    """Patches an objective's class to lack memory for more rows at once.

    Args:
      objective: The class.
      most_rows: The rows of a micro-batch for which memory suffices.
      is_short: Called in each larger micro-batch; false lets it pass.
      error_class: The class of the error.
      message: The message of the error.
    """
    compute_sums = objective.compute_sums

    def check():
        if is_short():
            raise error_class(message)

    def patched(self, outputs, rows):
        if rows["input_ids"].shape[0] > most_rows:
            with tf.control_dependencies([tf.py_function(check, [], [])]):
                outputs = tf.nest.map_structure(tf.identity, outputs)
        return compute_sums(self, outputs, rows)

    return mock.patch.object(objective, "compute_sums", patched)

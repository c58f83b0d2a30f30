"""Calls a model in the graph, a bounded number of rows at a time.

Shapes:
  R: rows of the model.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

_Condense = Callable[[Mapping[str, Any]], dict[str, tf.Tensor]]


def compute(
    model: keras.Model,
    inputs: Mapping[str, tf.Tensor],
    max_rows_at_once: int | tf.Tensor | None = None,
    condense: _Condense = dict,
) -> dict[str, tf.Tensor]:
    """Returns what a model says of rows.

    Args:
      model: The model.
      inputs: What it takes, [R, ...] each.
      max_rows_at_once: The most rows that may need memory together, <int32>[],
        or None.
      condense: Chooses what is kept of the outputs of parts, and returned:
        tensors [R, ...]; all hidden states of a book fit into no memory either.
    """
    if max_rows_at_once is None:
        return model(dict(inputs), training=False)
    like = _like(model, inputs, condense)
    count = tf.shape(inputs["input_ids"])[0]
    # No row is one part, too, so that there is something to put together.
    num_parts = tf.maximum(-(-count // max_rows_at_once), 1)
    arrays = [
        tf.TensorArray(
            spec.dtype, num_parts, infer_shape=False, element_shape=spec.shape
        )
        for spec in like.values()
    ]

    def body(number, *arrays):
        start = number * max_rows_at_once
        outputs = condense(
            model(
                {
                    x: t[start : start + max_rows_at_once]
                    for x, t in inputs.items()
                },
                training=False,
            )
        )
        written = [
            array.write(number, outputs[name])
            for name, array in zip(like, arrays, strict=True)
        ]
        return number + 1, *written

    _, *arrays = tf.while_loop(
        lambda number, *_: number < num_parts,
        body,
        (0, *arrays),
        # Several parts at a time would need the memory of several.
        parallel_iterations=1,
    )
    return {
        name: tf.ensure_shape(array.concat(), spec.shape)
        for (name, spec), array in zip(like.items(), arrays, strict=True)
    }


def _like(
    model: keras.Model, inputs: Mapping[str, tf.Tensor], condense: _Condense
) -> dict[str, tf.TensorSpec]:
    """Returns dtypes and shapes of what is kept, computing nothing."""

    def kept(rows):
        return condense(model(rows, training=False))

    specs = {
        name: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)
        for name, tensor in inputs.items()
    }
    traced = tf.function(kept, autograph=False).get_concrete_function(specs)
    return {
        name: tf.TensorSpec(tensor.shape, tensor.dtype)
        for name, tensor in traced.structured_outputs.items()
    }

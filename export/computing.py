"""Calls a model in the graph, a bounded number of rows at a time.

Shapes:
  R: rows of the model.
"""

from collections.abc import Mapping

import keras
import tensorflow as tf


def compute(
    model: keras.Model,
    inputs: Mapping[str, tf.Tensor],
    max_rows_at_once: int | None = None,
) -> dict[str, tf.Tensor]:
    """Returns what a model says of rows.

    Args:
      model: The model.
      inputs: What it takes, [R, ...] each.
      max_rows_at_once: The most rows that may need memory together, or None.
        Of parts only the logits are returned, as all hidden states of a book
        fit into no memory either.
    """
    if max_rows_at_once is None:
        return model(dict(inputs), training=False)
    like = _logits_like(model, inputs)
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
        outputs = model(
            {x: t[start : start + max_rows_at_once] for x, t in inputs.items()},
            training=False,
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


def _logits_like(
    model: keras.Model, inputs: Mapping[str, tf.Tensor]
) -> dict[str, tf.TensorSpec]:
    """Returns dtypes and shapes of a model's logits, computing nothing."""

    def logits(rows):
        outputs = model(rows, training=False)
        return {x: t for x, t in outputs.items() if x.endswith("logits")}

    specs = {
        name: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)
        for name, tensor in inputs.items()
    }
    traced = tf.function(logits, autograph=False).get_concrete_function(specs)
    return {
        name: tf.TensorSpec(tensor.shape, tensor.dtype)
        for name, tensor in traced.structured_outputs.items()
    }

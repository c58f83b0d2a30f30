"""Dense layers whose inputs and results have columns of like size, for int8.

A matrix in int8 has one scale for all of its columns. In BERT a few columns of
what a block's second dense layer gives are a hundred times greater than the
others, of which int8 then keeps next to nothing. So each column is divided by
its greatest value, which costs nothing, as the kernel takes it in, and
multiplied with it in float32.

What goes into dense layers, too, has a few columns that are ten times greater.
These are made as small as the next ones, and the kernel's rows greater
instead. All columns alike would cost the kernel more than they gain.

Sources:
  Bondarenko et al., 2021, https://arxiv.org/abs/2109.12948, sections 3 and
    4.1, who find the columns, and give groups of them scales of their own.
  Xiao et al., 2022, https://arxiv.org/abs/2211.10438, equation 3, who divide
    inputs and multiply kernels, but in all columns.
"""

import contextlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from bert_tf.modeling.layers import Projection

# The part of the columns of inputs that are left as they are. For a part of
# 0.67 to 0.99 the error of the logits was much the same.
_USUAL = 0.98

_Samples = Callable[[], Iterable[Mapping[str, np.ndarray]]]


@contextlib.contextmanager
def applied(model: keras.Model, samples: _Samples) -> Iterator[None]:
    """Gives the dense layers of a model their scales, meanwhile.

    What the model computes stays the same, but for rounding.

    Args:
      model: A model in the form of `bert_tf.modeling.inference.prepare`.
      samples: Returns inputs of the model by name, whose results say how large
        columns become.
    """
    projections = [
        layer
        # `layers` has those at the top alone, and no other way is public.
        for layer in model._flatten_layers()
        if isinstance(layer, Projection)
    ]
    for projection, inputs, columns in _measure(model, projections, samples):
        projection.input_scales = _excess(inputs)
        # What is always 0 needs no scale.
        projection.column_scales = np.where(columns > 0, columns, 1.0)
    try:
        yield
    finally:
        for projection in projections:
            projection.column_scales = None
            projection.input_scales = None


def _excess(greatest: np.ndarray) -> np.ndarray:
    """Returns how often each of the greatest columns is a usual one, or 1.

    Args:
      greatest: <float32>[input width], the greatest size of each.

    Returns:
      <float32>[input width].
    """
    usual = np.quantile(greatest, _USUAL)
    if not usual:
        return np.ones_like(greatest)
    return np.maximum(greatest / usual, 1.0).astype(np.float32)


def _measure(
    model: keras.Model, projections: list[Projection], samples: _Samples
) -> list[tuple[Projection, np.ndarray, np.ndarray]]:
    """Returns the greatest size of each column, of inputs and of results.

    They are <float32>[input width] and <float32>[width] of each layer. Layers
    that the model does not call are left out.
    """
    greatest: dict[int, list[np.ndarray]] = {}

    def look_at(projection: Projection) -> Callable[..., None]:
        def look(*matrices: tf.Tensor) -> None:
            found = [_greatest(matrix) for matrix in matrices]
            before = greatest.get(id(projection), found)
            greatest[id(projection)] = [
                np.maximum(*pair) for pair in zip(before, found, strict=True)
            ]

        return look

    for projection in projections:
        projection.on_rows = look_at(projection)
    try:
        for inputs in samples():
            model(
                {name: tf.constant(x) for name, x in inputs.items()},
                training=False,
            )
    finally:
        for projection in projections:
            projection.on_rows = None
    return [
        (projection, *greatest[id(projection)])
        for projection in projections
        if id(projection) in greatest
    ]


def _greatest(matrix: tf.Tensor) -> np.ndarray:
    """Returns the greatest size of each column of the last axis."""
    axes = range(matrix.shape.rank - 1)
    return tf.reduce_max(tf.abs(matrix), axis=[*axes]).numpy()

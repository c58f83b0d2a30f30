"""Dense layers whose results have columns of like size, for int8.

A result in int8 has one scale for all of its columns. In BERT a few columns of
what a block's second dense layer gives are a hundred times greater than the
others, of which int8 then keeps next to nothing. So each column is divided by
its greatest value, which costs nothing, as the kernel takes it in, and
multiplied with it in float32.

Source: Bondarenko et al., 2021, https://arxiv.org/abs/2109.12948, sections 3
and 4.1, who find the columns, and give groups of them scales of their own.
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
    for projection, greatest in _measure(model, projections, samples):
        # What is always 0 needs no scale.
        projection.column_scales = np.where(greatest > 0, greatest, 1.0)
    try:
        yield
    finally:
        for projection in projections:
            projection.column_scales = None


def _measure(
    model: keras.Model, projections: list[Projection], samples: _Samples
) -> list[tuple[Projection, np.ndarray]]:
    """Returns the greatest size of each column, <float32>[width] each.

    Layers that the model does not call are left out.
    """
    greatest: dict[int, np.ndarray] = {}

    def look_at(projection: Projection) -> Callable[[tf.Tensor], None]:
        def look(rows: tf.Tensor) -> None:
            found = tf.reduce_max(tf.abs(rows), axis=0).numpy()
            key = id(projection)
            greatest[key] = np.maximum(greatest.get(key, found), found)

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
        (projection, greatest[id(projection)])
        for projection in projections
        if id(projection) in greatest
    ]

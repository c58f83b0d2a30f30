"""Weights of classes for `fit`, by name, and together with those of rows."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf.errors import UserError
from bert_tf.modeling.keras_methods import NO_LABEL


def by_index(
    weights: Mapping[str | int, float], labels: Sequence[str] | None
) -> dict[int, float]:
    """Returns the weights with indices in place of names.

    Args:
      weights: Label, by name or index, to weight.
      labels: The names of the labels, if they have names.

    Raises:
      UserError: If there is no such name.
    """
    names = list(labels or ())
    unknown = [x for x in weights if isinstance(x, str) and x not in names]
    if unknown:
        raise UserError(
            "Expected class_weight by label or by index; the labels are "
            f"{', '.join(names or ['none'])}. Received: "
            f"{', '.join(map(repr, unknown))}."
        )
    return {
        names.index(name) if isinstance(name, str) else name: weight
        for name, weight in weights.items()
    }


def multiply(
    weights: Mapping[int, float], y: np.ndarray, sample_weight: Any
) -> np.ndarray:
    """Returns the weight of each label: that of its class and of its row.

    Args:
      weights: Index of a class to its weight; 1 for those that it lacks.
      y: The labels <int>[N], or <int>[N, S] of tokens, -1 where there is none.
      sample_weight: The weight of each row <float>[N], or None.

    Returns:
      <float32> in the shape of `y`.
    """
    table = np.ones(max([*weights, y.max(initial=0)]) + 1, np.float32)
    table[list(weights)] = list(weights.values())
    product = np.where(y == NO_LABEL, 0, table[np.maximum(y, 0)])
    if sample_weight is not None:
        rows = np.asarray(sample_weight, np.float32)
        product *= rows.reshape(rows.shape + (1,) * (y.ndim - rows.ndim))
    return product.astype(np.float32)

"""Builds models whose variables begin with given values."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from bert_tf.checkpoints.tensors import Tensors


def build(
    make: Callable[[], Any],
    name_variables: Callable[[Any], Mapping[str, keras.Variable]],
    weights: Tensors,
) -> Any:
    """Builds a model with its weights, one at a time.

    A model that draws its values at random first and gets its weights then
    takes up to twice the memory, which TensorFlow does not give back.

    Args:
      make: Returns the model with all its variables made.
      name_variables: Returns the variables of a model by name.
      weights: Name to value, at least for all of these.

    Returns:
      The model.
    """
    # Variables made in this scope get their values when it ends.
    with keras.StatelessScope():
        model = make()
        variables = name_variables(model)
        initial_values = {
            name: _InitialValue(weights, name) for name in variables
        }
        for name, variable in variables.items():
            variable._initializer = initial_values[name]
    for name, variable in variables.items():
        # The attribute is Keras's own, so another version may not ask for it.
        if not initial_values[name].was_used:
            variable.assign(weights[name])
    return model


class _InitialValue:
    """An initializer of Keras that gives a variable its weight."""

    def __init__(self, weights: Tensors, name: str) -> None:
        self._weights = weights
        self._name = name
        self.was_used = False

    def __call__(self, shape: Any, dtype: Any = None) -> np.ndarray:
        self.was_used = True
        return self._weights[self._name]

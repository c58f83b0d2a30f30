"""Builds models with stored weights, and assigns weights to models."""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.errors import UserError
from bert_tf.modeling import bert as bert_model


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """Canonical names of the weights that were loaded, missing or unused.

    Attributes:
      loaded: Weights of the model that got a value.
      missing: Weights of heads that keep their initial values.
      unused: Tensors of heads that the model does not have, and optimizer
        state.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        slots = [x for x in self.unused if weight_map.is_optimizer_state(x)]
        unused = [x for x in self.unused if x not in set(slots)]
        parts = [f"loaded {len(self.loaded)} weights, all of the model's"]
        if self.missing:
            parts = [
                f"loaded {len(self.loaded)} weights",
                f"new: {', '.join(self.missing)}",
            ]
        if unused:
            parts.append(
                f"not needed, as this model has no such part: "
                f"{', '.join(unused)}"
            )
        if slots:
            parts.append(f"not needed: {len(slots)} tensors of the optimizer")
        return "; ".join(parts)


def build(
    make: Callable[[], Any],
    name_variables: Callable[[Any], Mapping[str, keras.Variable]],
    weights: Tensors,
) -> Any:
    """Builds a model with its weights, reading one tensor at a time.

    Initializing a model at random before assigning its weights takes up to
    twice the memory, which TensorFlow does not give back.

    Args:
      make: Returns the model with all its variables made.
      name_variables: Returns the variables of a model by name.
      weights: Name to value, for all of these variables at least.
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
        # The attribute is private, so another version of Keras may ignore it.
        if not initial_values[name].was_used:
            variable.assign(weights[name])
    return model


class _InitialValue:
    """A Keras initializer that returns a stored weight."""

    def __init__(self, weights: Tensors, name: str) -> None:
        self._weights = weights
        self._name = name
        self.was_used = False

    def __call__(self, shape: Any, dtype: Any = None) -> np.ndarray:
        self.was_used = True
        return self._weights[self._name]


def load_into(
    model: keras.Model,
    tensors: Mapping[str, np.ndarray],
    source: str = "the checkpoint",
    expected_missing: Iterable[str] = (),
    expected_unused: Iterable[str] = (),
) -> LoadReport:
    """Assigns tensors to the model's weights of the same canonical name.

    A head may be missing on either side as a whole; optimizer state is
    ignored. Every other difference is an error, and then no weight is changed.

    Args:
      model: A model of `bert_tf.modeling`.
      tensors: Canonical name to value.
      source: The name of the tensors in an error, for instance a path.
      expected_missing: Further weights that need not be in `tensors`.
      expected_unused: Further tensors that need not be in `model`.

    Raises:
      UserError: Listing everything unmatched, missing or of another shape.
    """
    variables = bert_model.named_variables(model)
    tensors = Tensors.from_arrays(tensors)
    missing = [name for name in variables if name not in tensors]
    unused = [name for name in tensors if name not in variables]
    # Parts may be missing as a whole, except for the encoder.
    stored = {weight_map.ENCODER, *map(weight_map.part_of, tensors)}
    built = {weight_map.ENCODER, *map(weight_map.part_of, variables)}
    lacks = {n for n in missing if weight_map.part_of(n) in stored}
    has = {
        name
        for name in unused
        if not weight_map.is_optimizer_state(name)
        and weight_map.head_of(name) in {None, *built}
    }
    misshapen = {
        f"{name} {tensors.shapes[name]}, expected {tuple(variable.shape)}"
        for name, variable in variables.items()
        if name in tensors and tensors.shapes[name] != tuple(variable.shape)
    }
    problems = {
        "lacks": lacks - set(expected_missing),
        "also has": has - set(expected_unused),
        "has in another shape": misshapen,
    }
    if any(problems.values()):
        listed = "; ".join(
            f"it {verb} {', '.join(sorted(names))}"
            for verb, names in problems.items()
            if names
        )
        raise UserError(f"{source} does not fit the model: {listed}.")
    loaded = [name for name in variables if name in tensors]
    for name in loaded:
        variables[name].assign(tensors[name])
    return LoadReport(tuple(loaded), tuple(missing), tuple(unused))

"""Builds models with stored weights, and assigns weights to models."""

import dataclasses
from collections.abc import Callable
from collections.abc import Collection
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
        return (
            f"loaded {len(self.loaded)} weights; new: "
            f"{', '.join(self.missing) or 'none'}; not used: "
            f"{', '.join(unused) or 'none'}, and {len(slots)} tensors of the "
            "optimizer"
        )


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

    Returns:
      The names that were loaded, missing and unused.

    Raises:
      UserError: Listing everything unmatched, missing or of another shape.
    """
    variables = bert_model.named_variables(model)
    missing = [name for name in variables if name not in tensors]
    unused = [name for name in tensors if name not in variables]
    lacks = _unexpected_missing(missing, tensors)
    has = _unexpected_unused(unused, variables)
    problems = _describe("lacks", set(lacks) - set(expected_missing))
    problems += _describe("also has", set(has) - set(expected_unused))
    problems += _describe(
        "has in another shape", _misshapen(variables, tensors)
    )
    if problems:
        raise UserError(
            f"{source} does not fit the model: it {'; it '.join(problems)}."
        )
    loaded = [name for name in variables if name in tensors]
    for name in loaded:
        variables[name].assign(tensors[name])
    return LoadReport(tuple(loaded), tuple(missing), tuple(unused))


def _unexpected_missing(
    missing: list[str], tensors: Mapping[str, np.ndarray]
) -> list[str]:
    """Returns the missing weights of parts that are there otherwise."""
    present = {weight_map.part_of(name) for name in tensors}
    present.add(weight_map.ENCODER)
    return [name for name in missing if weight_map.part_of(name) in present]


def _unexpected_unused(
    unused: list[str], variables: Mapping[str, keras.Variable]
) -> list[str]:
    """Returns the unused tensors of parts that the model has.

    Optimizer state is not among them.
    """
    built = {weight_map.part_of(name) for name in variables}
    built.add(weight_map.ENCODER)
    return [
        name
        for name in unused
        if not weight_map.is_optimizer_state(name)
        and weight_map.head_of(name) in {None, *built}
    ]


def _misshapen(
    variables: Mapping[str, keras.Variable],
    tensors: Mapping[str, np.ndarray],
) -> list[str]:
    shapes = Tensors.from_arrays(tensors).shapes
    return [
        f"{name} {shapes[name]}, expected {tuple(variable.shape)}"
        for name, variable in variables.items()
        if name in shapes and shapes[name] != tuple(variable.shape)
    ]


def _describe(verb: str, names: Collection[str]) -> list[str]:
    """Returns one clause that lists `names`, or none if there are none."""
    return [f"{verb} {', '.join(sorted(names))}"] if names else []

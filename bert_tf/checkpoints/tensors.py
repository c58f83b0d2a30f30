"""Named tensors that are read one at a time, and stored optimizer state."""

import re
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np

from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.weight_map import Shape
from bert_tf.errors import UserError


class Tensors(Mapping[str, np.ndarray]):
    """A mapping that has all shapes and reads a tensor on access.

    It does not keep tensors, so converting a model takes no more memory than
    its largest tensor.

    Args:
      shapes: Name to shape, in the order in which the names are listed.
      read: Returns the tensor of a name.
    """

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        read: Callable[[str], np.ndarray],
    ) -> None:
        self._shapes = dict(shapes)
        self._read = read

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Tensors":
        """Wraps a mapping of arrays; returns `Tensors` unchanged."""
        if isinstance(arrays, cls):
            return arrays
        shapes = {name: tuple(np.shape(x)) for name, x in arrays.items()}
        return cls(shapes, arrays.__getitem__)

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Name to shape; reads no tensor."""
        return self._shapes

    def select(self, keep: Callable[[str], bool]) -> "Tensors":
        """Returns the tensors for whose names `keep` returns True."""
        kept = {name: s for name, s in self._shapes.items() if keep(name)}
        return Tensors(kept, self._read)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._shapes:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __contains__(self, name: object) -> bool:
        return name in self._shapes


def match_optimizer_state(
    shapes: Mapping[str, Shape],
    read: Callable[[str], np.ndarray],
    weights: Mapping[str, Shape],
    source: str,
    allow_missing: re.Pattern | None = None,
) -> tuple[Tensors, tuple[str, ...]]:
    """Checks that each slot belongs to a weight and has its shape.

    A weight needs no slots: the original has none for weights without a
    gradient, such as the pooler in its SQuAD models.

    Args:
      shapes: Name to shape of all slots, and of the step if it is stored.
      read: Returns the tensor of a name.
      weights: Canonical name to shape of the weights.
      source: The checkpoint's name in an error, for instance its path.
      allow_missing: Names of slots that may be missing or unused.

    Returns:
      The state, <float32> and the step <int64>, and the names of unused slots,
      which belong to no weight.

    Raises:
      UserError: Listing everything that does not fit.
    """
    kept, unused, problems = {}, [], []
    for name, shape in shapes.items():
        expected = _expected_shape(name, weights)
        if expected is None:
            unused.append(name)
            if not (allow_missing and allow_missing.search(name)):
                problems.append(f"{name} belongs to no weight")
        elif tuple(shape) != expected:
            problems.append(f"{name} has the shape {tuple(shape)}")
        else:
            kept[name] = expected
    for name in kept:
        other = _other_slot(name)
        lacks = other and other not in kept
        if lacks and not (allow_missing and allow_missing.search(other)):
            problems.append(f"{other} is missing")
    if problems:
        more = f", and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise UserError(
            f"The optimizer's state in {source} does not belong to its "
            f"weights: {', '.join(problems[:8])}{more}."
        )

    def read_state(name):
        is_step = name == weight_map.GLOBAL_STEP
        return np.asarray(read(name), np.int64 if is_step else np.float32)

    return Tensors(kept, read_state), tuple(unused)


def _expected_shape(name: str, weights: Mapping[str, Shape]) -> Shape | None:
    if name == weight_map.GLOBAL_STEP:
        return ()
    for suffix in weight_map.SLOT_SUFFIXES:
        if name.endswith(suffix):
            return weights.get(name.removesuffix(suffix))
    return None


def _other_slot(name: str) -> str | None:
    """Returns the other slot of the same weight."""
    first, second = weight_map.SLOT_SUFFIXES
    if name.endswith(first):
        return name.removesuffix(first) + second
    if name.endswith(second):
        return name.removesuffix(second) + first
    return None

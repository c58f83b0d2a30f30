"""Named tensors that are read one at a time."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np

Shape = tuple[int, ...]


class Tensors(Mapping[str, np.ndarray]):
    """A mapping that knows all shapes and reads a tensor when it is asked for.

    Nothing read is kept, so a model may pass through with no more in memory
    than its largest tensor.

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
        """Returns `arrays` themselves if they are `Tensors` already."""
        if isinstance(arrays, cls):
            return arrays
        shapes = {name: tuple(np.shape(x)) for name, x in arrays.items()}
        return cls(shapes, arrays.__getitem__)

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Name to shape; reads nothing."""
        return self._shapes

    def select(self, keep: Callable[[str], bool]) -> "Tensors":
        """Returns those whose name `keep` wants."""
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

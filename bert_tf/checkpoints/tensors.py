"""Named tensors that are read one at a time, and safetensors files of them.

A safetensors file consists of the length of its header, the header (JSON with
the names, types, shapes and offsets of the tensors), and the tensors' bytes.
"""

import contextlib
import json
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np
import safetensors.numpy
import tensorflow as tf

from bert_tf.checkpoints.weight_map import Shape
from bert_tf.errors import UserError
from bert_tf.io import files

_ALIGNMENT = 8
_CHUNK_BYTES = 1 << 24


class Tensors(Mapping[str, np.ndarray]):
    """Tensors by name: shapes are in memory, and values are read on access.

    Values are not kept, so converting a model takes no more memory than its
    largest tensor.

    Args:
      shapes: Name -> shape, in the order of iteration; also an attribute.
      read: Returns the tensor of a name.
    """

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        read: Callable[[str], np.ndarray],
    ) -> None:
        self.shapes = dict(shapes)
        self._read = read

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Tensors":
        """Wraps a mapping of arrays; returns `Tensors` unchanged."""
        if isinstance(arrays, cls):
            return arrays
        shapes = {name: tuple(np.shape(x)) for name, x in arrays.items()}
        return cls(shapes, arrays.__getitem__)

    def select(self, keep: Callable[[str], bool]) -> "Tensors":
        """Returns the tensors with names for which `keep` returns True."""
        kept = {name: s for name, s in self.shapes.items() if keep(name)}
        return Tensors(kept, self._read)

    def rename(self, names: Mapping[str, str]) -> "Tensors":
        """Returns the tensors under new names; `names` maps new name to old."""
        shapes = {new: self.shapes[old] for new, old in names.items()}
        return Tensors(shapes, lambda name: self._read(names[name]))

    def __or__(self, other: "Tensors") -> "Tensors":
        """Returns the tensors of `self` and `other`; `other` has precedence."""
        return Tensors(
            {**self.shapes, **other.shapes},
            lambda name: other[name] if name in other else self[name],
        )

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.shapes:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes


def read_safetensors(path: str) -> tuple[Tensors, dict[str, str]]:
    """Reads the header of a file; its tensors are read on access.

    All tensors of a remote file are read at once.

    Returns:
      The tensors, in the file's types; and a dict from name to type, for
      instance "F32" or "BF16".

    Raises:
      UserError: If the file is missing, truncated or damaged.
    """
    if "://" in path:
        return _read_whole(path)
    shapes, types = {}, {}
    with _open(path) as file:
        for name in file.keys():  # noqa: SIM118  # `file` is not iterable.
            part = file.get_slice(name)
            shapes[name] = tuple(part.get_shape())
            types[name] = part.get_dtype()

    def read_one(name):
        with _open(path) as file:
            return file.get_tensor(name)

    return Tensors(shapes, read_one), types


def _read_whole(path: str) -> tuple[Tensors, dict[str, str]]:
    try:
        contents = files.read_bytes(path)
        parts = safetensors.deserialize(contents)
        values = safetensors.numpy.load(contents)
    except (safetensors.SafetensorError, tf.errors.OpError) as error:
        raise damaged(path, error) from error
    types = {name: part["dtype"] for name, part in parts}
    return Tensors.from_arrays(values), types


@contextlib.contextmanager
def _open(path: str) -> Iterator[safetensors.safe_open]:
    try:
        # Do not map the file: mapped pages would count as used memory.
        with safetensors.safe_open(path, "numpy", backend="pread") as file:
            yield file
    except (safetensors.SafetensorError, OSError) as error:
        raise damaged(path, error) from error


def damaged(source: str, error: Exception | str) -> UserError:
    """Returns the error for a file that cannot be read."""
    reason = (str(error).splitlines() or [repr(error)])[0].rstrip(".")
    with contextlib.suppress(OSError, ValueError), open(source, "rb") as file:
        if file.read(30).startswith(b"version https://git-lfs"):
            return UserError(
                f"{source} is a pointer of Git LFS, not the file; run "
                "`git lfs pull` in its folder."
            )
    return UserError(
        f"{source} is damaged or incomplete and cannot be read ({reason}); "
        "copy it again."
    )


def write_safetensors(
    path: str,
    tensors: Tensors,
    metadata: Mapping[str, str],
    integers: Collection[str] = (),
) -> None:
    """Writes <float32> tensors, with one tensor in memory at a time.

    Tensors named in `integers` become <int64>; `metadata` goes into the header.
    `safetensors.numpy` writes the same bytes, but needs all tensors in memory.
    """
    header = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    # Write 8-byte integers before 4-byte floats, to align all tensors.
    names = sorted(tensors, key=lambda name: (name not in integers, name))
    for name in names:
        shape = tensors.shapes[name]
        size = 8 if name in integers else 4
        end = offset + int(np.prod(shape, dtype=np.int64)) * size
        header[name] = {
            "dtype": "I64" if name in integers else "F32",
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False)
    text = text.encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            dtype = "<i8" if name in integers else "<f4"
            value = np.ascontiguousarray(tensors[name], dtype)
            contents = memoryview(value.reshape(-1)).cast("B")
            for start in range(0, len(contents), _CHUNK_BYTES):
                file.write(bytes(contents[start : start + _CHUNK_BYTES]))

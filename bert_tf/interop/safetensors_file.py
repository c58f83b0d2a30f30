"""Weight files of Hugging Face's format, one tensor at a time.

A file is the length of its header, the header (names, types, shapes and where
the numbers lie, as JSON), and the numbers.
"""

import json
from collections.abc import Mapping

import numpy as np
import safetensors

from bert_tf.errors import UserError
from bert_tf.interop.tensors import Tensors

_ALIGNMENT = 8


def read(path: str) -> tuple[Tensors, dict[str, str]]:
    """Reads the header of a file; its tensors are read when asked for.

    Args:
      path: A local file.

    Returns:
      The tensors, in the file's types, and the types: name to, for instance,
      "F32" or "BF16".

    Raises:
      UserError: If the file is missing, truncated or damaged.
    """
    shapes, types = {}, {}
    try:
        with _open(path) as file:
            for name in file.keys():  # noqa: SIM118  # Not a mapping.
                part = file.get_slice(name)
                shapes[name] = tuple(part.get_shape())
                types[name] = part.get_dtype()
    except (safetensors.SafetensorError, OSError) as error:
        raise _damaged(path, error) from error

    def read_one(name):
        try:
            with _open(path) as file:
                return file.get_tensor(name)
        except (safetensors.SafetensorError, OSError) as error:
            raise _damaged(path, error) from error

    return Tensors(shapes, read_one), types


def _open(path: str):
    # Mapped into memory, the pages of a file would count as the process's.
    return safetensors.safe_open(path, framework="numpy", backend="pread")


def _damaged(path: str, error: Exception) -> UserError:
    reason = str(error).splitlines()[0].rstrip(".")
    return UserError(
        f"{path} is damaged or incomplete and cannot be read ({reason}); copy "
        "it again."
    )


def write(path: str, tensors: Tensors, metadata: Mapping[str, str]) -> None:
    """Writes <float32> tensors, of which it holds one at a time.

    The file is, byte by byte, what the library writes. `safetensors.numpy`
    itself wants all tensors at once.

    Args:
      path: The file to write.
      tensors: Name to value.
      metadata: What to say about the file in its header.
    """
    header, offset = {"__metadata__": dict(metadata)}, 0
    for name in sorted(tensors):
        shape = tensors.shapes[name]
        end = offset + int(np.prod(shape, dtype=np.int64)) * 4
        header[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False)
    text = text.encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in sorted(tensors):
            value = np.ascontiguousarray(tensors[name], "<f4")
            file.write(memoryview(value.reshape(-1)).cast("B"))

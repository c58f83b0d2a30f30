"""Reads and writes checkpoints of TensorFlow 1, the original's format.

A checkpoint is a prefix, for instance `bert_model.ckpt`, beside which lie
`bert_model.ckpt.index` and `bert_model.ckpt.data-00000-of-00001`.
"""

import os
import re

import numpy as np
import tensorflow as tf

from bert_tf import files
from bert_tf.errors import UserError
from bert_tf.interop.loading import LoadReport
from bert_tf.interop.loading import load_into

__all__ = ["LoadReport", "find_prefix", "load_into", "read", "write"]

_DATA_SUFFIX = ".data-00000-of-00001"
_PART = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_STEP = re.compile(r"-(\d+)$")
# The reader turns some statuses into Python's own errors: reading past the
# end of a file becomes an IndexError.
_READ_ERRORS = (
    tf.errors.OpError,
    IndexError,
    KeyError,
    OSError,
    RuntimeError,
    ValueError,
)
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def find_prefix(path: str) -> str:
    """Returns the prefix of the checkpoint that `path` means.

    Args:
      path: A prefix, one of a checkpoint's files, or a directory; of a
        directory the checkpoint that its file `checkpoint` names, or else the
        one of the latest step.

    Raises:
      UserError: If there is no checkpoint, or more than one that could be
        meant.
    """
    if tf.io.gfile.isdir(path):
        return _find_in_directory(path)
    prefix = _PART.sub("", path)
    if not tf.io.gfile.exists(f"{prefix}.index"):
        raise UserError(
            "A checkpoint is named by its prefix, beside which PREFIX.index "
            f"lies. Received: {path!r}, and there is no {prefix}.index."
        )
    return prefix


def _find_in_directory(path: str) -> str:
    named = _read_state_file(path)
    if named:
        return named
    names = [
        name.removesuffix(".index")
        for name in tf.io.gfile.listdir(path)
        if name.endswith(".index")
    ]
    if not names:
        raise UserError(f"There is no checkpoint in the directory {path!r}.")
    steps = {
        int(match[1]): name for name in names if (match := _STEP.search(name))
    }
    if len(names) > 1 and len(steps) < len(names):
        raise UserError(
            f"The directory {path!r} holds several checkpoints; name one of "
            f"them: {', '.join(sorted(names))}."
        )
    return os.path.join(path, steps[max(steps)] if steps else names[0])


def _read_state_file(directory: str) -> str | None:
    """Returns the prefix that the file `checkpoint` names, if it is there."""
    try:
        state = tf.train.get_checkpoint_state(directory)
    except tf.errors.OpError:
        return None
    if state is None:
        return None
    # Directories get moved, so the folder that the file names is not asked.
    name = os.path.basename(state.model_checkpoint_path)
    prefix = os.path.join(directory, name)
    return prefix if tf.io.gfile.exists(f"{prefix}.index") else None


def read(path: str) -> dict[str, np.ndarray]:
    """Returns all tensors of a checkpoint by their names.

    Args:
      path: What `find_prefix` takes.

    Raises:
      UserError: If there is no checkpoint, it is damaged, or of TensorFlow
        2's kind.
    """
    prefix = find_prefix(path)
    try:
        reader = tf.train.load_checkpoint(prefix)
        names = sorted(reader.get_variable_to_shape_map())
        tensors = {name: np.asarray(reader.get_tensor(name)) for name in names}
    except _READ_ERRORS as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(
            f"The checkpoint {prefix} is damaged or incomplete and cannot be "
            f"read ({reason})."
        ) from error
    if _OBJECT_GRAPH in tensors:
        raise UserError(
            f"{prefix} is a checkpoint of TensorFlow 2's kind, which names "
            "objects; expected one of TensorFlow 1's kind, which names "
            "variables."
        )
    return tensors


def write(prefix: str, tensors: dict[str, np.ndarray]) -> None:
    """Writes a checkpoint that the original reads.

    Its files appear whole, the index last: a checkpoint is there when its
    index is. An earlier checkpoint of the same prefix is replaced.

    Args:
      prefix: Where to, without the suffixes.
      tensors: Name to value.

    Raises:
      tf.errors.OpError: If the disk is full or cannot be written to; then
        nothing is left behind.
    """
    with (
        files.atomic_file(f"{prefix}.index") as index,
        files.atomic_file(f"{prefix}{_DATA_SUFFIX}") as data,
    ):
        scratch = f"{index}.save"
        try:
            tf.raw_ops.SaveV2(
                prefix=scratch,
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=[tf.convert_to_tensor(x) for x in tensors.values()],
            )
            tf.io.gfile.rename(f"{scratch}{_DATA_SUFFIX}", data)
            tf.io.gfile.rename(f"{scratch}.index", index)
        except BaseException:
            _remove_all(scratch)
            raise


def _remove_all(prefix: str) -> None:
    """Removes the files that begin with `prefix`."""
    folder, name = os.path.split(prefix)
    for other in tf.io.gfile.listdir(folder or "."):
        if other.startswith(name):
            tf.io.gfile.remove(os.path.join(folder, other))

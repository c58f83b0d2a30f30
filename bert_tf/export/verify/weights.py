"""Compares the variables of an export with the weights of the model.

They are matched by their bytes, not by their names, as the exporter has its own
names and may merge queries, keys and values in one kernel.
"""

import collections
import hashlib
import os
import re
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.export.verify.report import Check

_PREFIX = os.path.join("variables", "variables")
# Entries of an object-based checkpoint that are not variables.
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_COUNTER = "save_counter"
_LAYER = re.compile(r"/layer_(\d+)/")
_NUM_MERGED = 3
_MAX_SHOWN = 3


def check(
    version_directory: str, stored: StoredModel, num_layers: int | None = None
) -> Check:
    """Compares the variables of an export with the weights of its model.

    Args:
      version_directory: The export.
      stored: The model.
      num_layers: The number of encoder layers that are needed; by default all.

    Raises:
      UserError: If the variables cannot be read.
    """
    variables = _read(version_directory)
    names = _names_by_contents(
        stored, {value.dtype for value in variables.values()}
    )
    found: collections.Counter[str] = collections.Counter()
    unknown = []
    # Weights that are equal in float32 are also equal in half precision, so
    # variables in half precision choose from the rest.
    for variable, value in sorted(
        variables.items(), key=lambda item: -item[1].itemsize
    ):
        matches = _match(value, names, found)
        found.update(matches)
        if not matches:
            unknown.append(f"{variable} {list(value.shape)}")
    faults = []
    if unknown:
        faults.append(
            f"{len(unknown)} variables are not weights of the model: "
            f"{_shorten(unknown)}"
        )
    twice = [name for name, count in found.items() if count > 1]
    if twice:
        faults.append(f"weights are stored twice: {_shorten(twice)}")
    missing = [
        name
        for name in stored.weights
        if _is_needed(name, num_layers) and name not in found
    ]
    if missing:
        faults.append(f"weights are missing: {_shorten(missing)}")
    parameter_bytes = sum(value.nbytes for value in variables.values())
    return Check(
        "weights",
        f"{len(variables)} variables of {parameter_bytes:,} bytes in files of "
        f"{_file_bytes(version_directory):,}",
        tuple(faults),
    )


def _read(version_directory: str) -> dict[str, np.ndarray]:
    prefix = os.path.join(version_directory, _PREFIX)
    try:
        reader = tf.train.load_checkpoint(prefix)
        return {
            name: reader.get_tensor(name)
            for name in reader.get_variable_to_shape_map()
            if name != _OBJECTS and not name.startswith(_COUNTER)
        }
    except (tf.errors.OpError, ValueError) as error:
        raise UserError(
            f"The variables of {version_directory} cannot be read: {error}."
        ) from error


def _names_by_contents(
    stored: StoredModel, dtypes: set[np.dtype]
) -> Mapping[tuple, list[str]]:
    """Returns the names of weights by their contents, in any of the dtypes.

    Weights with equal contents, such as fresh biases, share an entry.
    """
    names: dict[tuple, list[str]] = {}
    for name in stored.weights:
        weight = stored.weights[name]
        for dtype in dtypes:
            cast = tf.cast(weight, dtype).numpy()
            names.setdefault(_key(cast), []).append(name)
    return names


def _key(value: np.ndarray) -> tuple:
    data = np.ascontiguousarray(value).tobytes()
    return value.shape, value.dtype.name, hashlib.sha256(data).digest()


def _match(
    value: np.ndarray,
    names: Mapping[tuple, list[str]],
    found: collections.Counter[str],
) -> list[str]:
    """Returns the names of the weights in a variable; [] if it has others.

    Args:
      value: The variable.
      names: The result of `_names_by_contents`.
      found: The number of variables found so far for each weight.
    """
    parts = [value]
    if _key(value) not in names:
        if not value.ndim or value.shape[-1] % _NUM_MERGED:
            return []
        parts = np.split(value, _NUM_MERGED, axis=-1)
    matches = []
    for part in parts:
        same = names.get(_key(part))
        if not same:
            return []
        # Each variable takes another one of the equal weights.
        free = (x for x in same if not found[x] and x not in matches)
        matches.append(next(free, same[0]))
    return matches


def _is_needed(name: str, num_layers: int | None) -> bool:
    """Returns whether every export needs a weight, unlike pooler and heads."""
    layer = _LAYER.search(name)
    if layer is not None and name.startswith("bert/"):
        return num_layers is None or int(layer[1]) < num_layers
    return name.startswith("bert/embeddings/")


def _file_bytes(version_directory: str) -> int:
    return sum(
        tf.io.gfile.stat(path).length
        for path in tf.io.gfile.glob(
            os.path.join(version_directory, f"{_PREFIX}*")
        )
    )


def _shorten(names: list[str]) -> str:
    more = len(names) - _MAX_SHOWN
    shown = ", ".join(names[:_MAX_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown

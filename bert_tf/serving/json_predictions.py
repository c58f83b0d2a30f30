"""JSON responses of `predict` (json_tensor.cc of TensorFlow Serving)."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_tf.serving import errors
from bert_tf.serving import json_values

# Outputs of such names are bytes, not text.
_BYTES_SUFFIX = "_bytes"


def write(outputs: Mapping[str, np.ndarray], by_rows: bool) -> bytes:
    """Returns the response to a `predict` request.

    Args:
      outputs: The outputs by name.
      by_rows: Whether the request had the row form.

    Raises:
      RequestError: If the outputs cannot be written in that form.
    """
    if not outputs:
        raise errors.invalid("Cannot convert empty tensor map to JSON")
    if by_rows:
        _check_rows(outputs)
    has_nan = any(
        value.dtype.kind == "f" and not np.isfinite(value).all()
        for value in outputs.values()
    )
    columns = {
        name: _writable(name, value, has_nan) for name, value in outputs.items()
    }
    if len(columns) == 1:
        (predictions,) = columns.values()
    elif by_rows:
        names = tuple(columns)
        predictions = [
            dict(zip(names, row, strict=True))
            for row in zip(*columns.values(), strict=True)
        ]
    else:
        predictions = columns
    key = "predictions" if by_rows else "outputs"
    return json_values.dump({key: predictions}, has_nan)


def _check_rows(outputs: Mapping[str, np.ndarray]) -> None:
    sizes = {}
    for name, value in outputs.items():
        if not value.ndim:
            raise errors.invalid(
                f"Tensor name: {name} has no shape information "
            )
        sizes[name] = len(value)
        expected = next(iter(sizes.values()))
        if len(value) != expected:
            raise errors.invalid(
                f"Tensor name: {name} has inconsistent batch size: "
                f"{len(value)} expecting: {expected}"
            )


def _writable(name: str, value: np.ndarray, as_lists: bool) -> Any:
    """Returns what JSON can be made of: an array of numbers, or lists."""
    kind = value.dtype.kind
    if kind in "OS":
        return _string_lists(value, name.endswith(_BYTES_SUFFIX))
    if kind not in "fiub":
        raise errors.invalid(
            f"Failed to write JSON value for tensor type: {value.dtype}"
        )
    if value.dtype == np.float16:
        value = value.astype(np.float32)
    if as_lists:
        if value.dtype == np.float32:
            # By way of the fewest digits that say the same float32.
            value = value.astype(str).astype(np.float64)
        return value.tolist()
    return np.ascontiguousarray(value) if value.ndim else value[()]


def _string_lists(value: np.ndarray, as_bytes: bool) -> Any:
    """Returns the strings of an output in nested lists."""
    if as_bytes:
        texts = [
            {json_values.B64: base64.b64encode(item).decode()}
            for item in value.ravel().tolist()
        ]
    else:
        texts = [
            item.decode("utf-8", "surrogateescape")
            for item in value.ravel().tolist()
        ]
    nested = np.empty(len(texts), object)
    nested[:] = texts
    return nested.reshape(value.shape).tolist()

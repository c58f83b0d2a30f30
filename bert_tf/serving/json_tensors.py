"""JSON for `predict`: requests to arrays, and arrays to responses.

Error messages are TensorFlow Serving's (json_tensor.cc).
"""

import base64
import itertools
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.serving import errors
from bert_tf.serving import json_values
from bert_tf.serving.json_values import shown
from bert_tf.serving.json_values import type_name
from bert_tf.serving.servable import Signature

_SIGNATURE = "signature_name"
_ROWS = "instances"
_COLUMNS = "inputs"
_INTEGERS = (
    tf.int8,
    tf.int16,
    tf.int32,
    tf.int64,
    tf.uint8,
    tf.uint32,
    tf.uint64,
)
_FLOATS = (tf.float32, tf.float64)
# The largest integers up to which all integers are exact.
_MAX_WHOLE = {tf.float32: 2**24 - 1, tf.float64: 2**53 - 1}
# Outputs whose names end like this are bytes, not text.
_BYTES_SUFFIX = "_bytes"
# NumPy's limit on the number of dimensions.
_MAX_RANK = 64


def signature_name(document: Mapping[str, Any]) -> str:
    """Returns the signature name in a request; "" means the default.

    Raises:
      RequestError: If it is not a string.
    """
    name = document.get(_SIGNATURE, "")
    if not isinstance(name, str):
        raise errors.invalid(
            f"JSON Value: {shown(document)} not formatted correctly. "
            f"'{_SIGNATURE}' key must be a string value."
        )
    return json_values.require_utf8(name, "The signature name")


def predict_inputs(
    document: Mapping[str, Any], signature: Signature
) -> tuple[dict[str, np.ndarray], bool]:
    """Returns the inputs of a `predict` request.

    Returns:
      The inputs by name, and True if the request is in the row format.

    Raises:
      RequestError: If the inputs do not match the signature.
    """
    if not signature.inputs:
        raise errors.invalid(
            f"Failed to get input map for signature: {signature.name}"
        )
    if _ROWS in document and _COLUMNS in document:
        raise errors.invalid(
            f"JSON Value: {shown(document)} Not formatted correctly "
            f"expecting only one of '{_COLUMNS}' or '{_ROWS}' keys to exist "
        )
    if _ROWS in document:
        return _from_rows(document, signature), True
    if _COLUMNS in document:
        return _from_columns(document[_COLUMNS], signature), False
    raise errors.invalid(f"Missing '{_COLUMNS}' or '{_ROWS}' key")


def _from_rows(
    document: Mapping[str, Any], signature: Signature
) -> dict[str, np.ndarray]:
    rows = document[_ROWS]
    if not isinstance(rows, list):
        raise errors.invalid(
            f"JSON Value: {shown(document)} Excepting '{_ROWS}' to be an "
            "list/array"
        )
    if not rows:
        raise errors.invalid(
            f"JSON Value: {shown(document)} No values in '{_ROWS}' array"
        )
    if not _is_object(rows[0]):
        if len(signature.inputs) > 1:
            raise errors.invalid(
                "instances is a plain list, but expecting list of objects as "
                "multiple input tensors required as per tensorinfo_map"
            )
        for i, row in enumerate(rows):
            if _is_object(row):
                raise errors.invalid(
                    "Expecting value/list but got object at item "
                    f"{i} of input list"
                )
        (name,) = signature.inputs
        return {name: _tensor(rows, signature.inputs[name].dtype)}
    for i, row in enumerate(rows):
        _check_row(i, row, signature)
    return {
        name: _tensor([row[name] for row in rows], spec.dtype, name)
        for name, spec in signature.inputs.items()
    }


def _check_row(i: int, row: Any, signature: Signature) -> None:
    if not _is_object(row):
        raise errors.invalid(
            f"Expecting object but got list at item {i} of input list"
        )
    if row.keys() == signature.inputs.keys():
        return
    for name in row:
        if name not in signature.inputs:
            name = errors.shortened(name)
            raise errors.invalid(
                f"Failed to process element: {i} key: {name} of 'instances' "
                "list. Error: INVALID_ARGUMENT: JSON object: does not have "
                f"named input: {name}"
            )
    raise errors.invalid(
        f"Failed to process element: {i} of 'instances' list. JSON object: "
        f"{shown(row)} keys must be equal to: {','.join(signature.inputs)}"
    )


def _from_columns(value: Any, signature: Signature) -> dict[str, np.ndarray]:
    if not _is_object(value):
        if len(signature.inputs) > 1:
            raise errors.invalid(
                "inputs is a plain value/list, but expecting an object as "
                "multiple input tensors required as per tensorinfo_map"
            )
        (name,) = signature.inputs
        return {name: _tensor(value, signature.inputs[name].dtype)}
    for name in signature.inputs:
        if name not in value:
            raise errors.invalid(
                f"Missing named input: {name} in 'inputs' object."
            )
    return {
        name: _tensor(value[name], spec.dtype, name)
        for name, spec in signature.inputs.items()
    }


def _tensor(value: Any, dtype: tf.DType, name: str = "") -> np.ndarray:
    """Converts nested lists to a tensor.

    Raises:
      RequestError: If the lists are ragged or their values have another type.
    """
    shape = []
    first = value
    while isinstance(first, list):
        shape.append(len(first))
        if not first or len(shape) > _MAX_RANK:
            break
        first = first[0]
    if len(shape) > _MAX_RANK:
        raise _named(name, f"Lists are nested deeper than {_MAX_RANK}")
    values = [value]
    for level, size in enumerate(shape):
        if set(map(type, values)) - {list}:
            raise _named(
                name,
                f"JSON Value: {shown(_first_not(values, list))} found at "
                f"incorrect level: {level + 1} in the JSON DOM. Expected at "
                f"level: {len(shape)}",
            )
        for other in set(map(len, values)) - {size}:
            raise _named(
                name,
                f"Encountered list at unexpected size: {other} at level: "
                f"{level} expected size: {size}",
            )
        values = list(itertools.chain.from_iterable(values))
    if list in set(map(type, values)):
        raise _named(
            name,
            f"Encountered list at unexpected level: {len(shape)} expected < "
            f"{len(shape)}",
        )
    return _flat_tensor(values, dtype, name).reshape(shape)


def _flat_tensor(
    values: Sequence[Any], dtype: tf.DType, name: str
) -> np.ndarray:
    """Returns a vector of scalar values."""
    if dtype == tf.string:
        array = np.empty(len(values), object)
        array[:] = [_string(value, name) for value in values]
        return array
    if dtype == tf.bool:
        allowed = {bool}
    elif dtype in _INTEGERS:
        allowed = {int}
    elif dtype in _FLOATS:
        allowed = {int, float}
    else:
        raise errors.unimplemented(
            f"Conversion of JSON Value: {shown(values)} to type: {dtype.name}"
        )
    if set(map(type, values)) - allowed:
        raise _type_error(_first_not(values, *allowed), dtype, name)
    try:
        with np.errstate(over="ignore"):
            array = np.array(values, dtype.as_numpy_dtype)
    except OverflowError as error:
        limits = dtype.limits if dtype in _INTEGERS else (-1.8e308, 1.8e308)
        value = next(x for x in values if not limits[0] <= x <= limits[1])
        raise _type_error(value, dtype, name) from error
    if dtype in _FLOATS:
        _check_digits(values, array, dtype, name)
    return array


def _check_digits(
    values: Sequence[float], array: np.ndarray, dtype: tf.DType, name: str
) -> None:
    """Raises `RequestError` if a finite number is too large for the type."""
    limit = _MAX_WHOLE[dtype]
    for value in values:
        if type(value) is int and abs(value) > limit:
            break
    else:
        if np.isfinite(array).all():
            return
        finite = np.isfinite(np.array(values, np.float64))
        lost = np.flatnonzero(finite & ~np.isfinite(array))
        if not lost.size:
            return
        value = values[lost[0]]
    kind = "float" if dtype == tf.float32 else "double"
    raise _named(
        name,
        f"Cannot convert JSON value: {shown(value)} to {kind} without loss "
        "of precision.",
    )


def _string(value: Any, name: str) -> bytes:
    if type(value) is dict:
        return _named_call(name, json_values.decode_b64, value)
    if type(value) is not str:
        raise _type_error(value, tf.string, name)
    return _named_call(name, json_values.encode, value)


def _is_object(value: Any) -> bool:
    return type(value) is dict and not json_values.is_b64(value)


def _type_error(value: Any, dtype: tf.DType, name: str) -> errors.RequestError:
    return _named(
        name,
        f"JSON Value: {shown(value)} Type: {type_name(value)} is not of "
        f"expected type: {dtype.name}",
    )


def _first_not(values: Sequence[Any], *types: type) -> Any:
    return next(value for value in values if type(value) not in types)


def _named(name: str, message: str) -> errors.RequestError:
    return errors.invalid(f"Input {name!r}: {message}" if name else message)


def _named_call(name: str, function, value: Any) -> bytes:
    try:
        return function(value)
    except errors.RequestError as error:
        raise _named(name, error.message) from error


def write_predictions(
    outputs: Mapping[str, np.ndarray], by_rows: bool
) -> bytes:
    """Returns the response to a `predict` request.

    Raises:
      RequestError: If the outputs cannot be written in that format.
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
    """Returns an array of numbers or nested lists, for the JSON encoder."""
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
            # By way of the shortest decimal number for each float32.
            value = value.astype(str).astype(np.float64)
        return value.tolist()
    return np.ascontiguousarray(value) if value.ndim else value[()]


def _string_lists(value: np.ndarray, as_bytes: bool) -> Any:
    """Returns the strings of an output as nested lists."""
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

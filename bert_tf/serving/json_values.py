"""JSON in TensorFlow Serving's dialect: bodies of requests, and answers.

JSON may contain NaN and Infinity. Bytes that are not UTF-8 pass unchanged, as
surrogates in strings. All functions raise `RequestError` for values that the
dialect refuses; messages are TensorFlow Serving's (json_tensor.cc).
"""

import base64
import binascii
import functools
import itertools
import json
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import tensorflow as tf
from tensorflow_serving.apis import classification_pb2
from tensorflow_serving.apis import input_pb2
from tensorflow_serving.apis import regression_pb2

from bert_tf.serving import errors
from bert_tf.serving.servable import DTYPES
from bert_tf.serving.servable import Arrays
from bert_tf.serving.servable import Signature

_B64 = "b64"
_SPACES = b" \t\n\r\v\f"
_CONTEXT = "context"
_EXAMPLES = "examples"
_INT64 = range(-(2**63), 2**63)
_SIGNATURE = "signature_name"
_ROWS = "instances"
_COLUMNS = "inputs"
# Larger integers are refused, because a float may round them.
_MAX_WHOLE = {tf.float32: 2**24 - 1, tf.float64: 2**53 - 1}
# Outputs with this suffix are bytes, not text, so JSON has them as base64.
_BYTES_SUFFIX = "_bytes"
# NumPy arrays have at most 64 dimensions, so deeper lists are refused.
_MAX_RANK = 64


def parse(body: bytes) -> dict[str, Any]:
    """Parses the JSON object in a request's body."""
    if not body:
        raise errors.invalid("JSON Parse error: The document is empty")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        # orjson refuses NaN and invalid UTF-8; TensorFlow Serving does not.
        document = _parse_leniently(body)
    if not isinstance(document, dict):
        raise _invalid(document, "Is not object")
    return document


def dump(document: Any, has_nan: bool = False) -> bytes:
    """Returns a document as JSON.

    Args:
      document: The values to write, which may contain NumPy arrays.
      has_nan: True if the document contains NaN or Infinity, which orjson would
        write as null. If True, pass lists: NaN in an array would become null.
    """
    encode_one = functools.partial(
        orjson.dumps, option=orjson.OPT_SERIALIZE_NUMPY
    )
    if not has_nan:
        try:
            return encode_one(document)
        except orjson.JSONEncodeError:
            pass  # orjson refuses surrogates; `json` writes them.
    text = json.dumps(
        document,
        ensure_ascii=False,
        # Do not use `tolist`: it makes 0.10000000149 of a float32 of 0.1.
        default=lambda array: orjson.loads(encode_one(array)),
    )
    return text.encode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """Returns the bytes of a JSON string."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise errors.invalid(
            "JSON Parse error: The surrogate pair in string is invalid."
        ) from error


def decode_b64(value: Any) -> bytes:
    """Returns the bytes of {"b64": "..."}."""
    if not is_b64(value):
        raise _invalid(value, "not formatted correctly for base64 data")
    try:
        # Remove white space without `split`: it could make millions of strings.
        text = value[_B64].encode("ascii").translate(None, _SPACES)
        padded = text + b"=" * (-len(text) % 4)
        return base64.b64decode(padded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise errors.invalid("Unable to base64 decode") from error


def is_b64(value: Any) -> bool:
    """Returns True for {"b64": "..."}."""
    return (
        type(value) is dict and len(value) == 1 and type(value.get(_B64)) is str
    )


def type_name(value: Any) -> str:
    """Returns rapidjson's name for a value's type, for error messages."""
    if value is None or isinstance(value, bool):
        return str(value).replace("None", "Null")
    if isinstance(value, int | float):
        return "Number"
    return {str: "String", list: "Array", dict: "Object"}[type(value)]


def shown(value: Any) -> str:
    """Returns the beginning of a value's JSON."""
    text = ""
    # Encode only the beginning: a value may be large, or too deep for `dumps`.
    for piece in json.JSONEncoder().iterencode(value):
        text += piece
        if len(text) > errors.MAX_SHOWN:
            break
    return errors.shortened(text)


def _invalid(value: Any, problem: str) -> errors.RequestError:
    return errors.invalid(f"JSON Value: {shown(value)} {problem}")


def _parse_leniently(body: bytes) -> Any:
    try:
        text = body.decode("utf-8-sig", "surrogateescape")
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", str(error)).removesuffix(" at")
        offset = getattr(error, "pos", None)
        at = "" if offset is None else f" at offset: {offset}"
        raise errors.invalid(f"JSON Parse error: {reason}{at}") from error


def read_examples(document: Mapping[str, Any]) -> input_pb2.Input:
    """Returns the examples of a request."""
    if _EXAMPLES not in document:
        raise _invalid(
            document,
            f"When method is classify, key '{_EXAMPLES}' is expected and was "
            "not found",
        )
    examples = document[_EXAMPLES]
    if not isinstance(examples, list):
        raise _invalid(
            document, f"Expecting '{_EXAMPLES}' value to be an list/array"
        )
    if not examples:
        raise _invalid(document, f"'{_EXAMPLES}' value is an empty array")
    lists = {"examples": map(_example, examples)}
    if _CONTEXT not in document:
        return input_pb2.Input(example_list=lists)
    lists["context"] = _example(document[_CONTEXT])
    return input_pb2.Input(example_list_with_context=lists)


def write_classifications(
    result: classification_pb2.ClassificationResult,
) -> bytes:
    """Returns the response to `classify`: [label, score] for each class."""
    rows = [
        [[item.label, _number(item.score)] for item in row.classes]
        for row in result.classifications
    ]
    numbers = [score for row in rows for _, score in row]
    return dump({"results": rows}, not np.isfinite(numbers).all())


def write_regressions(result: regression_pb2.RegressionResult) -> bytes:
    """Returns the response to `regress`."""
    values = [_number(item.value) for item in result.regressions]
    return dump({"results": values}, not np.isfinite(values).all())


def _number(value: float) -> float:
    """Returns a float32 as its shortest decimal: 0.1, not 0.10000000149."""
    return float(str(np.float32(value)))


def _example(value: Any) -> tf.train.Example:
    if not isinstance(value, dict):
        raise errors.invalid(
            f"Example must be JSON object but got JSON {type_name(value)}"
        )
    example = tf.train.Example()
    for name, content in value.items():
        items = content if isinstance(content, list) else [content]
        require_utf8(name, "The name of a feature")
        # Look up the name to create the feature, even if `items` is empty.
        feature = example.features.feature[name]
        for item in items:
            _add(feature, errors.shortened(name), item)
    return example


def require_utf8(name: str, what: str) -> str:
    """Returns a name; raises `RequestError` if UTF-8 cannot encode it."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise errors.invalid(
            f"{what} must be UTF-8. Received: {errors.shortened(name)}."
        ) from error
    return name


def _add(feature: tf.train.Feature, name: str, value: Any) -> None:
    """Adds a value to a feature; all values of a feature must have one type."""
    if isinstance(value, bool | int):
        if value not in _INT64:
            raise errors.invalid(
                f"Feature: {name} has uint64 element. Only int64 is supported."
            )
        kind, value = "int64_list", int(value)
    elif isinstance(value, float):
        if np.isfinite(value) and abs(value) > float(np.finfo(np.float32).max):
            raise errors.invalid(
                f"Cannot convert JSON value: {value} to float without loss of "
                "precision."
            )
        kind = "float_list"
    elif isinstance(value, str) or is_b64(value):
        kind, value = "bytes_list", _string(value)
    else:
        raise errors.invalid(
            f"Feature: {name} has element with unexpected JSON type: "
            f"{type_name(value)}"
        )
    expected = feature.WhichOneof("kind")
    if expected not in (None, kind):
        raise errors.invalid(
            f"Unexpected element type in feature: {name} expecting type: "
            f"{expected.removesuffix('_list')}"
        )
    getattr(feature, kind).value.append(value)


def signature_name(document: Mapping[str, Any]) -> str:
    """Returns the signature name in a request; "" means the default."""
    name = document.get(_SIGNATURE, "")
    if not isinstance(name, str):
        raise _invalid(
            document,
            f"not formatted correctly. '{_SIGNATURE}' key must be a string "
            "value.",
        )
    return require_utf8(name, "The signature name")


def predict_inputs(
    document: Mapping[str, Any], signature: Signature
) -> tuple[dict[str, np.ndarray], bool]:
    """Returns the inputs of a `predict` request.

    Returns:
      The inputs by name, and whether they are rows ("instances").
    """
    if not signature.inputs:
        raise errors.invalid(
            f"Failed to get input map for signature: {signature.name}"
        )
    if _ROWS in document and _COLUMNS in document:
        raise _invalid(
            document,
            f"Not formatted correctly expecting only one of '{_COLUMNS}' or "
            f"'{_ROWS}' keys to exist ",
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
        raise _invalid(document, f"Excepting '{_ROWS}' to be an list/array")
    if not rows:
        raise _invalid(document, f"No values in '{_ROWS}' array")
    if not _is_object(rows[0]):
        _check_single(signature, "instances is a plain list", "list of objects")
        for i, row in enumerate(rows):
            if _is_object(row):
                raise errors.invalid(
                    "Expecting value/list but got object at item "
                    f"{i} of input list"
                )
        return _tensors(rows, signature)
    for i, row in enumerate(rows):
        _check_row(i, row, signature)
    columns = {x: [row[x] for row in rows] for x in signature.inputs}
    return _tensors(columns, signature)


def _check_single(signature: Signature, received: str, expected: str) -> None:
    """Checks that the signature has one input, so it needs no name."""
    if len(signature.inputs) > 1:
        raise errors.invalid(
            f"{received}, but expecting {expected} as multiple input tensors "
            "required as per tensorinfo_map"
        )


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
        _check_single(signature, "inputs is a plain value/list", "an object")
        return _tensors(value, signature)
    for name in signature.inputs:
        if name not in value:
            raise errors.invalid(
                f"Missing named input: {name} in 'inputs' object."
            )
    return _tensors(value, signature)


def _tensors(values: Any, signature: Signature) -> dict[str, np.ndarray]:
    """Converts nested lists to tensors; a single input may lack its name."""
    tensors = {}
    is_named = _is_object(values)
    for name, spec in signature.inputs.items():
        try:
            value = values[name] if is_named else values
            tensors[name] = _from_lists(value, spec.dtype)
        except errors.RequestError as error:
            if not is_named or error.code_name != "INVALID_ARGUMENT":
                raise
            raise errors.invalid(f"Input {name!r}: {error.message}") from error
    return tensors


def _from_lists(value: Any, dtype: tf.DType) -> np.ndarray:
    shape = []
    first = value
    while isinstance(first, list):
        shape.append(len(first))
        if not first or len(shape) > _MAX_RANK:
            break
        first = first[0]
    if len(shape) > _MAX_RANK:
        raise errors.invalid(f"Lists are nested deeper than {_MAX_RANK}")
    values = [value]
    for level, size in enumerate(shape):
        if set(map(type, values)) - {list}:
            raise _invalid(
                _first_not(values, list),
                f"found at incorrect level: {level + 1} in the JSON DOM. "
                f"Expected at level: {len(shape)}",
            )
        for other in set(map(len, values)) - {size}:
            raise errors.invalid(
                f"Encountered list at unexpected size: {other} at level: "
                f"{level} expected size: {size}"
            )
        values = list(itertools.chain.from_iterable(values))
    if list in set(map(type, values)):
        raise errors.invalid(
            f"Encountered list at unexpected level: {len(shape)} expected < "
            f"{len(shape)}"
        )
    return _flat_tensor(values, dtype).reshape(shape)


def _flat_tensor(values: Sequence[Any], dtype: tf.DType) -> np.ndarray:
    if dtype == tf.string:
        array = np.empty(len(values), object)
        array[:] = [_string(value) for value in values]
        return array
    _, allowed = DTYPES.get(dtype, ("", ()))
    if not allowed:
        raise errors.unimplemented(
            f"Conversion of JSON Value: {shown(values)} to type: {dtype.name}"
        )
    if set(map(type, values)).difference(allowed):
        raise _type_error(_first_not(values, *allowed), dtype)
    try:
        with np.errstate(over="ignore"):
            array = np.array(values, dtype.as_numpy_dtype)
    except OverflowError as error:
        limits = dtype.limits if dtype.is_integer else (-1.8e308, 1.8e308)
        value = next(x for x in values if not limits[0] <= x <= limits[1])
        raise _type_error(value, dtype) from error
    if dtype in _MAX_WHOLE:
        _check_digits(values, array, dtype)
    return array


def _check_digits(
    values: Sequence[float], array: np.ndarray, dtype: tf.DType
) -> None:
    """Raises `RequestError` if integers are too large or floats overflow."""
    limit = _MAX_WHOLE[dtype]
    large = (x for x in values if type(x) is int and abs(x) > limit)
    value = next(large, None)
    if value is None:
        is_lost = np.isinf(array)
        if is_lost.any():
            is_lost &= np.isfinite(np.array(values, np.float64))
        if not is_lost.any():
            return
        value = values[is_lost.argmax()]
    kind = "float" if dtype == tf.float32 else "double"
    raise errors.invalid(
        f"Cannot convert JSON value: {shown(value)} to {kind} without loss of "
        "precision."
    )


def _string(value: Any) -> bytes:
    if type(value) is dict:
        return decode_b64(value)
    if type(value) is not str:
        raise _type_error(value, tf.string)
    return encode(value)


def _is_object(value: Any) -> bool:
    return type(value) is dict and not is_b64(value)


def _type_error(value: Any, dtype: tf.DType) -> errors.RequestError:
    return _invalid(
        value,
        f"Type: {type_name(value)} is not of expected type: {dtype.name}",
    )


def _first_not(values: Sequence[Any], *types: type) -> Any:
    return next(value for value in values if type(value) not in types)


def write_predictions(outputs: Arrays, by_rows: bool) -> bytes:
    """Returns the response to a `predict` request, in row or column format."""
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
    return dump({key: predictions}, has_nan)


def _check_rows(outputs: Arrays) -> None:
    first = next(iter(outputs.values()))
    for name, value in outputs.items():
        if not value.ndim:
            raise errors.invalid(
                f"Tensor name: {name} has no shape information "
            )
        if len(value) != len(first):
            raise errors.invalid(
                f"Tensor name: {name} has inconsistent batch size: "
                f"{len(value)} expecting: {len(first)}"
            )


def _writable(name: str, value: np.ndarray, as_lists: bool) -> Any:
    """Returns an output for the JSON encoder: an array or nested lists."""
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
            # Convert through text, so that 0.1 does not become 0.10000000149.
            value = value.astype(str).astype(np.float64)
        return value.tolist()
    return np.ascontiguousarray(value) if value.ndim else value[()]


def _string_lists(value: np.ndarray, as_bytes: bool) -> Any:
    texts = np.empty(value.size, object)
    texts[:] = [
        {_B64: base64.b64encode(x).decode()}
        if as_bytes
        else x.decode("utf-8", "surrogateescape")
        for x in value.flat
    ]
    return texts.reshape(value.shape).tolist()

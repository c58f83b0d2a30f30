"""JSON in TensorFlow Serving's dialect; the bodies of `classify` and `regress`.

NaN and Infinity are literals, and bytes that are not UTF-8 pass through strings
unchanged, as surrogates in Python's strings. Error messages are TensorFlow
Serving's (json_tensor.cc).
"""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import tensorflow as tf
from tensorflow_serving.apis import classification_pb2
from tensorflow_serving.apis import input_pb2
from tensorflow_serving.apis import regression_pb2

from bert_tf.serving import errors

B64 = "b64"
_SPACES = b" \t\n\r\v\f"
_CONTEXT = "context"
_EXAMPLES = "examples"
_INT64 = range(-(2**63), 2**63)


def parse(body: bytes) -> dict[str, Any]:
    """Parses the JSON object in a request's body.

    Raises:
      RequestError: If the body is not a JSON object.
    """
    if not body:
        raise errors.invalid("JSON Parse error: The document is empty")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        # orjson is strict: it refuses NaN and bytes that are not UTF-8.
        document = _parse_leniently(body)
    if not isinstance(document, dict):
        raise errors.invalid(f"JSON Value: {shown(document)} Is not object")
    return document


def dump(document: Any, has_nan: bool = False) -> bytes:
    """Returns a document as JSON.

    Args:
      document: The values to write, which may contain NumPy arrays.
      has_nan: True if the document contains NaN or Infinity, which standard
        JSON lacks; then it must not contain arrays.
    """
    if not has_nan:
        try:
            return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
        except orjson.JSONEncodeError:
            pass  # Surrogates, which orjson refuses.
    text = json.dumps(
        document, ensure_ascii=False, default=lambda array: array.tolist()
    )
    return text.encode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """Returns the bytes of a JSON string.

    Raises:
      RequestError: If it contains half of a surrogate pair.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise errors.invalid(
            "JSON Parse error: The surrogate pair in string is invalid."
        ) from error


def decode_b64(value: Any) -> bytes:
    """Returns the bytes of {"b64": "..."}.

    Raises:
      RequestError: If the value has another form or is not base64.
    """
    if not is_b64(value):
        raise errors.invalid(
            f"JSON Value: {shown(value)} not formatted correctly for base64 "
            "data"
        )
    try:
        # Splitting at spaces could make millions of strings.
        text = value[B64].encode("ascii").translate(None, _SPACES)
        padded = text + b"=" * (-len(text) % 4)
        return base64.b64decode(padded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise errors.invalid("Unable to base64 decode") from error


def is_b64(value: Any) -> bool:
    """Returns True for {"b64": "..."}."""
    return (
        type(value) is dict and len(value) == 1 and type(value.get(B64)) is str
    )


def type_name(value: Any) -> str:
    """Returns rapidjson's name for the type of a value."""
    if value is None or isinstance(value, bool):
        return str(value).replace("None", "Null")
    if isinstance(value, int | float):
        return "Number"
    return {str: "String", list: "Array", dict: "Object"}[type(value)]


def shown(value: Any) -> str:
    """Returns the beginning of a value's JSON."""
    text = ""
    # Piece by piece: the value may be large, or too deep for `json.dumps`.
    for piece in json.JSONEncoder().iterencode(value):
        text += piece
        if len(text) > errors.MAX_SHOWN:
            break
    return errors.shortened(text)


def _parse_leniently(body: bytes) -> Any:
    try:
        text = body.decode("utf-8-sig", "surrogateescape")
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", str(error)).removesuffix(" at")
        place = getattr(error, "pos", None)
        at = "" if place is None else f" at offset: {place}"
        raise errors.invalid(f"JSON Parse error: {reason}{at}") from error


def read_examples(document: Mapping[str, Any]) -> input_pb2.Input:
    """Returns the examples of a request.

    Raises:
      RequestError: If it has no valid examples.
    """
    if _EXAMPLES not in document:
        raise errors.invalid(
            f"JSON Value: {shown(document)} When method is "
            f"classify, key '{_EXAMPLES}' is expected and was not found"
        )
    examples = document[_EXAMPLES]
    if not isinstance(examples, list):
        raise errors.invalid(
            f"JSON Value: {shown(document)} Expecting "
            f"'{_EXAMPLES}' value to be an list/array"
        )
    if not examples:
        raise errors.invalid(
            f"JSON Value: {shown(document)} '{_EXAMPLES}' value is "
            "an empty array"
        )
    protos = [_example(example) for example in examples]
    if _CONTEXT in document:
        return input_pb2.Input(
            example_list_with_context=input_pb2.ExampleListWithContext(
                examples=protos, context=_example(document[_CONTEXT])
            )
        )
    return input_pb2.Input(example_list=input_pb2.ExampleList(examples=protos))


def write_classifications(
    result: classification_pb2.ClassificationResult,
) -> bytes:
    """Returns the response to `classify`: [label, score] for each class."""
    rows = [
        [[item.label, _number(item.score)] for item in row.classes]
        for row in result.classifications
    ]
    return _dump_results(rows, [score for row in rows for _, score in row])


def write_regressions(result: regression_pb2.RegressionResult) -> bytes:
    """Returns the response to `regress`."""
    values = [_number(item.value) for item in result.regressions]
    return _dump_results(values, values)


def _dump_results(results: list, numbers: list[float]) -> bytes:
    has_nan = not np.isfinite(numbers).all()
    return dump({"results": results}, has_nan)


def _number(value: float) -> float:
    """Returns the shortest decimal number for a float32."""
    return float(str(np.float32(value)))


def _example(value: Any) -> tf.train.Example:
    if not isinstance(value, dict):
        raise errors.invalid(
            f"Example must be JSON object but got JSON {type_name(value)}"
        )
    example = tf.train.Example()
    for name, content in value.items():
        items = content if isinstance(content, list) else [content]
        # Created even without a value: an empty feature exists.
        require_utf8(name, "The name of a feature")
        feature = example.features.feature[name]
        for item in items:
            _add(feature, errors.shortened(name), item)
    return example


def require_utf8(name: str, what: str) -> str:
    """Returns a name; raises `RequestError` if UTF-8 cannot hold it."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise errors.invalid(
            f"{what} must be UTF-8. Received: {errors.shortened(name)}."
        ) from error
    return name


def _add(feature: tf.train.Feature, name: str, value: Any) -> None:
    """Adds a value to a feature, whose values must have one type."""
    if value is None or isinstance(value, list):
        raise _unexpected(name, value)
    if isinstance(value, bool | int):
        if value not in _INT64:
            raise errors.invalid(
                f"Feature: {name} has uint64 element. Only int64 is supported."
            )
        _require_kind(feature, name, "int64_list")
        feature.int64_list.value.append(int(value))
    elif isinstance(value, float):
        _require_kind(feature, name, "float_list")
        if np.isfinite(value) and abs(value) > float(np.finfo(np.float32).max):
            raise errors.invalid(
                f"Cannot convert JSON value: {value} to float without loss of "
                "precision."
            )
        feature.float_list.value.append(value)
    else:
        if isinstance(value, dict) and not is_b64(value):
            raise _unexpected(name, value)
        _require_kind(feature, name, "bytes_list")
        feature.bytes_list.value.append(
            decode_b64(value) if isinstance(value, dict) else encode(value)
        )


def _unexpected(name: str, value: Any) -> errors.RequestError:
    return errors.invalid(
        f"Feature: {name} has element with unexpected JSON type: "
        f"{type_name(value)}"
    )


def _require_kind(feature: tf.train.Feature, name: str, kind: str) -> None:
    if feature.WhichOneof("kind") not in (None, kind):
        expected = feature.WhichOneof("kind").removesuffix("_list")
        raise errors.invalid(
            f"Unexpected element type in feature: {name} expecting type: "
            f"{expected}"
        )

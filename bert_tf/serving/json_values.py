"""TensorFlow Serving's dialect of JSON: parsing and writing.

NaN and Infinity are literals, and bytes that are not UTF-8 pass through strings
unchanged, as surrogates in Python's strings.
"""

import base64
import binascii
import json
from typing import Any

import numpy as np
import orjson

from bert_tf.serving import errors

B64 = "b64"
_SHOWN_CHARACTERS = 200


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
            # Surrogates, which orjson refuses.
            document = _without_arrays(document)
    return json.dumps(document, ensure_ascii=False).encode(
        "utf-8", "surrogateescape"
    )


def _without_arrays(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _without_arrays(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_arrays(item) for item in value]
    return value


def float32_value(number: np.float32) -> float:
    """Returns the shortest decimal number for a float32."""
    return float(str(number))


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
    text = "".join(value[B64].split())
    try:
        padded = text + "=" * (-len(text) % 4)
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
    text = json.dumps(value)
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return text[:_SHOWN_CHARACTERS] + "..."


def _parse_leniently(body: bytes) -> Any:
    try:
        text = body.decode("utf-8-sig", "surrogateescape")
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", str(error)).removesuffix(" at")
        place = getattr(error, "pos", None)
        at = "" if place is None else f" at offset: {place}"
        raise errors.invalid(f"JSON Parse error: {reason}{at}") from error

"""JSON for `classify` and `regress` (json_tensor.cc of TensorFlow Serving)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import classification_pb2
from tensorflow_serving.apis import input_pb2
from tensorflow_serving.apis import regression_pb2

from bert_tf.serving import errors
from bert_tf.serving import json_values

_CONTEXT = "context"
_EXAMPLES = "examples"
_INT64 = range(-(2**63), 2**63)


def read(document: Mapping[str, Any]) -> input_pb2.Input:
    """Returns the examples of a request.

    Raises:
      RequestError: If it has no valid examples.
    """
    if _EXAMPLES not in document:
        raise errors.invalid(
            f"JSON Value: {json_values.shown(document)} When method is "
            f"classify, key '{_EXAMPLES}' is expected and was not found"
        )
    examples = document[_EXAMPLES]
    if not isinstance(examples, list):
        raise errors.invalid(
            f"JSON Value: {json_values.shown(document)} Expecting "
            f"'{_EXAMPLES}' value to be an list/array"
        )
    if not examples:
        raise errors.invalid(
            f"JSON Value: {json_values.shown(document)} '{_EXAMPLES}' value is "
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
    return _dump(rows, [score for row in rows for _, score in row])


def write_regressions(result: regression_pb2.RegressionResult) -> bytes:
    """Returns the response to `regress`."""
    values = [_number(item.value) for item in result.regressions]
    return _dump(values, values)


def _dump(results: list, numbers: list[float]) -> bytes:
    has_nan = not np.isfinite(numbers).all()
    return json_values.dump({"results": results}, has_nan)


def _number(value: float) -> float:
    return json_values.float32_value(np.float32(value))


def _example(value: Any) -> tf.train.Example:
    if not isinstance(value, dict):
        raise errors.invalid(
            "Example must be JSON object but got JSON "
            f"{json_values.type_name(value)}"
        )
    example = tf.train.Example()
    for name, content in value.items():
        items = content if isinstance(content, list) else [content]
        # Created even without a value: an empty feature exists.
        feature = example.features.feature[_feature_name(name)]
        for item in items:
            _add(feature, name, item)
    return example


def _feature_name(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise errors.invalid(
            f"The name of a feature must be UTF-8. Received: {name!r}."
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
        feature.int64_list.value.append(value)
    elif isinstance(value, float):
        _require_kind(feature, name, "float_list")
        if np.isfinite(value) and abs(value) > np.finfo(np.float32).max:
            raise errors.invalid(
                f"Cannot convert JSON value: {value} to float without loss of "
                "precision."
            )
        feature.float_list.value.append(value)
    else:
        if isinstance(value, dict) and not json_values.is_b64(value):
            raise _unexpected(name, value)
        _require_kind(feature, name, "bytes_list")
        feature.bytes_list.value.append(
            json_values.decode_b64(value)
            if isinstance(value, dict)
            else json_values.encode(value)
        )


def _unexpected(name: str, value: Any) -> errors.RequestError:
    return errors.invalid(
        f"Feature: {name} has element with unexpected JSON type: "
        f"{json_values.type_name(value)}"
    )


def _require_kind(feature: tf.train.Feature, name: str, kind: str) -> None:
    if feature.WhichOneof("kind") not in (None, kind):
        expected = feature.WhichOneof("kind").removesuffix("_list")
        raise errors.invalid(
            f"Unexpected element type in feature: {name} expecting type: "
            f"{expected}"
        )

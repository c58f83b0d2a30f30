"""Converts tensors and Examples to and from TensorFlow Serving's JSON."""

import base64
from typing import Any

import numpy as np
import tensorflow as tf


def example_to_json(serialized: bytes) -> dict[str, Any]:
    """Converts a serialized Example to TensorFlow Serving's JSON."""
    features = tf.train.Example.FromString(serialized).features.feature
    return {
        name: [_bytes_to_json(x) for x in feature.bytes_list.value]
        for name, feature in features.items()
    }


def to_json(values: np.ndarray) -> Any:
    """Converts a tensor to TensorFlow Serving's JSON."""
    if values.dtype == object:
        values = np.vectorize(_bytes_to_json, otypes=[object])(values)
    return values.tolist()


def _bytes_to_json(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode("ascii")}


def from_json(values: Any, spec: tf.TensorSpec) -> np.ndarray:
    """Converts TensorFlow Serving's JSON to a tensor."""
    dtype = spec.dtype.as_numpy_dtype
    if isinstance(values, list) and not values:
        # The empty list does not encode the other axes.
        return np.empty([0, *(size or 0 for size in spec.shape[1:])], dtype)
    array = np.array(values, dtype)
    if spec.dtype == tf.string:
        array = np.vectorize(_to_bytes, otypes=[object])(array)
    return array


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, dict):
        return base64.b64decode(value["b64"])
    return value.encode("utf-8")

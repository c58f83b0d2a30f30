"""Converts `TensorProto`s to NumPy arrays and back.

Values are written to the typed fields, such as `float_val`, as in TensorFlow
Serving, because clients read those.
"""

import math

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from bert_tf.serving import errors

# A few bytes of a proto can describe a huge array of zeros.
_MAX_BYTES = 2**31
_FIELDS = {
    np.dtype(np.float32): "float_val",
    np.dtype(np.float64): "double_val",
    np.dtype(np.int8): "int_val",
    np.dtype(np.int16): "int_val",
    np.dtype(np.int32): "int_val",
    np.dtype(np.uint8): "int_val",
    np.dtype(np.uint16): "int_val",
    np.dtype(np.int64): "int64_val",
    np.dtype(np.uint32): "uint32_val",
    np.dtype(np.uint64): "uint64_val",
    np.dtype(np.bool_): "bool_val",
}


def to_array(name: str, proto: tensor_pb2.TensorProto) -> np.ndarray:
    """Returns the tensor in a request.

    Raises:
      RequestError: If it is not a valid tensor.
    """
    try:
        dtype = tf.as_dtype(proto.dtype)
    except TypeError as error:
        raise errors.invalid(
            f"tensor parsing error: {name}: unknown type {proto.dtype}"
        ) from error
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if proto.tensor_shape.unknown_rank or min(shape, default=0) < 0:
        raise errors.invalid(
            f"tensor parsing error: {name}: the shape is not known"
        )
    size = math.prod(shape)
    if size * dtype.size > _MAX_BYTES or len(shape) > 32:
        raise errors.RequestError(
            tf.errors.RESOURCE_EXHAUSTED,
            f"tensor parsing error: {name}: too large: {list(shape)}",
        )
    if dtype == tf.string:
        return _strings(name, proto.string_val, size).reshape(shape)
    try:
        return tf.make_ndarray(proto)
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.invalid(
            f"tensor parsing error: {name}: {error}"
        ) from error


def from_array(value: np.ndarray, dtype: tf.DType) -> tensor_pb2.TensorProto:
    """Returns the proto of an output."""
    proto = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum)
    for size in value.shape:
        proto.tensor_shape.dim.add(size=size)
    if dtype == tf.string:
        proto.string_val.extend(value.ravel().tolist())
    elif value.dtype in _FIELDS:
        field = getattr(proto, _FIELDS[value.dtype])
        field.extend(value.ravel().tolist())
    elif dtype in (tf.float16, tf.bfloat16):
        proto.half_val.extend(value.ravel().view(np.uint16).tolist())
    else:
        return tf.make_tensor_proto(value, dtype)
    return proto


def _strings(name: str, values, size: int) -> np.ndarray:
    """Returns `size` strings; the last one is repeated for missing ones."""
    values = list(values)
    if len(values) > size:
        raise errors.invalid(
            f"tensor parsing error: {name}: {len(values)} strings for "
            f"{size} places"
        )
    last = values[-1] if values else b""
    array = np.empty(size, object)
    array[:] = values + [last] * (size - len(values))
    return array

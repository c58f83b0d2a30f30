"""Converts `TensorProto`s to NumPy arrays and back.

Values are written to the typed fields, such as `float_val`, as in TensorFlow
Serving, because clients read those.
"""

import math

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from bert_tf.flags.serve_limits import ServeLimits
from bert_tf.serving import bodies
from bert_tf.serving import errors

# The memory of TensorFlow for a string beside its characters.
_STRING_BYTES = 24
_PART = 1 << 16
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


def to_array(
    name: str, proto: tensor_pb2.TensorProto, limits: ServeLimits
) -> np.ndarray:
    """Returns the tensor in a request.

    A few bytes of a proto can describe a huge array of one value.

    Raises:
      RequestError: If it is not a valid tensor.
    """
    name = errors.shortened(name)
    dtype = _dtype(name, proto.dtype)
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if proto.tensor_shape.unknown_rank or min(shape, default=0) < 0:
        raise errors.invalid(
            f"tensor parsing error: {name}: the shape is not known"
        )
    if len(shape) > 32:
        raise errors.invalid(
            f"tensor parsing error: {name}: {len(shape)} dimensions; at most "
            "32 are supported"
        )
    size = math.prod(shape)
    bodies.check_repeated(
        # A model may use the other sizes of a tensor without values.
        _num_bytes(proto, dtype, math.prod(x or 1 for x in shape)),
        f"tensor parsing error: {name}: the shape {list(shape)}",
        limits,
    )
    if dtype == tf.string:
        return _strings(name, proto.string_val, size).reshape(shape)
    try:
        return tf.make_ndarray(proto)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
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
        flat = value.ravel()
        # Other threads wait while Python numbers are made and copied.
        for first in range(0, flat.size, _PART):
            field.extend(flat[first : first + _PART].tolist())
    elif dtype in (tf.float16, tf.bfloat16):
        proto.half_val.extend(value.ravel().view(np.uint16).tolist())
    else:
        return tf.make_tensor_proto(value, dtype)
    return proto


def _dtype(name: str, number: int) -> tf.DType:
    try:
        dtype = tf.as_dtype(number)
    except TypeError as error:
        raise errors.invalid(
            f"tensor parsing error: {name}: unknown type {number}"
        ) from error
    if not dtype.is_numpy_compatible:
        raise errors.invalid(
            f"tensor parsing error: {name}: {dtype.name} is not supported"
        )
    return dtype


def _num_bytes(
    proto: tensor_pb2.TensorProto, dtype: tf.DType, size: int
) -> int:
    """Returns the memory for the `size` values of a proto."""
    if dtype != tf.string:
        return size * dtype.size
    values = proto.string_val
    repeated = size - len(values) if values else 0
    return (
        size * _STRING_BYTES
        + sum(map(len, values))
        + (repeated * len(values[-1]) if repeated > 0 else 0)
    )


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

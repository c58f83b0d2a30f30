"""Serializer of examples: numpy batches in, TFRecord bytes out.

The bytes equal `tf.io.TFRecordWriter`'s for a `tf.train.Example` serialized
deterministically (keys in sorted order). TensorFlow is not imported, so worker
processes that only write records start quickly and stay small.

All varints of a batch first get an equal number of bytes, filled up with zeros.
Then `bytes.translate` deletes all zeros: 300 and 5 in two bytes each, AC 02 05
00, become AC 02 05. This deletes values of 0, too. At the end of a row, they
are added again; a batch with zeros elsewhere needs a mask, which is slower.

Format: tensorflow/core/example/feature.proto, tensorflow/core/lib/io/
record_writer.h, protobuf's encoding of varints and of packed fields.
"""

import functools
import struct
from collections.abc import Mapping
from collections.abc import Sequence

import google_crc32c
import numpy as np

from bert_tf.features import PRETRAINING
from bert_tf.features import Feature

# Rows serialized at once. Larger arrays would not fit into the processor's
# caches, and each use would take new memory from the system.
_ROWS_AT_ONCE = 512
# Varints of values of up to this many bits come from a table, which is faster.
_TABLE_BITS = 17
_CRC_MASK_DELTA = 0xA282EAD8
_RECORD_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")

# Tags of fields: field number << 3 | wire type 2 (length-delimited).
_MAP_ENTRY = b"\x0a"  # Features.feature
_KEY = b"\x0a"  # Key of a map entry.
_VALUE = b"\x12"
_LISTS = {"float32": b"\x12", "int64": b"\x1a"}  # Feature.*_list
_FEATURES = b"\x0a"  # Example.features
_PACKED = b"\x0a"  # Int64List.value, FloatList.value


def masked_crc32c(data: bytes) -> int:
    """Returns TFRecord's checksum: crc32c, rotated, plus a constant.

    The plain crc32c is weak for data that contains checksums itself
    (tensorflow/core/lib/hash/crc32c.h).
    """
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _CRC_MASK_DELTA) & 0xFFFFFFFF


def serialize(
    batch: Mapping[str, np.ndarray], features: Sequence[Feature] = PRETRAINING
) -> bytes:
    """Returns a batch of examples as the contents of a TFRecord file.

    The concatenated results of several batches are one file.

    Args:
      batch: <int or float>[batch, length] by feature name; integers must not be
        negative.
      features: The features to write, with their types.

    Raises:
      ValueError: For a negative integer, or unequal numbers of rows.
    """
    num_rows = {feature.name: len(batch[feature.name]) for feature in features}
    if len(set(num_rows.values())) > 1:
        raise ValueError(
            f"Features must have the same number of rows. Received: {num_rows}."
        )
    ordered = sorted(features, key=lambda feature: feature.name)
    pieces: list[bytes] = []
    for start in range(0, len(batch[ordered[0].name]), _ROWS_AT_ONCE):
        columns = [
            _entries(x, batch[x.name][start : start + _ROWS_AT_ONCE])
            for x in ordered
        ]
        for contents in map(b"".join, zip(*columns, strict=True)):
            contents = _FEATURES + _encode_varint(len(contents)) + contents
            checksum = _CHECKSUM.pack(masked_crc32c(contents))
            pieces += _header(len(contents)), contents, checksum
    return b"".join(pieces)


def _entries(feature: Feature, values: np.ndarray) -> list[bytes]:
    """Returns a feature's map entry for each row of <number>[batch, length]."""
    if feature.stored_dtype == "int64":
        rows = _varint_rows(_narrow(values))
    else:
        rows = _cut_rows(np.ascontiguousarray(values, "<f4").view(np.uint8))
    name, kind = feature.name.encode(), feature.stored_dtype
    return [_entry_start(name, kind, len(row)) + row for row in rows]


@functools.lru_cache(maxsize=1 << 14)
def _entry_start(name: bytes, kind: str, size: int) -> bytes:
    """Returns the bytes of a map entry before its `size` bytes of values."""
    start = _KEY + bytes([len(name)]) + name
    contents = _PACKED + _encode_varint(size)
    for tag in (_LISTS[kind], _VALUE):
        contents = tag + _encode_varint(len(contents) + size) + contents
    start += contents
    return _MAP_ENTRY + _encode_varint(len(start) + size) + start


def _varint_rows(values: np.ndarray) -> list[bytes]:
    """Returns the varints of rows of <unsigned int>[batch, length].

    A varint has 7 bits per byte, lowest first; the highest bit of a byte is set
    if another byte follows.
    """
    batch, length = values.shape
    bits = int(values.max(initial=0)).bit_length()
    width = max(1, -(-bits // 7))
    if width == 1:
        return _cut_rows(values)
    if bits <= _TABLE_BITS:
        slots = np.take(_table(bits), values).view(np.uint8)
    else:
        slots = _to_slots(values, width)
    is_not_zero = values != 0
    counts = _count_rows(is_not_zero)
    is_padded = (np.arange(length) < counts[:, np.newaxis]) == is_not_zero
    if is_padded.all():
        packed = slots.tobytes().translate(None, b"\0")
        sizes = counts + sum(
            _count_rows(values >= 1 << 7 * place) for place in range(1, width)
        )
    else:
        used = slots.reshape(batch, length, width) != 0
        used[..., 0] = True
        packed = slots.reshape(used.shape)[used].tobytes()
        sizes = np.count_nonzero(used, axis=(1, 2))
        counts[:] = length
    padding = [bytes(n) for n in range(length + 1)]
    stops = np.cumsum(sizes).tolist()
    return [
        packed[start:stop] + padding[length - count]
        for start, stop, count in zip(
            [0, *stops], stops, counts.tolist(), strict=False
        )
    ]


def _cut_rows(rows: np.ndarray) -> list[bytes]:
    """Returns the bytes of each row of <uint8>[batch, length]."""
    batch, length = rows.shape
    data = rows.tobytes()
    return [data[i * length : (i + 1) * length] for i in range(batch)]


def _count_rows(values: np.ndarray) -> np.ndarray:
    """Returns the number of true values in rows of <bool>[batch, length]."""
    # np.count_nonzero along an axis would be several times slower.
    return np.bitwise_count(np.packbits(values, axis=1)).sum(axis=1, dtype=int)


@functools.cache
def _table(bits: int) -> np.ndarray:
    """Returns an array of 2^bits elements: element i is the varint of i."""
    slots = _to_slots(np.arange(1 << bits, dtype=np.uint32), -(-bits // 7))
    return slots.view(f"V{slots.shape[1]}")[:, 0]


def _to_slots(values: np.ndarray, width: int) -> np.ndarray:
    """Returns the bytes of varints, <uint8>[..., width]; unused bytes are 0."""
    slots = np.empty((*values.shape, width), np.uint8)
    for place in range(width):
        rest = values >> 7 * place
        slots[..., place] = rest & 0x7F | (rest > 0x7F).astype(rest.dtype) << 7
    return slots


@functools.lru_cache(maxsize=4096)
def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _narrow(values: np.ndarray) -> np.ndarray:
    """Returns integers in the narrowest unsigned type, which is the fastest."""
    if values.min(initial=0) < 0:
        raise ValueError(
            f"`values` must not be negative. Received: {values.min()}."
        )
    return values.astype(np.min_scalar_type(values.max(initial=0)))


@functools.lru_cache(maxsize=4096)
def _header(size: int) -> bytes:
    """Returns the header of a record: its length and the length's checksum."""
    length = _RECORD_LENGTH.pack(size)
    return length + _CHECKSUM.pack(masked_crc32c(length))

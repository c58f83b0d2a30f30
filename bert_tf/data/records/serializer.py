"""Serializer of examples: numpy batches in, TFRecord bytes out.

The bytes are those of `tf.io.TFRecordWriter` around a `tf.train.Example`
serialized deterministically (keys in sorted order). TensorFlow is not imported,
so worker processes that only write records start quickly and stay small.

The trick: each row has a slot for every byte that it may need. Columns that all
rows use are copied as they are. For the others, varints of several bytes, zeros
mark the slots that are not used, and `bytes.translate` deletes them: no varint
has a zero byte, but that of 0, which the end of a row is padded with.

Format: tensorflow/core/example/feature.proto, tensorflow/core/lib/io/
record_writer.h, protobuf's encoding of varints and of packed fields.
"""

import functools
import struct
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import google_crc32c
import numpy as np

from bert_tf.features import PRETRAINING
from bert_tf.features import Feature

# Their memory fits into the processor's caches and is reused; larger arrays
# would be returned to the system each time.
_ROWS_AT_ONCE = 512
# Varints of smaller values are looked up.
_TABLE_BITS = 17
_CRC_MASK_DELTA = 0xA282EAD8
_RECORD_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")

# Field numbers << 3 | wire type 2 (length-delimited).
_MAP_ENTRY = b"\x0a"  # Features.feature
_KEY = b"\x0a"  # Of a map entry.
_VALUE = b"\x12"
_FLOAT_LIST = b"\x12"  # Of a Feature.
_INT64_LIST = b"\x1a"
_FEATURES = b"\x0a"  # Example.features
_PACKED = b"\x0a"  # Int64List.value, FloatList.value


def masked_crc32c(data: bytes) -> int:
    """Returns TFRecord's checksum: crc32c, rotated and shifted by a constant.

    The mask is needed because checksums of data with checksums are weak
    (tensorflow/core/lib/hash/crc32c.h).
    """
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _CRC_MASK_DELTA) & 0xFFFFFFFF


class _Layout:
    """Rows of byte slots, written from the last byte to the first.

    Writing backwards allows to put a length before the data it measures.
    """

    def __init__(self, batch_size: int) -> None:
        # <int64>[batch]: bytes of each row that are used so far, and how often
        # rows got different numbers of them.
        self._num_bytes = np.zeros(batch_size, np.int64)
        self._num_changes = 0
        self._num_slots = 0
        # Data and its position, counted from the end of a row: bytes that all
        # rows share, or values and the slots that each takes.
        self._constants: list[tuple[int, bytes]] = []
        self._variables: list[tuple[int, np.ndarray, int]] = []

    def constant(self, data: bytes) -> None:
        """Prepends the same bytes to every row."""
        self._num_slots += len(data)
        self._constants.append((self._num_slots, data))
        self._num_bytes += len(data)

    def floats(self, values: np.ndarray) -> None:
        """Prepends `values` <float32>[batch, length]."""
        data = np.ascontiguousarray(values, "<f4").view(np.uint8)
        self._num_slots += data.shape[1]
        self._variables.append((self._num_slots, data, 1))
        self._num_bytes += data.shape[1]

    def varints(self, values: np.ndarray) -> None:
        """Prepends `values` <unsigned int>[batch, length] as varints.

        A varint has 7 bits per byte, lowest first; the highest bit of a byte is
        set if another one follows.
        """
        # As many slots as the largest value takes.
        width = max(1, -(-int(values.max()).bit_length() // 7))
        self._num_slots += values.shape[1] * width
        self._num_bytes += values.shape[1]
        for place in range(1, width):
            self._num_bytes += _count_rows(values >= 1 << 7 * place)
        if values.min() >> 7 * (width - 1):  # All take as many.
            values = _to_slots(values, width).reshape(len(values), -1)
            width = 1
        self._num_changes += width > 1
        self._variables.append((self._num_slots, values, width))

    def mark(self) -> tuple[np.ndarray, int]:
        """Returns what `length` needs to measure from here on."""
        return self._num_bytes.copy(), self._num_changes

    def length(self, since: tuple[np.ndarray, int]) -> None:
        """Prepends the number of bytes written after a mark."""
        size = self._num_bytes - since[0]
        if self._num_changes == since[1]:
            self.constant(_encode_varint(int(size[0])))
        else:
            self.varints(_narrow(size[:, np.newaxis]))

    def rows(self) -> Iterator[bytes]:
        """Yields the used bytes of each row."""
        return map(b"".join, zip(*self._runs(), strict=True))

    def _runs(self) -> Iterator[Sequence[bytes]]:
        """Yields columns of all rows, from the first to the last."""
        row = np.zeros(self._num_slots, np.uint8)
        for place, data in self._constants:
            start = self._num_slots - place
            row[start : start + len(data)] = np.frombuffer(data, np.uint8)
        dense = np.empty((len(self._num_bytes), self._num_slots), np.uint8)
        dense[:] = row
        begin = 0
        for place, values, width in reversed(self._variables):
            start = self._num_slots - place
            stop = start + values.shape[1] * width
            if width == 1:
                dense[:, start:stop] = values
                continue
            yield _cut_rows(dense[:, begin:start])
            yield from _encode_rows(values, width)
            begin = stop
        yield _cut_rows(dense[:, begin:])


def _cut_rows(rows: np.ndarray) -> Sequence[bytes]:
    """Returns the rows of <uint8>[batch, length]."""
    batch, length = rows.shape
    data = rows.tobytes()
    return [data[i * length : (i + 1) * length] for i in range(batch)]


def _encode_rows(values: np.ndarray, width: int) -> Iterator[Sequence[bytes]]:
    """Yields the varints of rows of <unsigned int>[batch, length], in pieces.

    A varint has at most `width` bytes.
    """
    batch, length = values.shape
    bits = int(values.max()).bit_length()
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
    zeros = bytes(length)
    stops = np.cumsum(sizes).tolist()
    starts = [0, *stops[:-1]]
    yield [packed[i:j] for i, j in zip(starts, stops, strict=True)]
    yield [zeros[count:] for count in counts.tolist()]


def _count_rows(values: np.ndarray) -> np.ndarray:
    """Returns the true values of each row of <bool>[batch, length]."""
    # Several times as fast as numpy's count along an axis.
    return np.bitwise_count(np.packbits(values, axis=1)).sum(axis=1, dtype=int)


@functools.cache
def _table(bits: int) -> np.ndarray:
    """Returns the varints of 0 to 2^bits - 1, each as one element."""
    slots = _to_slots(np.arange(1 << bits, dtype=np.uint32), -(-bits // 7))
    return slots.view(f"V{slots.shape[1]}")[:, 0]


def _to_slots(values: np.ndarray, width: int) -> np.ndarray:
    """Returns the bytes of varints, <uint8>[..., width]; 0 if not used."""
    slots = np.empty((*values.shape, width), np.uint8)
    for place in range(width):
        rest = values >> 7 * place
        slots[..., place] = rest & 0x7F | (rest > 0x7F).astype(rest.dtype) << 7
    return slots


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _narrow(values: np.ndarray) -> np.ndarray:
    """Returns integers in the narrowest unsigned type that holds them.

    Narrow types allow more values per vector instruction.
    """
    if values.min(initial=0) < 0:
        raise ValueError(
            f"`values` must not be negative. Received: {values.min()}."
        )
    return values.astype(np.min_scalar_type(values.max(initial=0)))


def _lay_out(
    batch: Mapping[str, np.ndarray], features: Sequence[Feature]
) -> _Layout:
    """Returns the serialized examples of a batch."""
    layout = _Layout(len(batch[features[0].name]))
    contents_end = layout.mark()
    for feature in sorted(features, key=lambda x: x.name, reverse=True):
        name, values = feature.name.encode(), batch[feature.name]
        entry_end = layout.mark()
        if feature.stored_dtype == "int64":
            layout.varints(_narrow(values))
            list_tag = _INT64_LIST
        else:
            layout.floats(values)
            list_tag = _FLOAT_LIST
        for tag in (_PACKED, list_tag, _VALUE):
            layout.length(entry_end)
            layout.constant(tag)
        layout.constant(_KEY + bytes([len(name)]) + name)
        layout.length(entry_end)
        layout.constant(_MAP_ENTRY)
    layout.length(contents_end)
    layout.constant(_FEATURES)
    return layout


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
    pieces: list[bytes] = []
    for start in range(0, len(batch[features[0].name]), _ROWS_AT_ONCE):
        rows = {
            name: values[start : start + _ROWS_AT_ONCE]
            for name, values in batch.items()
        }
        for contents in _lay_out(rows, features).rows():
            checksum = _CHECKSUM.pack(masked_crc32c(contents))
            pieces += _header(len(contents)), contents, checksum
    return b"".join(pieces)


@functools.lru_cache(maxsize=4096)
def _header(size: int) -> bytes:
    """Returns what precedes a record's contents: length and its checksum."""
    length = _RECORD_LENGTH.pack(size)
    return length + _CHECKSUM.pack(masked_crc32c(length))

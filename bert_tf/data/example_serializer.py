"""Serializes a batch of examples at once: numpy in, TFRecord bytes out.

The bytes are those of `tf.io.TFRecordWriter` around a `tf.train.Example`
serialized deterministically (keys in sorted order). TensorFlow is not imported,
so worker processes that only write records start quickly and stay small.

The trick: each row is laid out with a slot for every byte that it may need, and
one boolean selection then drops the slots that are not used.

Format: tensorflow/core/example/feature.proto, tensorflow/core/lib/io/
record_writer.h, protobuf's encoding of varints and of packed fields.
"""

import struct
from collections.abc import Mapping
from collections.abc import Sequence

import google_crc32c
import numpy as np

from bert_tf.features import PRETRAINING
from bert_tf.features import Feature

# Of one record: length <uint64>, its checksum <uint32>; contents; checksum.
_HEADER_BYTES = 12
_FOOTER_BYTES = 4
# Bytes that no mask selects cost time, so lengths have few slots: 4 of them
# hold 2^28, far more than a record of 512 pieces has.
_LENGTH_SLOTS = 4
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

    It is masked because a checksum of data that holds its own checksum is weak
    (tensorflow/core/lib/hash/crc32c.h).
    """
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _CRC_MASK_DELTA) & 0xFFFFFFFF


class _Layout:
    """Rows of byte slots, written from the last byte to the first.

    Backwards, because a length stands in front of what it measures.

    Attributes:
      num_bytes: <int64>[batch]: how many bytes of each row are used so far.
    """

    def __init__(self, batch_size: int, num_slots: int) -> None:
        self.num_bytes = np.zeros(batch_size, np.int64)
        self._slots = np.zeros((batch_size, num_slots), np.uint8)
        self._used = np.ones((batch_size, num_slots), bool)
        self._start = num_slots

    def _prepend(self, num_slots: int) -> tuple[np.ndarray, np.ndarray]:
        stop = self._start
        self._start -= num_slots
        columns = slice(self._start, stop)
        return self._slots[:, columns], self._used[:, columns]

    def constant(self, data: bytes) -> None:
        """Puts the same bytes in front of every row."""
        slots, _ = self._prepend(len(data))
        slots[:] = np.frombuffer(data, np.uint8)
        self.num_bytes += len(data)

    def floats(self, values: np.ndarray) -> None:
        """Puts `values` <float32>[batch, length] in front."""
        data = np.ascontiguousarray(values, "<f4").view(np.uint8)
        slots, _ = self._prepend(data.shape[1])
        slots[:] = data
        self.num_bytes += data.shape[1]

    def varints(self, values: np.ndarray, num_slots: int) -> None:
        """Puts `values` <int>[batch, length] in front, 7 bits to a byte.

        Args:
          values: Not negative, below 2^(7 * num_slots).
          num_slots: Bytes that the largest value takes.
        """
        batch_size, length = values.shape
        rest = values
        slots, used = self._prepend(length * num_slots)
        slots = slots.reshape(batch_size, length, num_slots)
        used = used.reshape(batch_size, length, num_slots)
        self.num_bytes += length
        for place in range(num_slots - 1):
            more = rest > 0x7F
            slots[..., place] = rest & 0x7F | more.astype(rest.dtype) << 7
            used[..., place + 1] = more
            self.num_bytes += np.count_nonzero(more, axis=1)
            rest = rest >> 7
        slots[..., -1] = rest

    def length(self, since: np.ndarray) -> None:
        """Puts the number of bytes written after `since` in front."""
        size = self.num_bytes - since
        if np.all(size == size[0]):
            self.constant(_encode_varint(int(size[0])))
        else:
            size = _narrow(size[:, np.newaxis])
            self.varints(size, _num_slots(size))

    def selected(self) -> np.ndarray:
        """Returns the used bytes of all rows, <uint8>[sum(num_bytes)]."""
        slots = self._slots[:, self._start :]
        return slots[self._used[:, self._start :]]


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _narrow(values: np.ndarray) -> np.ndarray:
    """Returns integers in the narrowest unsigned type that holds them.

    The narrower they are, the more of them go into one instruction.
    """
    if values.min(initial=0) < 0:
        raise ValueError(
            f"`values` must not be negative. Received: {values.min()}."
        )
    return values.astype(np.min_scalar_type(values.max(initial=0)))


def _num_slots(values: np.ndarray) -> int:
    """Returns how many bytes the largest of `values` takes as a varint."""
    return max(1, -(-int(values.max(initial=0)).bit_length() // 7))


def _lay_out(
    batch: Mapping[str, np.ndarray], features: Sequence[Feature]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the framed rows, checksums and length fields still zero.

    Returns:
      The bytes of all rows <uint8>[sum of sizes], and their sizes without the
      frame <int64>[batch].
    """
    columns = []
    num_slots = _HEADER_BYTES + _FOOTER_BYTES + 1 + _LENGTH_SLOTS
    for feature in sorted(features, key=lambda feature: feature.name):
        values, width = batch[feature.name], 0
        if feature.stored_dtype == "int64":
            values = _narrow(values)
            width = _num_slots(values)
        columns.append((feature.name.encode(), values, width))
        overhead = 4 * (1 + _LENGTH_SLOTS) + 2 + len(feature.name)
        num_slots += values.shape[1] * (width or 4) + overhead
    layout = _Layout(len(values), num_slots)
    layout.constant(bytes(_FOOTER_BYTES))
    contents_end = layout.num_bytes.copy()
    for name, values, width in reversed(columns):
        entry_end = layout.num_bytes.copy()
        if width:
            layout.varints(values, width)
        else:
            layout.floats(values)
        for tag in (_PACKED, _INT64_LIST if width else _FLOAT_LIST, _VALUE):
            layout.length(entry_end)
            layout.constant(tag)
        layout.constant(_KEY + bytes([len(name)]) + name)
        layout.length(entry_end)
        layout.constant(_MAP_ENTRY)
    layout.length(contents_end)
    layout.constant(_FEATURES)
    sizes = layout.num_bytes - contents_end
    layout.constant(bytes(_HEADER_BYTES))
    return layout.selected(), sizes


def serialize(
    batch: Mapping[str, np.ndarray], features: Sequence[Feature] = PRETRAINING
) -> bytes:
    """Returns a batch of examples as the contents of a TFRecord file.

    The results of several batches, one after the other, are one file.

    Args:
      batch: By feature name <int or float>[batch, length]; integers must not be
        negative.
      features: What to write, and as which type.

    Raises:
      ValueError: For a negative integer.
    """
    contents, sizes = _lay_out(batch, features)
    ends = np.cumsum(sizes + _HEADER_BYTES + _FOOTER_BYTES)
    starts = ends - sizes - _FOOTER_BYTES
    view = memoryview(contents)
    length_fields: dict[int, bytes] = {}
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        field = length_fields.get(size)
        if field is None:
            length = _RECORD_LENGTH.pack(size)
            field = length + _CHECKSUM.pack(masked_crc32c(length))
            length_fields[size] = field
        view[start - _HEADER_BYTES : start] = field
        stop = start + size
        _CHECKSUM.pack_into(view, stop, masked_crc32c(bytes(view[start:stop])))
    return contents.tobytes()

"""Serializer of examples: numpy batches in, TFRecord bytes out.

The bytes are those of `tf.io.TFRecordWriter` around a `tf.train.Example`
serialized deterministically (keys in sorted order). TensorFlow is not imported,
so worker processes that only write records start quickly and stay small.

The trick: each row has a slot for every byte that it may need, and one boolean
selection drops the unused slots.

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

# A record: length <uint64>, its checksum <uint32>; contents; checksum.
_HEADER_BYTES = 12
_FOOTER_BYTES = 4
# Their memory fits into the processor's caches and is reused; larger arrays
# would be returned to the system each time.
_ROWS_AT_ONCE = 512
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

    Attributes:
      num_bytes: <int64>[batch]: bytes of each row that are used so far.
    """

    def __init__(self, batch_size: int) -> None:
        self.num_bytes = np.zeros(batch_size, np.int64)
        self._num_slots = 0
        # Data and its position, counted from the end of a row: bytes that all
        # rows share, or slots with an optional mask of used slots.
        self._constants: list[tuple[int, bytes]] = []
        self._variables: list[tuple[int, np.ndarray, np.ndarray | None]] = []

    def constant(self, data: bytes) -> None:
        """Prepends the same bytes to every row."""
        self._num_slots += len(data)
        self._constants.append((self._num_slots, data))
        self.num_bytes += len(data)

    def floats(self, values: np.ndarray) -> None:
        """Prepends `values` <float32>[batch, length]."""
        data = np.ascontiguousarray(values, "<f4").view(np.uint8)
        self._num_slots += data.shape[1]
        self._variables.append((self._num_slots, data, None))
        self.num_bytes += data.shape[1]

    def varints(self, values: np.ndarray) -> None:
        """Prepends `values` <unsigned int>[batch, length] as varints.

        A varint has 7 bits per byte, lowest first; the highest bit of a byte is
        set if another one follows.
        """
        batch_size, length = values.shape
        # As many slots as the largest value takes.
        num_slots = max(1, -(-int(values.max()).bit_length() // 7))
        self._num_slots += length * num_slots
        self.num_bytes += length
        if num_slots == 1:
            self._variables.append((self._num_slots, values, None))
            return
        slots = np.empty((batch_size, length, num_slots), np.uint8)
        used = np.ones((batch_size, length, num_slots), bool)
        rest = values
        for place in range(num_slots - 1):
            more = rest > 0x7F
            slots[..., place] = rest & 0x7F | more.astype(rest.dtype) << 7
            used[..., place + 1] = more
            self.num_bytes += np.count_nonzero(more, axis=1)
            rest = rest >> 7
        slots[..., -1] = rest
        self._variables.append(
            (
                self._num_slots,
                slots.reshape(batch_size, -1),
                used.reshape(batch_size, -1),
            )
        )

    def length(self, since: np.ndarray) -> None:
        """Prepends the number of bytes written after `since`."""
        size = self.num_bytes - since
        if np.all(size == size[0]):
            self.constant(_encode_varint(int(size[0])))
        else:
            self.varints(_narrow(size[:, np.newaxis]))

    def selected(self) -> np.ndarray:
        """Returns the used bytes of all rows, <uint8>[sum(num_bytes)]."""
        shape = (len(self.num_bytes), self._num_slots)
        row = np.zeros(self._num_slots, np.uint8)
        for place, data in self._constants:
            start = self._num_slots - place
            row[start : start + len(data)] = np.frombuffer(data, np.uint8)
        slots, used = np.empty(shape, np.uint8), np.ones(shape, bool)
        slots[:] = row
        for place, values, mask in self._variables:
            start = self._num_slots - place
            columns = slice(start, start + values.shape[1])
            slots[:, columns] = values
            if mask is not None:
                used[:, columns] = mask
        return slots[used]


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
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the framed rows with checksums and lengths still zero.

    Returns:
      The bytes of all rows <uint8>[sum of sizes], and their sizes without the
      frame <int64>[batch].
    """
    layout = _Layout(len(batch[features[0].name]))
    layout.constant(bytes(_FOOTER_BYTES))
    contents_end = layout.num_bytes.copy()
    for feature in sorted(features, key=lambda x: x.name, reverse=True):
        name, values = feature.name.encode(), batch[feature.name]
        entry_end = layout.num_bytes.copy()
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
    sizes = layout.num_bytes - contents_end
    layout.constant(bytes(_HEADER_BYTES))
    return layout.selected(), sizes


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
    return b"".join(
        _serialize_rows(
            {
                name: values[start : start + _ROWS_AT_ONCE]
                for name, values in batch.items()
            },
            features,
        )
        for start in range(0, len(batch[features[0].name]), _ROWS_AT_ONCE)
    )


def _serialize_rows(
    batch: Mapping[str, np.ndarray], features: Sequence[Feature]
) -> bytes:
    """Lays out rows, then fills in lengths and checksums."""
    contents, sizes = _lay_out(batch, features)
    stops = np.cumsum(sizes + _HEADER_BYTES + _FOOTER_BYTES) - _FOOTER_BYTES
    view, data = memoryview(contents), contents.tobytes()
    headers: dict[int, bytes] = {}
    for stop, size in zip(stops.tolist(), sizes.tolist(), strict=True):
        header = headers.get(size)
        if header is None:
            length = _RECORD_LENGTH.pack(size)
            header = length + _CHECKSUM.pack(masked_crc32c(length))
            headers[size] = header
        start = stop - size
        view[start - _HEADER_BYTES : start] = header
        _CHECKSUM.pack_into(view, stop, masked_crc32c(data[start:stop]))
    return contents.tobytes()

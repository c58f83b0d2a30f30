"""TFRecord files of pretraining examples: writer, reader and counter."""

import contextlib
import struct
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_tf.data.generators.counts import FileCounts
from bert_tf.data.records import serializer
from bert_tf.data.records.serializer import masked_crc32c
from bert_tf.errors import UserError
from bert_tf.features import PRETRAINING
from bert_tf.io import files

_LENGTH = struct.Struct("<Q")
_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4
_CHUNK_BYTES = 1 << 22


class RecordWriter:
    """Appends batches of examples to one open file; `written` counts them."""

    def __init__(self, path: str) -> None:
        self._file = tf.io.gfile.GFile(path, "wb")
        self._records = 0
        self._bytes = 0

    def write(self, batch: Mapping[str, np.ndarray]) -> None:
        """Writes a batch: per feature <int or float>[batch, length]."""
        contents = serializer.serialize(batch)
        self._file.write(contents)
        self._records += len(batch["input_ids"])
        self._bytes += len(contents)

    @property
    def written(self) -> FileCounts:
        """Records and bytes written so far."""
        return FileCounts(records=self._records, bytes=self._bytes)

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def open_writers(paths: Sequence[str]) -> Iterator[list[RecordWriter]]:
    """Yields a writer per path; the files appear together at the end.

    After an exception none of them appears, and no temporary file remains.
    """
    with contextlib.ExitStack() as stack:
        writers = []
        for path in paths:
            temporary = stack.enter_context(files.atomic_file(path))
            writer = RecordWriter(temporary)
            stack.callback(writer.close)
            writers.append(writer)
        yield writers


def count_records(path: str) -> int:
    """Returns the number of records in a file.

    Follows the lengths in the file and checks the checksum of each length; the
    contents are neither parsed nor checked.

    Raises:
      UserError: If the file is truncated or not a record file.
    """
    records = offset = 0
    checked: dict[int, int] = {}  # Few distinct lengths occur.
    with tf.io.gfile.GFile(path, "rb") as file:
        num_bytes = file.size()
        start, chunk = 0, b""
        while offset < num_bytes:
            if offset + _HEADER.size > start + len(chunk):
                file.seek(offset)
                start, chunk = offset, file.read(_CHUNK_BYTES)
            if len(chunk) - (offset - start) < _HEADER.size:
                raise _truncation_error(path, records, offset, num_bytes)
            length, checksum = _HEADER.unpack_from(chunk, offset - start)
            if length not in checked:
                checked[length] = masked_crc32c(_LENGTH.pack(length))
            if checked[length] != checksum:
                raise UserError(
                    f"{path} is corrupt or not a record file: byte {offset} "
                    f"(record {records}) is not the length of a record; copy "
                    "or create the file again."
                )
            following = offset + _HEADER.size + length + _FOOTER_BYTES
            if following > num_bytes:
                raise _truncation_error(path, records, offset, num_bytes)
            records, offset = records + 1, following
    return records


def _truncation_error(
    path: str, record: int, offset: int, num_bytes: int
) -> UserError:
    return UserError(
        f"{path} is truncated: record {record}, at byte {offset}, extends "
        f"beyond the end of the file at byte {num_bytes}; copy or create the "
        "file again."
    )


def read_examples(
    path: str, batch_size: int = 1024
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the records of a file in order, in batches.

    The first record determines the lengths of the features.

    Yields:
      Per feature <int64 or float32>[up to batch_size, length].
    """
    records = tf.data.TFRecordDataset(path)
    spec = {}
    for first in records.take(1).as_numpy_iterator():
        example = tf.train.Example.FromString(first)
        for feature in PRETRAINING:
            stored = example.features.feature[feature.name]
            values = getattr(stored, stored.WhichOneof("kind")).value
            spec[feature.name] = tf.io.FixedLenFeature(
                [len(values)], feature.stored_dtype
            )
    if spec:
        yield from (
            records.batch(batch_size)
            .map(lambda batch: tf.io.parse_example(batch, spec))
            .as_numpy_iterator()
        )

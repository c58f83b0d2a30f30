"""TFRecord files of pretraining examples: counts and checks."""

import struct
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf import message

from bert_tf.data.records import manifest
from bert_tf.data.records import serializer
from bert_tf.errors import UserError
from bert_tf.features import Feature
from bert_tf.io import files
from bert_tf.io import progress

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_CHUNK_BYTES = 1 << 22
_RECORDS_PER_BATCH = 1024

Sizes = Mapping[Feature, int]


class CheckedRecord(NamedTuple):
    """A record of a file; `reason` is its fault, or None if it is usable.

    `stop` is None if the record's length is wrong: then the next record cannot
    be found.
    """

    path: str
    number: int
    start: int
    stop: int | None
    framed: bytes
    reason: str | None

    def __str__(self) -> str:
        place = f"record {self.number} at byte {self.start}"
        return f"{self.path}, {place}: {self.reason}"

    def error(self, allowed: int = 0) -> UserError:
        """Returns the error for this record, after `allowed` skipped ones."""
        advice = "copy or create the file again"
        if self.stop is not None:
            flag = f"--max_corrupt_records={allowed + 1}"
            advice += f", or skip such records with {flag} or more"
        return UserError(f"{self}; {advice}.")


def read_records(
    path: str, sizes: Sizes | None = None
) -> Iterator[CheckedRecord]:
    """Yields the records of a file; the last one may have a damaged length.

    A record is a length <uint64>, its checksum, the contents, and their
    checksum. Without `sizes` the contents are neither read nor checked.
    """
    number = start = 0
    size = files.size(path)
    with files.open_binary(path) as file:
        while start < size:
            file.seek(start)
            header = file.read(_HEADER.size)
            length, checksum = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
            stop = start + _HEADER.size + length + _CHECKSUM.size
            framed, reason = b"", None
            is_whole = len(header) == _HEADER.size
            if is_whole and serializer.masked_crc32c(header[:8]) != checksum:
                reason = "its length is damaged, or this is not a record file"
                stop = None
            elif stop > size:
                reason = f"the file is truncated, at byte {size}"
                stop = None
            elif sizes:
                framed = header + file.read(length + _CHECKSUM.size)
                reason = _find_fault(framed, sizes)
            yield CheckedRecord(path, number, start, stop, framed, reason)
            if stop is None:
                return
            number, start = number + 1, stop


def _find_fault(framed: bytes, sizes: Sizes) -> str | None:
    contents = framed[_HEADER.size : -_CHECKSUM.size]
    (checksum,) = _CHECKSUM.unpack(framed[-_CHECKSUM.size :])
    if serializer.masked_crc32c(contents) != checksum:
        return "its checksum is wrong"
    return _describe_mismatch(contents, sizes)


def count_records(path: str) -> int:
    """Counts the records of a file; reads only their lengths.

    Raises `UserError` if the file is truncated or not a record file.
    """
    count = 0
    for record in read_records(path):
        if record.reason:
            raise record.error()
        count += 1
    return count


def find_counts(record_files: Sequence[str]) -> dict[str, int]:
    """Returns the number of records of each file, by path.

    The counts come from the manifests. In a file without a manifest, only the
    lengths of the records are read. Raises `UserError` if a file is truncated,
    is no record file, or is not the file that its manifest describes.
    """
    found = manifest.find(record_files)
    described = found.files if found else {}
    counts, uncounted = {}, {}
    for path in record_files:
        size = files.size(path)
        if path not in described:
            uncounted[path] = size
        elif described[path]["bytes"] == size:
            counts[path] = described[path]["records"]
        else:
            raise UserError(
                f"{path} is not the file that {found.source} describes, which "
                f"had {described[path]['bytes']} bytes. Received: {size} "
                "bytes; create the records again."
            )
    total = sum(uncounted.values())
    with progress.bar(
        total, "counting records", "B", hidden=not uncounted
    ) as bar:
        for path, size in uncounted.items():
            counts[path] = count_records(path)
            bar.update(size)
    return counts


def parsing_spec(sizes: Sizes) -> dict[str, tf.io.FixedLenFeature]:
    """Returns the features for `tf.io.parse_example`."""
    return {
        feature.name: tf.io.FixedLenFeature(
            [size], tf.dtypes.as_dtype(feature.stored_dtype)
        )
        for feature, size in sizes.items()
    }


def check_first_records(record_files: Sequence[str], sizes: Sizes) -> None:
    """Raises `UserError` if a feature of a file's first record is wrong.

    Each feature must be present, and have the expected length and type.
    """
    firsts = tf.data.Dataset.from_tensor_slices(list(record_files)).interleave(
        lambda path: (
            tf.data.TFRecordDataset(path)
            .take(1)
            .map(lambda record: (path, record))
        ),
        cycle_length=16,
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    try:
        for path, record in firsts.as_numpy_iterator():
            if mismatch := _describe_mismatch(record, sizes):
                raise UserError(
                    f"{path.decode()}, record 0: {mismatch}; use the flags "
                    "that the records were made with, or create them again."
                )
    except tf.errors.DataLossError as error:
        raise find_bad_record(record_files, sizes) or error from error


def _describe_mismatch(record: bytes, sizes: Sizes) -> str | None:
    """Returns the first fault of a serialized example, or None."""
    example = tf.train.Example()
    try:
        example.ParseFromString(record)
    except message.DecodeError:
        return "not a tf.train.Example"
    stored = example.features.feature
    for feature, size in sizes.items():
        if feature.name not in stored:
            return (
                f"the feature `{feature.name}` is missing. Received: "
                f"{', '.join(sorted(stored)) or 'none'}"
            )
        kind = "int64_list" if feature.stored_dtype == "int64" else "float_list"
        values = stored[feature.name]
        if values.WhichOneof("kind") != kind:
            return (
                f"`{feature.name}` must be of type {feature.stored_dtype}. "
                f"Received: {values.WhichOneof('kind')}"
            )
        received = len(getattr(values, kind).value)
        if received != size:
            flag = "" if size == 1 else f" (--{feature.length}={size})"
            return (
                f"`{feature.name}` must have {size} values{flag}. Received: "
                f"{received}"
            )
    return None


def find_bad_record(
    record_files: Sequence[str], sizes: Sizes
) -> UserError | None:
    """Reads all records and returns an error for the first unusable one."""
    for path in find_damaged(record_files, sizes):
        for record in read_records(path, sizes):
            if record.reason:
                return record.error()
    return None


def find_damaged(record_files: Sequence[str], sizes: Sizes) -> Iterator[str]:
    """Reads all records as training does; yields the damaged files."""
    spec = parsing_spec(sizes)
    num_bytes = [tf.io.gfile.stat(path).length for path in record_files]
    with progress.bar(sum(num_bytes), "looking for bad records", "B") as bar:
        for path, size in zip(record_files, num_bytes, strict=True):
            batches = tf.data.TFRecordDataset(path, buffer_size=_CHUNK_BYTES)
            try:
                for batch in batches.batch(_RECORDS_PER_BATCH).prefetch(1):
                    tf.io.parse_example(batch, spec)
            except (tf.errors.DataLossError, tf.errors.InvalidArgumentError):
                yield path
            bar.update(size)


def blank_record(sizes: Sizes) -> bytes:
    """Returns a record of zeros, which gets no weight in any loss or metric."""
    zeros = {
        feature.name: np.zeros([1, size], feature.stored_dtype)
        for feature, size in sizes.items()
    }
    return serializer.serialize(zeros, tuple(sizes))

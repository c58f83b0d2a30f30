"""Record repair: replaces damaged records by blank ones.

A file with damaged records is copied; in the copy, all features of the damaged
records are 0. Such blank rows have zero weight wherever they are read
(`batches.example_weights`). All other records keep their numbers, so order,
masks and dropout do not change, whenever the damage is found.

`PretrainingInput` does this if it gets a `Budget`:

    budget = record_repair.Budget(config.max_corrupt_records)
    source = PretrainingInput(..., budget=budget)
    ...
    except tf.errors.OpError as error:  # Of a call that read from `source`.
        if not source.repair(error):
            raise
        # Else continue with `source.dataset(...)` of the same example.

Store `budget.describe()` in checkpoints.
"""

import dataclasses
import os
import struct
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data.generators.counts import FileCounts
from bert_tf.data.records import checks as record_checks
from bert_tf.data.records import serializer
from bert_tf.data.records import tfrecords
from bert_tf.data.records.checks import Sizes
from bert_tf.data.records.serializer import masked_crc32c
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import progress

_LENGTH = struct.Struct("<Q")
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_CHUNK_BYTES = 1 << 22
_RECORDS_PER_BATCH = 1024


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A record that was replaced by a blank one.

    Attributes:
      file: The record file.
      record: The number of the record in it.
      offset: Position of the record, in bytes.
      reason: Description of the damage.
    """

    file: str
    record: int
    offset: int
    reason: str


class Budget:
    """The limit on skipped records, and the records skipped so far.

    Args:
      most: The most records to skip in all files together.

    Attributes:
      left_out: The records skipped so far.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.left_out: list[LeftOut] = []

    def describe(
        self, before: Sequence[Mapping[str, Any]] = ()
    ) -> list[dict[str, Any]]:
        """Returns all skipped records for a checkpoint, as JSON values.

        Args:
          before: The result in earlier processes of the run, which may have
            skipped records that this process has not reached.
        """
        records = [*before, *map(dataclasses.asdict, self.left_out)]
        return [*{(x["file"], x["record"]): x for x in records}.values()]

    def spend(self, file: str, record: int, offset: int, reason: str) -> None:
        """Skips a record and logs it.

        Raises:
          UserError: If there are too many; the message names the record.
        """
        where = f"{file}, record {record} at byte {offset}: {reason}"
        if len(self.left_out) == self.most:
            raise UserError(
                f"{where}; --max_corrupt_records={self.most} does not allow "
                "another one to be skipped; copy or create the file again, or "
                "allow more."
            )
        self.left_out.append(LeftOut(file, record, offset, reason))
        logging.warning(
            "%s; skipped, %d of at most %d.",
            where,
            len(self.left_out),
            self.most,
        )


def is_truncated(path: str, described: FileCounts | None) -> bool:
    """Returns true if a file ends too early or its lengths are damaged.

    Args:
      path: The file.
      described: Counts of the intact file. If None, all lengths in the file are
        followed.
    """
    num_bytes = tf.io.gfile.stat(path).length
    if described is not None:
        return num_bytes < described.bytes
    try:
        tfrecords.count_records(path)
    except UserError:
        return True
    return False


def find_damaged(record_files: Sequence[str], sizes: Sizes) -> list[str]:
    """Reads all records like training and returns the damaged files."""
    damaged = []
    spec = record_checks.parsing_spec(sizes)
    num_bytes = [tf.io.gfile.stat(path).length for path in record_files]
    with progress.bar(sum(num_bytes), "looking for bad records", "B") as bar:
        for path, size in zip(record_files, num_bytes, strict=True):
            batches = tf.data.TFRecordDataset(path, buffer_size=_CHUNK_BYTES)
            batches = batches.batch(_RECORDS_PER_BATCH)
            try:
                for batch in batches.prefetch(1):
                    tf.io.parse_example(batch, spec)
            except (tf.errors.DataLossError, tf.errors.InvalidArgumentError):
                damaged.append(path)
            bar.update(size)
    return damaged


def repair(
    path: str,
    described: FileCounts | None,
    sizes: Sizes,
    folder: str,
    budget: Budget,
) -> tuple[str, int]:
    """Copies a file with blank records in place of damaged ones.

    After a damaged length, the next intact record is searched. The number of
    records lost in between follows from the count if there is one such gap. For
    several gaps, or an unknown count, it is estimated from the bytes.

    Args:
      path: The file.
      described: Counts of the intact file; None if unknown.
      sizes: Lengths of the features of a record.
      folder: A local folder for the copy.
      budget: The limit on skipped records.

    Returns:
      The path of the copy, or the file itself if it is intact, and the number
      of records.

    Raises:
      UserError: If there is more damage than the budget allows, or if the file
        is not a record file.
    """
    num_bytes = described.bytes if described else 0
    ranges = list(_ranges(path, sizes, num_bytes))
    counts = _counts(path, ranges, described)
    if all(part.reason is None for part in ranges):
        return path, len(ranges)
    blank = _blank(sizes)
    copy = os.path.join(folder, f"{len(os.listdir(folder)):06d}.tfrecord")
    with (
        files.atomic_file(copy) as temporary,
        tf.io.gfile.GFile(path, "rb") as source,
        open(temporary, "wb") as target,
    ):
        number = 0
        for part, count in zip(ranges, counts, strict=True):
            if part.reason is None:
                source.seek(part.start)
                target.write(source.read(part.stop - part.start))
            else:
                for record in range(number, number + count):
                    budget.spend(path, record, part.start, part.reason)
                    target.write(blank)
            number += count
    return copy, number


@dataclasses.dataclass(frozen=True)
class _Range:
    """A range of a file: one record, or a gap of unreadable bytes.

    Attributes:
      start: Its first byte.
      stop: The byte after its last.
      reason: Description of the damage, or None.
      is_gap: Whether it may have contained several records.
    """

    start: int
    stop: int
    reason: str | None = None
    is_gap: bool = False


class _Bytes:
    """Buffered random access to a file, mostly forwards."""

    def __init__(self, file: tf.io.gfile.GFile) -> None:
        self._file = file
        self.size = file.size()
        self._start, self._chunk = 0, b""

    def get(self, start: int, stop: int) -> bytes:
        """Returns the bytes from `start` to `stop`, or up to the end."""
        if start < self._start or stop > self._start + len(self._chunk):
            self._file.seek(start)
            self._chunk = self._file.read(max(_CHUNK_BYTES, stop - start))
            self._start = start
        return self._chunk[start - self._start : stop - self._start]


def _ranges(path: str, sizes: Sizes, num_bytes: int) -> Iterator[_Range]:
    """Yields the ranges of a file that originally had `num_bytes`."""
    with tf.io.gfile.GFile(path, "rb") as file:
        data, start = _Bytes(file), 0
        while start < data.size:
            stop = _end_of_record(data, start)
            if stop is None:
                stop = start + 1
                while stop < data.size and not _is_record(data, stop):
                    stop += 1
                if stop < data.size:
                    reason = "the length of a record is damaged"
                    yield _Range(start, stop, reason, True)
                else:
                    yield _lost_end(start, data.size, num_bytes)
                    return
            else:
                contents = data.get(start, stop)
                yield _Range(start, stop, _problem(contents, sizes))
            start = stop
        if start < num_bytes:
            yield _lost_end(start, data.size, num_bytes)


def _lost_end(start: int, size: int, num_bytes: int) -> _Range:
    reason = f"no whole record follows until the end of the file, byte {size}"
    return _Range(start, max(size, num_bytes), reason, True)


def _end_of_record(data: _Bytes, start: int) -> int | None:
    """Returns the end of the record at `start`, or None if damaged."""
    header = data.get(start, start + _HEADER.size)
    if len(header) < _HEADER.size:
        return None
    length, checksum = _HEADER.unpack(header)
    stop = start + _HEADER.size + length + _CHECKSUM.size
    # The cheaper comparison comes first.
    if stop > data.size or masked_crc32c(header[: _LENGTH.size]) != checksum:
        return None
    return stop


def _is_record(data: _Bytes, start: int) -> bool:
    """Returns true if there is an intact record at `start`."""
    stop = _end_of_record(data, start)
    return stop is not None and _has_checksum(data.get(start, stop))


def _has_checksum(record: bytes) -> bool:
    (checksum,) = _CHECKSUM.unpack(record[-_CHECKSUM.size :])
    contents = record[_HEADER.size : -_CHECKSUM.size]
    return masked_crc32c(contents) == checksum


def _problem(record: bytes, sizes: Sizes) -> str | None:
    """Returns what is wrong with a framed record, or None."""
    if not _has_checksum(record):
        return "the checksum of its contents is wrong"
    contents = record[_HEADER.size : -_CHECKSUM.size]
    mismatch = record_checks.describe_mismatch(contents, sizes)
    return mismatch.rstrip(".") if mismatch else None


def _counts(
    path: str, ranges: Sequence[_Range], described: FileCounts | None
) -> list[int]:
    """Returns the number of records in each range.

    Raises:
      UserError: If the ranges cannot be the records of this file.
    """
    is_gap = np.array([part.is_gap for part in ranges], bool)
    num_bytes = np.array([part.stop - part.start for part in ranges])
    counts = np.ones(len(ranges), np.int64)
    if described is None and not is_gap.any():
        return counts.tolist()
    if described is None and is_gap.all():
        raise UserError(
            f"{path} is not a record file: it contains no intact record; "
            "create it again."
        )
    if described is None:
        estimated = num_bytes[is_gap] / num_bytes[~is_gap].mean()
        counts[is_gap] = np.maximum(1, np.round(estimated))
        return counts.tolist()
    num_lost = described.records - np.count_nonzero(~is_gap)
    if num_lost < np.count_nonzero(is_gap) or (num_lost and not is_gap.any()):
        raise UserError(
            f"{path} is not the file that was counted before, which had "
            f"{described.records} records in {described.bytes} bytes; create "
            "it again."
        )
    if num_lost:
        # One per gap; the rest in proportion to the bytes, with an exact sum.
        ends = np.cumsum(num_bytes[is_gap]) / num_bytes[is_gap].sum()
        others = np.round(ends * (num_lost - np.count_nonzero(is_gap)))
        counts[is_gap] += np.diff(others, prepend=0).astype(np.int64)
    return counts.tolist()


def _blank(sizes: Sizes) -> bytes:
    """Returns a framed record of zeros."""
    zeros = {
        feature.name: np.zeros([1, size], feature.stored_dtype)
        for feature, size in sizes.items()
    }
    return serializer.serialize(zeros, tuple(sizes))

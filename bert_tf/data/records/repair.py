"""Leaves damaged records out without moving any other.

A file with damaged records is copied; in the copy each of them is a blank one,
all of whose features are 0. Blank rows weigh nothing wherever they are read
(`distribution.example_weights`), and all other records keep their numbers, so
order, masks and dropout stay what they were, whenever the damage is found.

`PretrainingInput` does this for whoever gives it a `Budget`:

    budget = record_repair.Budget(config.max_corrupt_records)
    source = PretrainingInput(..., budget=budget)
    ...
    except tf.errors.OpError as error:  # Of a call that read from `source`.
        if not source.repair(error):
            raise
        # Else read on with `source.dataset(...)` of the same example.

`budget.describe()` is what a checkpoint should keep of it.
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
    """A record that a blank one took the place of.

    Attributes:
      file: The record file.
      record: The number of the record in it.
      offset: Where it begins, in bytes.
      reason: What is wrong with it.
    """

    file: str
    record: int
    offset: int
    reason: str


class Budget:
    """How many damaged records may be left out.

    Args:
      most: The number, of all files together; 0 leaves none out.

    Attributes:
      left_out: Those left out so far.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.left_out: list[LeftOut] = []

    def describe(
        self, before: Sequence[Mapping[str, Any]] = ()
    ) -> list[dict[str, Any]]:
        """Returns all that were left out, for a checkpoint; JSON values.

        Args:
          before: What this returned in earlier processes of the run, which may
            have come to records that this one has not come to.
        """
        records = [*before, *map(dataclasses.asdict, self.left_out)]
        return [*{(x["file"], x["record"]): x for x in records}.values()]

    def spend(self, file: str, record: int, offset: int, reason: str) -> None:
        """Leaves a record out, and says so.

        Raises:
          UserError: If there are too many; it names the record.
        """
        where = f"{file}, record {record} at byte {offset}: {reason}"
        if len(self.left_out) == self.most:
            raise UserError(
                f"{where}; --max_corrupt_records={self.most} does not allow "
                "another one to be left out; copy or make the file again, or "
                "allow more."
            )
        self.left_out.append(LeftOut(file, record, offset, reason))
        logging.warning(
            "%s; left out, %d of at most %d.",
            where,
            len(self.left_out),
            self.most,
        )


def is_out_of_step(path: str, described: FileCounts | None) -> bool:
    """Returns whether the lengths in a file do not lead to its end.

    Args:
      path: The file.
      described: What it held when it was whole; None if nobody knows. Only
        then are the lengths followed.
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
    """Reads all records, as training does, and returns the damaged files."""
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
    """Copies a file, with blank records in place of damaged ones.

    Where the length of a record is damaged, the next one is looked for. How
    many are lost in between follows from the count, if there is one such gap;
    of several, and where the count is unknown, it is estimated from the bytes.

    Args:
      path: The file.
      described: What it held when it was whole; None if nobody knows.
      sizes: What a record must hold.
      folder: A local folder for the copy.
      budget: What may be left out.

    Returns:
      The path of the copy, and the number of records in it; the file itself if
      nothing is wrong with it.

    Raises:
      UserError: If more is damaged than the budget allows, or if the file is
        no record file.
    """
    num_bytes = described.bytes if described else 0
    pieces = list(_pieces(path, sizes, num_bytes))
    counts = _counts(path, pieces, described)
    if all(piece.reason is None for piece in pieces):
        return path, len(pieces)
    blank = _blank(sizes)
    copy = os.path.join(folder, f"{len(os.listdir(folder)):06d}.tfrecord")
    with (
        files.atomic_file(copy) as temporary,
        tf.io.gfile.GFile(path, "rb") as source,
        open(temporary, "wb") as target,
    ):
        number = 0
        for piece, count in zip(pieces, counts, strict=True):
            if piece.reason is None:
                source.seek(piece.start)
                target.write(source.read(piece.stop - piece.start))
            else:
                for record in range(number, number + count):
                    budget.spend(path, record, piece.start, piece.reason)
                    target.write(blank)
            number += count
    return copy, number


@dataclasses.dataclass(frozen=True)
class _Piece:
    """A stretch of a file: a record, or a gap where there is no telling.

    Attributes:
      start: Its first byte.
      stop: The byte after its last.
      reason: What is wrong with it; None if nothing.
      is_gap: Whether it may have been several records.
    """

    start: int
    stop: int
    reason: str | None = None
    is_gap: bool = False


class _Bytes:
    """Reads here and there in a file, mostly forwards."""

    def __init__(self, file: tf.io.gfile.GFile) -> None:
        self._file = file
        self.size = file.size()
        self._start, self._chunk = 0, b""

    def get(self, start: int, stop: int) -> bytes:
        """Returns the bytes from `start` to `stop`, as far as there are any."""
        if start < self._start or stop > self._start + len(self._chunk):
            self._file.seek(start)
            self._chunk = self._file.read(max(_CHUNK_BYTES, stop - start))
            self._start = start
        return self._chunk[start - self._start : stop - self._start]


def _pieces(path: str, sizes: Sizes, num_bytes: int) -> Iterator[_Piece]:
    """Yields all of a file that once had `num_bytes`, piece by piece."""
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
                    yield _Piece(start, stop, reason, True)
                else:
                    yield _lost_end(start, data.size, num_bytes)
                    return
            else:
                contents = data.get(start, stop)
                yield _Piece(start, stop, _problem(contents, sizes))
            start = stop
        if start < num_bytes:
            yield _lost_end(start, data.size, num_bytes)


def _lost_end(start: int, size: int, num_bytes: int) -> _Piece:
    reason = f"no whole record follows until the end of the file, byte {size}"
    return _Piece(start, max(size, num_bytes), reason, True)


def _end_of_record(data: _Bytes, start: int) -> int | None:
    """Returns where the record ends whose length stands at `start`."""
    header = data.get(start, start + _HEADER.size)
    if len(header) < _HEADER.size:
        return None
    length, checksum = _HEADER.unpack(header)
    stop = start + _HEADER.size + length + _CHECKSUM.size
    # Compared first, because it costs less.
    if stop > data.size or masked_crc32c(header[: _LENGTH.size]) != checksum:
        return None
    return stop


def _is_record(data: _Bytes, start: int) -> bool:
    """Returns whether a whole record stands at `start`."""
    stop = _end_of_record(data, start)
    return stop is not None and _has_checksum(data.get(start, stop))


def _has_checksum(record: bytes) -> bool:
    (checksum,) = _CHECKSUM.unpack(record[-_CHECKSUM.size :])
    contents = record[_HEADER.size : -_CHECKSUM.size]
    return masked_crc32c(contents) == checksum


def _problem(record: bytes, sizes: Sizes) -> str | None:
    """Says what is wrong with a record, frame included."""
    if not _has_checksum(record):
        return "the checksum of its contents is wrong"
    contents = record[_HEADER.size : -_CHECKSUM.size]
    found = record_checks.describe_mismatch(contents, sizes)
    return found.rstrip(".") if found else None


def _counts(
    path: str, pieces: Sequence[_Piece], described: FileCounts | None
) -> list[int]:
    """Returns how many records each piece stands for.

    Raises:
      UserError: If the pieces cannot be records of this file.
    """
    is_gap = np.array([piece.is_gap for piece in pieces], bool)
    num_bytes = np.array([piece.stop - piece.start for piece in pieces])
    counts = np.ones(len(pieces), np.int64)
    if described is None and not is_gap.any():
        return counts.tolist()
    if described is None and is_gap.all():
        raise UserError(
            f"{path} is no record file: no record begins anywhere in it; make "
            "it again."
        )
    if described is None:
        estimated = num_bytes[is_gap] / num_bytes[~is_gap].mean()
        counts[is_gap] = np.maximum(1, np.round(estimated))
        return counts.tolist()
    num_lost = described.records - np.count_nonzero(~is_gap)
    if num_lost < np.count_nonzero(is_gap) or (num_lost and not is_gap.any()):
        raise UserError(
            f"{path} is not the file that was counted before: that had "
            f"{described.records} records of {described.bytes} bytes; make it "
            "again."
        )
    if num_lost:
        # One each; the others by bytes, rounded so that the sum is right.
        ends = np.cumsum(num_bytes[is_gap]) / num_bytes[is_gap].sum()
        others = np.round(ends * (num_lost - np.count_nonzero(is_gap)))
        counts[is_gap] += np.diff(others, prepend=0).astype(np.int64)
    return counts.tolist()


def _blank(sizes: Sizes) -> bytes:
    """Returns a record of zeros, frame included."""
    zeros = {
        feature.name: np.zeros([1, size], feature.stored_dtype)
        for feature, size in sizes.items()
    }
    return serializer.serialize(zeros, tuple(sizes))

"""Damaged records: finds them, and replaces them by blank ones.

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
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tqdm
from absl import logging
from google.protobuf import message

from bert_tf.data.generators.counts import FileCounts
from bert_tf.data.records import serializer
from bert_tf.data.records import tfrecords
from bert_tf.data.records.tfrecords import FramedRecords
from bert_tf.errors import UserError
from bert_tf.features import Feature
from bert_tf.io import files
from bert_tf.io import progress

_READ_BUFFER_BYTES = 1 << 22
_RECORDS_PER_BATCH = 1024

Sizes = Mapping[Feature, int]


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A record that was replaced by a blank one; `offset` is in bytes."""

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


def parsing_spec(sizes: Sizes) -> dict[str, tf.io.FixedLenFeature]:
    """Returns the features for `tf.io.parse_example`."""
    return {
        feature.name: tf.io.FixedLenFeature(
            [size], tf.dtypes.as_dtype(feature.stored_dtype)
        )
        for feature, size in sizes.items()
    }


def check_first_records(record_files: Sequence[str], sizes: Sizes) -> None:
    """Checks the first record of each file.

    Raises:
      UserError: If a feature is missing or has another length or type.
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
                raise UserError(f"{path.decode()}, record 0: {mismatch}.")
    except tf.errors.DataLossError as error:
        raise find_bad_record(record_files, sizes) or error from error


def _describe_mismatch(record: bytes, sizes: Sizes) -> str | None:
    """Returns what is wrong with a serialized example, or None."""
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
                f"{received}; use the length that the data was made with, "
                "or create the data again"
            )
    return None


def find_bad_record(
    record_files: Sequence[str], sizes: Sizes
) -> UserError | None:
    """Reads all records and returns an error for the first unusable one."""
    total = sum(tf.io.gfile.stat(path).length for path in record_files)
    with progress.bar(total, "looking for a bad record", "B") as bar:
        for path in record_files:
            with tf.io.gfile.GFile(path, "rb") as file:
                error = _find_bad_record(path, FramedRecords(file), sizes, bar)
            if error:
                return error
    return None


def _find_bad_record(
    path: str, records: FramedRecords, sizes: Sizes, bar: tqdm.tqdm
) -> UserError | None:
    number = start = 0
    while start < records.size:
        stop = records.find_end(start)
        contents = stop and records.read_contents(start, stop)
        if contents is None:
            return UserError(
                f"{path} is corrupt: record {number}, at byte {start}, cannot "
                "be read; copy or create the file again, or skip such records "
                "with --max_corrupt_records."
            )
        if mismatch := _describe_mismatch(contents, sizes):
            return UserError(
                f"{path}, record {number} at byte {start}: {mismatch}."
            )
        bar.update(stop - start)
        number, start = number + 1, stop
    return None


def is_truncated(path: str, described: FileCounts | None) -> bool:
    """Returns true if a file ends too early or its lengths are damaged.

    Without the counts of the intact file, all lengths in it are followed.
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
    spec = parsing_spec(sizes)
    num_bytes = [tf.io.gfile.stat(path).length for path in record_files]
    with progress.bar(sum(num_bytes), "looking for bad records", "B") as bar:
        for path, size in zip(record_files, num_bytes, strict=True):
            batches = tf.data.TFRecordDataset(
                path, buffer_size=_READ_BUFFER_BYTES
            )
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
    """Copies a file to a local folder, blank records replacing damaged ones.

    After a damaged length, the next intact record is searched. The number of
    records lost in between follows from the count if there is one such gap. For
    several gaps, or an unknown count, it is estimated from the bytes.

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


class _Range(NamedTuple):
    """One record of a file, or a gap that may have contained several.

    `reason` describes the damage, or is None.
    """

    start: int
    stop: int
    reason: str | None = None
    is_gap: bool = False


def _ranges(path: str, sizes: Sizes, num_bytes: int) -> Iterator[_Range]:
    """Yields the ranges of a file that originally had `num_bytes`."""
    with tf.io.gfile.GFile(path, "rb") as file:
        records, start = FramedRecords(file), 0
        while start < records.size:
            stop = records.find_end(start)
            if stop is not None:
                contents = records.read_contents(start, stop)
                reason = "the checksum of its contents is wrong"
                if contents is not None:
                    reason = _describe_mismatch(contents, sizes)
                yield _Range(start, stop, reason)
            else:
                stop = _find_record(records, start + 1)
                if stop == records.size:
                    break
                reason = "the length of a record is damaged"
                yield _Range(start, stop, reason, is_gap=True)
            start = stop
        if start < max(records.size, num_bytes):
            reason = (
                "no whole record follows until the end of the file, byte "
                f"{records.size}"
            )
            stop = max(records.size, num_bytes)
            yield _Range(start, stop, reason, is_gap=True)


def _find_record(records: FramedRecords, start: int) -> int:
    """Returns the start of the next intact record, or the end of the file."""
    for place in range(start, records.size):
        stop = records.find_end(place)
        if stop is not None and records.read_contents(place, stop) is not None:
            return place
    return records.size


def _counts(
    path: str, ranges: Sequence[_Range], described: FileCounts | None
) -> list[int]:
    """Returns the number of records in each range."""
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
    zeros = {
        feature.name: np.zeros([1, size], feature.stored_dtype)
        for feature, size in sizes.items()
    }
    return serializer.serialize(zeros, tuple(sizes))

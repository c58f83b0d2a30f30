"""Input pipeline of pretraining records, in a stateless order.

The stream of training examples is endless; each epoch has another order. The
`example_index` of an example is its number in the stream. Order, masks and
dropout depend only on (seed, example_index), so a run resumes at any example
without a saved iterator.

The order of an epoch depends only on (seed, epoch):

1. The files are permuted and read in groups of `FILES_PER_GROUP`.
2. The files of a group are interleaved, one record from each file in turn, and
   exhausted files are skipped. Groups are read one after another.
3. Each block of `RECORDS_PER_BLOCK` interleaved records is permuted.

So a run that resumes at some record skips whole files by their counts, and
reads at most one extra block. With a shuffle buffer, checkpoints would need the
buffer's contents.
"""

import bisect
import os
import tempfile
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf import features
from bert_tf import stateless_random
from bert_tf.data.records import tfrecords
from bert_tf.distribute.batches import fill_up
from bert_tf.errors import UserError
from bert_tf.text.masking import DynamicMasking

# Files open at once: enough to mix shards, few enough for remote file systems.
FILES_PER_GROUP = 16
# Records permuted together: about 10 MB of memory at length 128.
RECORDS_PER_BLOCK = 8192

_FILES_SALT = 1
_BLOCK_SALT = 2
# Read this much at once, because each read of a remote file is a request.
_READ_BUFFER_BYTES = 1 << 20
_ERRORS_OF_RECORDS = (tf.errors.DataLossError, tf.errors.InvalidArgumentError)


class PretrainingInput:
    """Batches of pretraining records.

    Args:
      record_files: The record files; the stream depends on their order.
      max_seq_length: S, length of the sequences.
      max_predictions_per_seq: P, predictions per record.
      batch_size: B, examples per batch over all replicas.
      seed: Seed of order and masks.
      masking: Draws new masks in each epoch; None keeps the records' masks.
      max_corrupt: Maximum number of damaged records to skip. With a maximum
        above 0, all records are read at the start to find damaged records.

    Attributes:
      num_records: Records in all files, which is the length of an epoch.
      record_counts: <int64>[num_files], number of records in each file.
      skipped: The damaged records; blank records replace them.

    Raises:
      UserError: If there is no record, if a file is truncated, or if more than
        `max_corrupt` records are damaged or have another length.
    """

    def __init__(
        self,
        record_files: Sequence[str],
        max_seq_length: int,
        max_predictions_per_seq: int,
        batch_size: int,
        seed: int = 0,
        masking: DynamicMasking | None = None,
        max_corrupt: int = 0,
    ):
        self.record_files = tuple(record_files)
        self.batch_size = batch_size
        self.seed = seed
        self.masking = masking
        self.max_seq_length = max_seq_length
        self._sizes = {
            feature: feature.size(max_seq_length, max_predictions_per_seq)
            for feature in features.PRETRAINING
        }
        counts = tfrecords.find_counts(record_files)
        self.record_counts = np.array(
            [counts[path] for path in self.record_files], np.int64
        )
        self.num_records = int(self.record_counts.sum())
        if not self.num_records:
            raise UserError(
                "The record files contain no record. Received: "
                f"{', '.join(self.record_files)}."
            )
        # The files to read: the originals, or copies without damaged records.
        self._read_from = list(self.record_files)
        self._copies: tempfile.TemporaryDirectory | None = None
        self.skipped: list[tfrecords.CheckedRecord] = []
        if max_corrupt:
            self._skip_damaged(max_corrupt)
        tfrecords.check_first_records(self._read_from, self._sizes)

    def dataset(
        self,
        start_record: int = 0,
        rows: tuple[int, int] | None = None,
    ) -> tf.data.Dataset:
        """Returns the endless stream of training batches.

        Args:
          start_record: The `example_index` to start at.
          rows: (first row, number of rows) to return of each batch, by default
            all. Other rows are read but not parsed.

        Returns:
          Batches of the pretraining features, [rows, S], [rows, P] or [rows,
          1], and `example_index` <int64>[rows].
        """
        epoch, position = divmod(start_record, self.num_records)
        first = self._first_epoch(epoch, position)
        later = tf.data.Dataset.range(epoch + 1, tf.int64.max)
        stream = first.concatenate(later.flat_map(self._epoch))
        stream = stream.rebatch(self.batch_size, drop_remainder=True)
        stream = stream.enumerate()
        first_row, num_rows = rows or (0, self.batch_size)

        def parse(number, serialized):
            first = start_record + number * self.batch_size + first_row
            index = first + tf.range(num_rows, dtype=tf.int64)
            own = serialized[first_row : first_row + num_rows]
            batch = self._parse(tf.ensure_shape(own, [num_rows]))
            if self.masking:
                batch = self.masking.apply(batch, index, self.seed)
            return batch | {"example_index": index}

        return _parsed(stream, parse)

    def evaluation_dataset(self) -> tf.data.Dataset:
        """Returns all records once, in file order, with their own masks.

        Blank rows, which have an `example_index` of -1, fill up the last batch.
        """
        stream = tf.data.TFRecordDataset(
            self._read_from, buffer_size=_READ_BUFFER_BYTES
        )
        stream = stream.batch(self.batch_size).enumerate()

        def parse(number, serialized):
            index = tf.range(self.batch_size, dtype=tf.int64)
            is_real = index < tf.size(serialized, tf.int64)
            index = tf.where(is_real, index + number * self.batch_size, -1)
            batch = {
                name: fill_up(value, self.batch_size)
                for name, value in self._parse(serialized).items()
            }
            return batch | {"example_index": index}

        num_batches = -(-self.num_records // self.batch_size)
        stream = stream.apply(
            tf.data.experimental.assert_cardinality(num_batches)
        )
        return _parsed(stream, parse)

    def explain(self, error: tf.errors.OpError) -> UserError | None:
        """Returns an error that names the bad record, or None if there is none.

        TensorFlow's message names neither file nor feature. This method reads
        all files again, so call it only after training has failed.
        """
        if not isinstance(error, _ERRORS_OF_RECORDS):
            return None
        return tfrecords.find_bad_record(self._read_from, self._sizes)

    def close(self) -> None:
        """Removes the copies of damaged files; reading must have ended."""
        if self._copies is not None:
            self._copies.cleanup()

    def _skip_damaged(self, most: int) -> None:
        """Replaces damaged records by blank ones, in copies of their files."""
        self._copies = tempfile.TemporaryDirectory(prefix="bert_tf-")
        blank = tfrecords.blank_record(self._sizes)
        for path in tfrecords.find_damaged(self.record_files, self._sizes):
            index = self.record_files.index(path)
            copy = os.path.join(self._copies.name, f"{index}.tfrecord")
            self._read_from[index] = copy
            with open(copy, "wb") as file:
                for record in tfrecords.read_records(path, self._sizes):
                    if record.reason is None:
                        file.write(record.framed)
                        continue
                    if record.stop is None or len(self.skipped) == most:
                        raise record.error(most)
                    self.skipped.append(record)
                    logging.warning(
                        "%s; skipped, %d of at most %d.",
                        record,
                        len(self.skipped),
                        most,
                    )
                    file.write(blank)

    def _first_epoch(self, epoch: int, position: int) -> tf.data.Dataset:
        """Returns the permuted blocks of an epoch, starting at a position."""
        block, offset = divmod(position, RECORDS_PER_BLOCK)
        order = file_order(len(self.record_files), self.seed, epoch).numpy()
        group, files, skips = find_start(
            self.record_counts[order], position - offset, FILES_PER_GROUP
        )
        paths = np.array(self._read_from)[order]
        later = paths[(group + 1) * FILES_PER_GROUP :]
        # Files are read in turn, so begin with the file of the next record.
        begun = self._group(
            tf.constant(paths[files], tf.string), tf.constant(skips, tf.int64)
        )
        records = begun.concatenate(self._groups(tf.constant(later, tf.string)))
        blocks = self._blocks(records, epoch, block)

        def cut(number, serialized):
            return serialized[tf.where(number == 0, offset, 0) :]

        return blocks.enumerate().map(cut)

    def _epoch(self, epoch: tf.Tensor) -> tf.data.Dataset:
        order = file_order(len(self.record_files), self.seed, epoch)
        paths = tf.gather(tf.constant(self._read_from), order)
        return self._blocks(self._groups(paths), epoch, 0)

    def _groups(self, paths: tf.Tensor) -> tf.data.Dataset:
        groups = tf.data.Dataset.from_tensor_slices(paths)
        groups = groups.batch(FILES_PER_GROUP)
        return groups.flat_map(
            lambda group: self._group(
                group, tf.zeros(tf.shape(group), tf.int64)
            )
        )

    def _group(self, paths: tf.Tensor, skips: tf.Tensor) -> tf.data.Dataset:
        """Interleaves the files of a group, one record from each in turn."""

        def read(path, skip):
            records = tf.data.TFRecordDataset(
                path, buffer_size=_READ_BUFFER_BYTES
            )
            return records.skip(skip)

        return tf.data.Dataset.from_tensor_slices((paths, skips)).interleave(
            read, cycle_length=FILES_PER_GROUP, block_length=1
        )

    def _blocks(
        self, records: tf.data.Dataset, epoch: tf.Tensor, first_block: int
    ) -> tf.data.Dataset:
        """Cuts an epoch's records into blocks and permutes each block."""

        def permute(block, serialized):
            order = block_order(tf.size(serialized), self.seed, epoch, block)
            return tf.gather(serialized, order)

        blocks = records.batch(RECORDS_PER_BLOCK)
        blocks = blocks.enumerate(start=first_block).map(permute)
        return blocks.prefetch(1)

    def _parse(self, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(
            serialized, tfrecords.parsing_spec(self._sizes)
        )
        return {
            feature.name: tf.cast(parsed[feature.name], feature.dtype)
            for feature in self._sizes
        }


def _parsed(
    stream: tf.data.Dataset, parse: Callable[..., Any]
) -> tf.data.Dataset:
    stream = stream.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.deterministic = True
    # Do not shard files: each worker reads all files and takes its rows.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return stream.prefetch(tf.data.AUTOTUNE).with_options(options)


def file_order(num_files: int, seed: int, epoch: tf.Tensor | int) -> tf.Tensor:
    """Returns the order of an epoch's files, <int32>[num_files]."""
    return stateless_random.permutation(num_files, _FILES_SALT, seed, epoch)


def block_order(
    size: tf.Tensor | int,
    seed: int,
    epoch: tf.Tensor | int,
    block: tf.Tensor | int,
) -> tf.Tensor:
    """Returns the order of a block's records, <int32>[size]."""
    return stateless_random.permutation(size, _BLOCK_SALT, seed, epoch, block)


def find_start(
    counts: np.ndarray, position: int, files_per_group: int
) -> tuple[int, np.ndarray, np.ndarray]:
    """Finds the record at a position of an epoch's interleaved sequence.

    `counts` <int64>[num_files] has the number of records of each file, in the
    epoch's order. The last group may have fewer files. Files of 3, 1 and 2
    records give the sequence a0 b0 c0 a1 c1 a2; position 4, c1, is in group 0
    with files [2, 0, 1] and skips [1, 2, 1].

    Returns:
      The number of the first group to read, the indices <int64>[n] of its
      files, and the number of records to skip in each file, <int64>[n]. The
      indices are in the epoch's order, but begin with the file to read next.
    """
    starts = np.arange(0, len(counts), files_per_group)
    group_ends = np.cumsum(np.add.reduceat(counts, starts))
    group = int(np.searchsorted(group_ends, position, side="right"))
    if group:
        position -= int(group_ends[group - 1])
    first = int(starts[group])
    group_counts = counts[first : first + files_per_group]
    # A round reads one record of each file; `row` whole rounds are done.
    row = -1 + bisect.bisect_right(
        range(group_counts.max()),
        position,
        key=lambda rows: np.minimum(group_counts, rows).sum(),
    )
    # Files with at most `row` records are exhausted: the next round skips them.
    present = np.flatnonzero(group_counts > row)
    earlier = position - int(np.minimum(group_counts, row).sum())
    turn = int(present[earlier])
    skips = np.minimum(
        group_counts, row + (np.arange(len(group_counts)) < turn)
    )
    rotated = np.roll(np.arange(len(group_counts)), -turn)
    return group, first + rotated, skips[rotated]

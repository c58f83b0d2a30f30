"""The reading order of pretraining records, as a pure function.

The order of an epoch depends only on (seed, epoch):

1. The files are permuted and read in groups of `FILES_PER_GROUP`.
2. The files of a group are interleaved record by record, round robin; a file
   that has ended drops out. The groups follow one another.
3. Each `RECORDS_PER_BLOCK` consecutive records of that sequence are permuted.

So the position of any record is known without reading. A run that resumes at
record p skips whole files by their counts and reads at most one extra block. A
shuffle buffer would have state to save.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from bert_tf import stateless_random

# Enough open files to mix shards, few enough for remote file systems.
FILES_PER_GROUP = 16
# About 10 MB of records of length 128.
RECORDS_PER_BLOCK = 8192

_FILES_SALT = 1
_BLOCK_SALT = 2


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


@dataclasses.dataclass(frozen=True)
class StartPoint:
    """The starting position in an epoch's interleaved sequence.

    Attributes:
      group: Number of the group; earlier groups are not read.
      files: Files of the group as indices into the epoch's file order, in
        round-robin order, starting with the file of the record.
      skips: Number of earlier records in each of these files.
    """

    group: int
    files: tuple[int, ...]
    skips: tuple[int, ...]


def find_start(
    counts: np.ndarray, position: int, files_per_group: int = FILES_PER_GROUP
) -> StartPoint:
    """Finds the record at a position of an epoch's interleaved sequence.

    Args:
      counts: <int64>[num_files], records of each file in the epoch's order.
      position: Position in the interleaved sequence, below the sum of counts.
      files_per_group: Number of files in a group; the last one may have fewer.
    """
    starts = np.arange(0, len(counts), files_per_group)
    group_ends = np.cumsum(np.add.reduceat(counts, starts))
    group = int(np.searchsorted(group_ends, position, side="right"))
    if group:
        position -= int(group_ends[group - 1])
    first = int(starts[group])
    group_counts = counts[first : first + files_per_group]
    row = _find_row(group_counts, position)
    # The records of the row come from the files that are long enough, in order.
    present = np.flatnonzero(group_counts > row)
    earlier = position - int(np.minimum(group_counts, row).sum())
    turn = int(present[earlier])
    skips = np.minimum(
        group_counts, row + (np.arange(len(group_counts)) < turn)
    )
    rotated = np.roll(np.arange(len(group_counts)), -turn)
    return StartPoint(
        group,
        tuple((first + rotated).tolist()),
        tuple(skips[rotated].tolist()),
    )


def _find_row(counts: np.ndarray, position: int) -> int:
    """Returns the number of full rounds of a group before a position."""
    low, high = 0, int(counts.max()) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if int(np.minimum(counts, middle).sum()) <= position:
            low = middle
        else:
            high = middle - 1
    return low

"""Exact duplicates: documents, paragraphs, and lines of many documents.

Of equal ones the first in the order of the input stays. Hashes may be memory
maps of any size: they are looked at a partition of their values at a time.
"""

from collections.abc import Iterator

import numpy as np

# Hashes in a partition and in a block that is read at once. A partition takes
# about 40 bytes a hash while it is sorted.
_PARTITION = 1 << 22


def repeated_documents(hashes: np.ndarray) -> np.ndarray:
    """Finds documents that are equal to an earlier one.

    Args:
      hashes: `Fingerprints.documents`, uint64 [n, 2].

    Returns:
      bool [n].
    """
    repeated = np.zeros(len(hashes), bool)
    for positions, starts in equal_runs(hashes[:, 0]):
        first = np.repeat(positions[starts], _run_lengths(positions, starts))
        equal = hashes[positions, 1] == hashes[first, 1]
        repeated[positions] = equal & (positions != first)
    return repeated


def repeated_paragraphs(
    hashes: np.ndarray, considered: np.ndarray
) -> np.ndarray:
    """Finds paragraphs that are equal to an earlier one.

    Args:
      hashes: `Fingerprints.paragraphs`, uint64 [m].
      considered: bool [m]; others are neither dropped nor reasons to drop, as
        short paragraphs and those of dropped documents.

    Returns:
      bool [m].
    """
    repeated = np.zeros(len(hashes), bool)
    for positions, starts in equal_runs(hashes, considered):
        repeated[positions] = True
        repeated[positions[starts]] = False
    return repeated


def repeated_lines(
    hashes: np.ndarray,
    num_paragraphs: np.ndarray,
    considered: np.ndarray,
    max_documents: int,
) -> np.ndarray:
    """Finds paragraphs that more than `max_documents` documents have.

    Args:
      hashes: `Fingerprints.paragraphs`, uint64 [m].
      num_paragraphs: `Fingerprints.num_paragraphs`, int64 [n].
      considered: bool [m]; others neither count nor are dropped.
      max_documents: Number of documents.

    Returns:
      bool [m]: all such paragraphs but the first of each kind.
    """
    ends = np.cumsum(num_paragraphs)
    repeated = np.zeros(len(hashes), bool)
    for positions, starts in equal_runs(hashes, considered):
        documents = np.searchsorted(ends, positions, side="right")
        new = np.ones(len(positions), bool)
        new[1:] = documents[1:] != documents[:-1]
        new[starts] = True
        many = np.add.reduceat(new, starts, dtype=np.int64) > max_documents
        repeated[positions] = np.repeat(many, _run_lengths(positions, starts))
        repeated[positions[starts]] = False
    return repeated


def equal_runs(
    keys: np.ndarray, considered: np.ndarray | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the positions of keys that occur more than once.

    Memory is bounded by a partition, unless one key occurs more often.

    Args:
      keys: Hashes with even bits, uint64 [n].
      considered: bool [n], or None for all.

    Yields:
      Positions, int64, those of equal keys next to each other and ascending,
      and the indices where another key begins, int64. Not empty.
    """
    # A power of two, which the lowest bits of a key select.
    partitions = 1 << max((len(keys) - 1) // _PARTITION, 0).bit_length()
    for partition in range(partitions):
        selected, positions = _select(keys, considered, partitions, partition)
        order = np.argsort(selected, kind="stable")
        selected = selected[order]
        positions = positions[order]
        del order
        equal = selected[1:] == selected[:-1]
        del selected
        in_run = np.zeros(len(positions), bool)
        in_run[1:] = equal
        is_first = ~in_run
        in_run[:-1] |= equal
        starts = np.flatnonzero(is_first[in_run])
        if len(starts):
            yield positions[in_run], starts


def _select(
    keys: np.ndarray,
    considered: np.ndarray | None,
    partitions: int,
    partition: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the keys of a partition and their positions."""
    chosen_keys = [np.zeros(0, np.uint64)]
    chosen_positions = [np.zeros(0, np.int64)]
    for start in range(0, len(keys), _PARTITION):
        block = np.asarray(keys[start : start + _PARTITION])
        chosen = (block & np.uint64(partitions - 1)) == partition
        if considered is not None:
            chosen &= considered[start : start + _PARTITION]
        chosen = np.flatnonzero(chosen)
        chosen_keys.append(block[chosen])
        chosen_positions.append(chosen + start)
    return np.concatenate(chosen_keys), np.concatenate(chosen_positions)


def _run_lengths(positions: np.ndarray, starts: np.ndarray) -> np.ndarray:
    return np.diff(starts, append=len(positions))

"""Near duplicates of documents: locality-sensitive hashing on disk.

Signatures are cut into bands. Documents with an equal band are candidates, and
of those an estimated similarity of the threshold and more decides. The index is
one 64-bit key for each band of a document, in a file; the library datasketch,
which computes the signatures, would keep dictionaries of Python objects, tens
of gigabytes for 10 million documents.
"""

import os

import numpy as np
from absl import logging

from bert_tf.corpus import duplicates
from bert_tf.corpus import fingerprints
from bert_tf.corpus import ngrams

# Least probability that a pair whose similarity is the threshold is compared.
_RECALL = 0.95
# Rows of signatures that are read at once, 8 MB.
_ROWS = 1 << 14
# Documents of one key that others are compared with. Pages made from one
# template share keys without being duplicates, by the ten thousand; comparing
# all their pairs would never end.
_MOST_ROUNDS = 200


def choose_bands(threshold: float, num_perm: int) -> tuple[int, int]:
    """Returns the number of bands and of rows in a band.

    Rows are as many as leave a pair whose similarity is the threshold a
    probability of 0.95 to have an equal band: 1 - (1 - threshold^rows)^bands.
    More rows mean fewer comparisons. The optimum of datasketch's `MinHashLSH`
    weighs misses against candidates, which cost little here; for a threshold of
    0.8 it would miss 60 of 100 such pairs.

    >>> choose_bands(0.8, 128)
    (18, 7)
    """
    for rows in range(num_perm, 1, -1):
        bands = num_perm // rows
        if 1 - (1 - threshold**rows) ** bands >= _RECALL:
            return bands, rows
    return num_perm, 1


def find(
    signatures: np.ndarray,
    threshold: float,
    folder: str,
    considered: np.ndarray | None = None,
) -> np.ndarray:
    """Finds documents that are similar to an earlier one.

    Args:
      signatures: `Fingerprints.signatures`, uint32 [n, num_perm]; may be a
        memory map.
      threshold: The least estimated Jaccard similarity of duplicates, above 0.
      folder: Where the index is written and then removed, 8 bytes for each
        band of a document.
      considered: bool [n]; others are neither dropped nor compared with. None
        means all.

    Returns:
      int64 [n]: the position of the earlier document, or -1. That one may
      itself be similar to a third, still earlier one.
    """
    bands, rows = choose_bands(threshold, signatures.shape[1])
    path = os.path.join(folder, "near_duplicates.keys")
    shape = (bands, len(signatures))
    original = np.full(len(signatures), -1, np.int64)
    if not len(signatures):
        return original
    try:
        # Writing to a map of a sparse file on a full disk ends the process.
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 8 * bands * len(signatures))
        keys = np.memmap(path, np.uint64, "r+", shape=shape)
        indexed = _store_keys(signatures, keys, rows)
        if considered is not None:
            indexed &= considered
        for band in range(bands):
            runs = duplicates.equal_runs(keys[band], indexed)
            for positions, starts in runs:
                _compare(signatures, positions, starts, threshold, original)
                indexed[positions] &= original[positions] < 0
    finally:
        if os.path.exists(path):
            os.remove(path)
    return original


def _store_keys(
    signatures: np.ndarray, keys: np.ndarray, rows: int
) -> np.ndarray:
    """Fills in the keys; returns which documents have shingles, bool [n]."""
    has_shingles = np.zeros(len(signatures), bool)
    for start in range(0, len(signatures), _ROWS):
        block = np.asarray(signatures[start : start + _ROWS])
        stop = start + len(block)
        has_shingles[start:stop] = (block != fingerprints.NO_SHINGLES).any(1)
        for band in range(len(keys)):
            values = block[:, band * rows : (band + 1) * rows]
            keys[band, start:stop] = ngrams.hash_ngrams(values.T, rows)[0]
    return has_shingles


def _compare(
    signatures: np.ndarray,
    positions: np.ndarray,
    starts: np.ndarray,
    threshold: float,
    original: np.ndarray,
) -> None:
    """Compares the documents of each run; enters duplicates in `original`.

    In each round the first of a run is compared with all others of it, and
    then leaves the run, as do its duplicates.
    """
    lengths = np.diff(starts, append=len(positions))
    runs = np.repeat(np.arange(len(starts)), lengths)
    for _ in range(_MOST_ROUNDS):
        is_first = np.ones(len(runs), bool)
        is_first[1:] = runs[1:] != runs[:-1]
        starts = np.flatnonzero(is_first)
        lengths = np.diff(starts, append=len(runs))
        if not len(runs) or lengths.max() < 2:
            return
        first = np.repeat(positions[starts], lengths)
        others = ~is_first
        positions, runs, first = positions[others], runs[others], first[others]
        similar = _are_similar(signatures, first, positions, threshold)
        original[positions[similar]] = first[similar]
        positions, runs = positions[~similar], runs[~similar]
    left = np.bincount(runs, minlength=1)
    if left.max() > 1:
        logging.warning(
            "%d documents share words with more than %d others, such as pages "
            "made from one template; near duplicates among them may be missed.",
            left[left > 1].sum(),
            _MOST_ROUNDS,
        )


def _are_similar(
    signatures: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    threshold: float,
) -> np.ndarray:
    """Compares signatures pair by pair; returns bool [pairs]."""
    # The least number of equal values; a float such as 0.8 * 125 may lie just
    # above the whole number that is meant.
    least = np.ceil(threshold * signatures.shape[1] - 1e-9)
    similar = np.zeros(len(first), bool)
    for start in range(0, len(first), _ROWS):
        pairs = slice(start, start + _ROWS)
        equal = signatures[first[pairs]] == signatures[second[pairs]]
        similar[pairs] = equal.sum(1) >= least
    return similar

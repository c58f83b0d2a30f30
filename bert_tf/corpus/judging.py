"""Decides which documents and paragraphs of a corpus are duplicates.

Only the first of several equal texts is kept. The arrays of hashes may be
larger than memory, so they are processed in partitions by value.

Near duplicates are found by locality-sensitive hashing on disk. Signatures are
cut into bands. Documents that share a band are compared, and are near
duplicates if their estimated similarity reaches the threshold. The index is a
file with one 64-bit key for each band of a document. The index of datasketch,
the library that computes the signatures, would take tens of gigabytes of memory
for 10 million documents.
"""

import dataclasses
import os
from collections.abc import Iterator

import numpy as np
from absl import logging

from bert_tf.corpus import filters
from bert_tf.corpus.fingerprints import NO_SHINGLES
from bert_tf.corpus.fingerprints import Fingerprints
from bert_tf.corpus.fingerprints import hash_ngrams
from bert_tf.corpus.fingerprints import mix
from bert_tf.flags.options import Flags
from bert_tf.io import files

DUPLICATE_DOCUMENT = "duplicate document"
NEAR_DUPLICATE = "near duplicate"
DUPLICATE_PARAGRAPH = "duplicate paragraph"
REPEATED_LINE = "line of many documents"
# A decision is an index into this tuple; 0 keeps the text.
REASONS = (
    "",
    DUPLICATE_DOCUMENT,
    NEAR_DUPLICATE,
    DUPLICATE_PARAGRAPH,
    REPEATED_LINE,
    filters.EMPTY_DOCUMENT,
    filters.SHORT_DOCUMENT,
)
_KEPT = 0
# The sizes of this number of documents are summed at once, to save memory.
_BLOCK = 1 << 18

# Number of hashes to sort or read at once. Sorting takes about 40 bytes of
# memory per hash.
_PARTITION = 1 << 22

# Minimum probability of comparing two documents as similar as the threshold.
_RECALL = 0.95
# Read this number of signatures at once, which take 8 MB.
_ROWS = 1 << 14
# Stop comparing documents with the same key after this many rounds. Many pages
# of one template may share a key, and all pairs would take too long.
_MOST_ROUNDS = 200


@dataclasses.dataclass(frozen=True)
class Decisions:
    """The decisions on n documents with m paragraphs.

    Attributes:
      documents: Index into `REASONS` for each document, uint8 [n].
      paragraphs: Index into `REASONS` for each paragraph, uint8 [m]; 0 for all
        paragraphs of a dropped document.
      sizes: Number of kept characters of each document, int64 [n].
    """

    documents: np.ndarray
    paragraphs: np.ndarray
    sizes: np.ndarray


def decide(fingerprints: Fingerprints, config: Flags, folder: str) -> Decisions:
    """Decides which documents and paragraphs are kept.

    The fingerprints are in the order of the input; `folder` is for temporary
    files.
    """
    documents = np.zeros(len(fingerprints.ids), np.uint8)
    if config.drop_duplicate_documents:
        repeated = repeated_documents(fingerprints.documents)
        documents[repeated] = REASONS.index(DUPLICATE_DOCUMENT)
    if config.near_duplicate_threshold:
        original = similar_documents(
            fingerprints.signatures,
            config.near_duplicate_threshold,
            folder,
            documents == _KEPT,
        )
        documents[original >= 0] = REASONS.index(NEAR_DUPLICATE)
    paragraphs = np.zeros(len(fingerprints.paragraphs), np.uint8)
    considered = np.repeat(documents == _KEPT, fingerprints.num_paragraphs)
    if config.duplicate_paragraph_length:
        is_long = fingerprints.lengths >= config.duplicate_paragraph_length
        repeated = repeated_paragraphs(
            fingerprints.paragraphs, considered & is_long
        )
        paragraphs[repeated] = REASONS.index(DUPLICATE_PARAGRAPH)
        considered &= ~repeated
    if config.repeated_line_documents:
        repeated = repeated_paragraphs(
            fingerprints.paragraphs,
            considered,
            config.repeated_line_documents,
            np.cumsum(fingerprints.num_paragraphs),
        )
        paragraphs[repeated] = REASONS.index(REPEATED_LINE)
    sizes = _kept_sizes(fingerprints, paragraphs)
    is_kept = documents == _KEPT
    is_short = sizes < config.min_document_length
    documents[is_kept & is_short] = REASONS.index(filters.SHORT_DOCUMENT)
    documents[is_kept & (sizes == 0)] = REASONS.index(filters.EMPTY_DOCUMENT)
    return Decisions(documents, paragraphs, sizes)


def _kept_sizes(
    fingerprints: Fingerprints, paragraphs: np.ndarray
) -> np.ndarray:
    """Returns the number of kept characters of each document, int64 [n]."""
    counts = fingerprints.num_paragraphs
    sizes = np.zeros(len(counts), np.int64)
    start = 0
    for first in range(0, len(counts), _BLOCK):
        ends = np.cumsum(counts[first : first + _BLOCK])
        own = slice(start, start + int(ends[-1]))
        kept = fingerprints.lengths[own] * (paragraphs[own] == _KEPT)
        total = np.append(0, np.cumsum(kept))[ends]
        sizes[first : first + _BLOCK] = np.diff(total, prepend=0)
        start = own.stop
    return sizes


def is_heldout(ids: np.ndarray, share: float) -> np.ndarray:
    """Chooses a share of documents, by ids alone, to hold out; bool [n].

    A held-out document stays held out if the corpus or the share grows.
    """
    return _uniform(ids) < share


def count_copies(
    ids: np.ndarray,
    sizes: np.ndarray,
    languages: np.ndarray,
    exponent: float,
) -> np.ndarray:
    """Returns how often each document is written, int64 [n].

    Text in languages with little text is written more often: a language with
    the share p of the characters gets a share in proportion to p^exponent. The
    corpus keeps its size. For an exponent of 0.5, shares of 0.9 and 0.1 become
    0.75 and 0.25. So documents are written 0.83 and 2.5 times on average.

    Args:
      ids: uint64 [n].
      sizes: Number of characters of each document, int64 [n].
      languages: Index of each document's language, int [n].
      exponent: 1 changes nothing, 0 gives all languages the same share.
    """
    totals = np.bincount(languages, sizes).astype(np.float64)
    shares = totals / max(totals.sum(), 1)
    powers = np.where(shares > 0, shares**exponent, 0)
    wanted = powers / max(powers.sum(), 1e-300) * totals.sum()
    factors = np.divide(
        wanted, totals, out=np.zeros_like(totals), where=totals > 0
    )[languages]
    # As the smallest ids are held out, the others are not uniform: mix them.
    chance = _uniform(mix(ids + np.uint64(1)))
    whole = np.floor(factors)
    return (whole + (chance < factors - whole)).astype(np.int64)


def _uniform(ids: np.ndarray) -> np.ndarray:
    return (np.asarray(ids) >> np.uint64(11)) / float(1 << 53)


def repeated_documents(hashes: np.ndarray) -> np.ndarray:
    """Finds repeated documents, bool [n]; `hashes` are uint64 [n, 2]."""
    repeated = np.zeros(len(hashes), bool)
    for positions, starts in equal_runs(hashes[:, 0]):
        lengths = np.diff(starts, append=len(positions))
        first = np.repeat(positions[starts], lengths)
        equal = hashes[positions, 1] == hashes[first, 1]
        repeated[positions] = equal & (positions != first)
    return repeated


def repeated_paragraphs(
    hashes: np.ndarray,
    considered: np.ndarray,
    max_documents: int = 1,
    ends: np.ndarray | None = None,
) -> np.ndarray:
    """Finds paragraphs that are in more than `max_documents` documents.

    Args:
      hashes: `Fingerprints.paragraphs`, uint64 [m].
      considered: bool [m]: False for paragraphs to ignore, such as short ones.
        Ignored paragraphs stay, and no copy of them is dropped.
      max_documents: Maximum number of documents that may share a paragraph.
      ends: The end of each document's paragraphs, int64 [n]; None counts each
        paragraph as a document.

    Returns:
      bool [m], True for paragraphs to drop, which are all copies but the first.
    """
    repeated = np.zeros(len(hashes), bool)
    for positions, starts in equal_runs(hashes, considered):
        documents = positions
        if ends is not None:
            documents = np.searchsorted(ends, positions, side="right")
        new = np.ones(len(positions), bool)
        new[1:] = documents[1:] != documents[:-1]
        new[starts] = True
        many = np.add.reduceat(new, starts, dtype=np.int64) > max_documents
        lengths = np.diff(starts, append=len(positions))
        repeated[positions] = np.repeat(many, lengths)
        repeated[positions[starts]] = False
    return repeated


def equal_runs(
    keys: np.ndarray, considered: np.ndarray | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the positions of keys that occur more than once.

    Memory holds one partition, which is large only if a key is frequent. The
    keys 7 5 7 9 5 7 give the positions 1 4 0 2 5 and the starts 0 2.

    Args:
      keys: Evenly distributed hashes, uint64 [n].
      considered: bool [n], False for keys to ignore; None ignores no key.

    Yields:
      The positions of a partition's repeated keys, int64, grouped by key and
      ascending in a group; and the index where each group starts, int64.
    """
    # Use a power of two, so that a key's lowest bits give its partition.
    partitions = 1 << max((len(keys) - 1) // _PARTITION, 0).bit_length()
    for partition in range(partitions):
        selected, positions = _select(keys, considered, partitions, partition)
        order = np.argsort(selected, kind="stable")
        selected, positions = selected[order], positions[order]
        equal = selected[1:] == selected[:-1]
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


def choose_bands(threshold: float, num_perm: int) -> tuple[int, int]:
    """Returns the number of bands and the number of rows in a band.

    Two documents with a similarity of `threshold` share a band with the
    probability 1 - (1 - threshold^rows)^bands. More rows need fewer
    comparisons, so the result has as many as keep the probability at 0.95 or
    more. For 0.8, the probability is 0.986 with 7 rows and 0.947 with 8.
    `MinHashLSH` of datasketch chooses 9 bands of 13 rows and misses 60% of
    pairs.

    >>> choose_bands(0.8, 128)
    (18, 7)
    """
    for rows in range(num_perm, 1, -1):
        bands = num_perm // rows
        if 1 - (1 - threshold**rows) ** bands >= _RECALL:
            return bands, rows
    return num_perm, 1


def similar_documents(
    signatures: np.ndarray,
    threshold: float,
    folder: str,
    considered: np.ndarray | None = None,
) -> np.ndarray:
    """Finds documents that are similar to an earlier one.

    Args:
      signatures: `Fingerprints.signatures`, uint32 [n, num_perm]; may be a
        memory map.
      threshold: Minimum estimated Jaccard similarity of duplicates, above 0.
      folder: Directory for a temporary index (8 bytes per document and band).
      considered: bool [n]: False for documents that stay and are not compared;
        None compares all documents.

    Returns:
      int64 [n]: the position of a similar, earlier document, or -1. The earlier
      document may be a near duplicate itself.
    """
    bands, rows = choose_bands(threshold, signatures.shape[1])
    path = os.path.join(folder, "near_duplicates.keys")
    shape = (bands, len(signatures))
    original = np.full(len(signatures), -1, np.int64)
    if not len(signatures):
        return original
    try:
        # Reserve disk space now: later, a full disk would end the process.
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 8 * bands * len(signatures))
        keys = np.memmap(path, np.uint64, "r+", shape=shape)
        indexed = _store_keys(signatures, keys, rows)
        if considered is not None:
            indexed &= considered
        for band in range(bands):
            for positions, starts in equal_runs(keys[band], indexed):
                _compare(signatures, positions, starts, threshold, original)
                indexed[positions] &= original[positions] < 0
    finally:
        files.remove(path)
    return original


def _store_keys(
    signatures: np.ndarray, keys: np.ndarray, rows: int
) -> np.ndarray:
    """Fills `keys`; returns which documents have shingles, bool [n]."""
    has_shingles = np.zeros(len(signatures), bool)
    for start in range(0, len(signatures), _ROWS):
        block = np.asarray(signatures[start : start + _ROWS])
        stop = start + len(block)
        has_shingles[start:stop] = (block != NO_SHINGLES).any(1)
        for band in range(len(keys)):
            values = block[:, band * rows : (band + 1) * rows]
            keys[band, start:stop] = hash_ngrams(values.T, rows)[0]
    return has_shingles


def _compare(
    signatures: np.ndarray,
    positions: np.ndarray,
    starts: np.ndarray,
    threshold: float,
    original: np.ndarray,
) -> None:
    """Compares the documents of each run; stores duplicates in `original`.

    Each round compares the first document of a run with all others, and then
    removes this document and its duplicates. In a run a b c d with a = b and
    c = d, round 1 compares a with b, c, d, and round 2 compares c with d.
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
    # Without 1e-9, 0.55 * 100 = 55.00000000000001 would be rounded up to 56.
    least = np.ceil(threshold * signatures.shape[1] - 1e-9)
    similar = np.zeros(len(first), bool)
    for start in range(0, len(first), _ROWS):
        pairs = slice(start, start + _ROWS)
        equal = signatures[first[pairs]] == signatures[second[pairs]]
        similar[pairs] = equal.sum(1) >= least
    return similar

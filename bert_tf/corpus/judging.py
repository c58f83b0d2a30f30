"""Decides which documents and paragraphs of a corpus are duplicates."""

import dataclasses

import numpy as np

from bert_tf.corpus import duplicates
from bert_tf.corpus import filters
from bert_tf.corpus import ngrams
from bert_tf.corpus.fingerprints import Fingerprints
from bert_tf.flags.corpus import ExtractTextConfig

DUPLICATE_DOCUMENT = "duplicate document"
NEAR_DUPLICATE = "near duplicate"
DUPLICATE_PARAGRAPH = "duplicate paragraph"
REPEATED_LINE = "line of many documents"
# Decisions are indices of this tuple; 0 keeps.
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
# Documents that are summed at once.
_BLOCK = 1 << 18


@dataclasses.dataclass(frozen=True)
class Decisions:
    """The decisions on n documents with m paragraphs.

    Attributes:
      documents: Index into `REASONS` for each document, uint8 [n].
      paragraphs: Index into `REASONS` for each paragraph, uint8 [m]; 0 for
        paragraphs of dropped documents.
      sizes: Characters that are kept of each document, int64 [n].
    """

    documents: np.ndarray
    paragraphs: np.ndarray
    sizes: np.ndarray


def decide(
    fingerprints: Fingerprints, config: ExtractTextConfig, folder: str
) -> Decisions:
    """Returns which documents and paragraphs stay; the first of equals does.

    Args:
      fingerprints: All documents in the order of the input.
      config: The flags.
      folder: For temporary files.
    """
    documents = np.zeros(len(fingerprints.ids), np.uint8)
    if config.drop_duplicate_documents:
        repeated = duplicates.repeated_documents(fingerprints.documents)
        documents[repeated] = REASONS.index(DUPLICATE_DOCUMENT)
    if config.near_duplicate_threshold:
        original = duplicates.similar_documents(
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
        repeated = duplicates.repeated_paragraphs(
            fingerprints.paragraphs, considered & is_long
        )
        paragraphs[repeated] = REASONS.index(DUPLICATE_PARAGRAPH)
        considered &= ~repeated
    if config.repeated_line_documents:
        repeated = duplicates.repeated_lines(
            fingerprints.paragraphs,
            fingerprints.num_paragraphs,
            considered,
            config.repeated_line_documents,
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
    """Returns the characters of each document that are kept, int64 [n]."""
    counts = fingerprints.num_paragraphs
    sizes = np.zeros(len(counts), np.int64)
    start = 0
    for first in range(0, len(counts), _BLOCK):
        block = np.asarray(counts[first : first + _BLOCK])
        stop = start + int(block.sum())
        kept = fingerprints.lengths[start:stop] * (
            paragraphs[start:stop] == _KEPT
        )
        total = np.concatenate([[0], np.cumsum(kept)])
        ends = np.cumsum(block)
        sizes[first : first + _BLOCK] = total[ends] - total[ends - block]
        start = stop
    return sizes


def is_heldout(ids: np.ndarray, share: float) -> np.ndarray:
    """Chooses documents by their ids alone.

    A document stays on its side when the corpus grows, and the held-out
    documents of a smaller share are among those of a larger one.

    Args:
      ids: `Fingerprints.ids`, uint64 [n].
      share: Of the documents, in [0, 1).

    Returns:
      bool [n].
    """
    return _uniform(ids) < share


def count_copies(
    ids: np.ndarray,
    sizes: np.ndarray,
    languages: np.ndarray,
    exponent: float,
) -> np.ndarray:
    """Returns how often each document is written, so that languages are even.

    A language with the share p of the characters gets one in proportion to
    p^exponent, and the corpus keeps its size: documents of large languages are
    left out, those of small ones repeated.

    Args:
      ids: uint64 [n].
      sizes: Characters, int64 [n].
      languages: Number of each document's language, int [n].
      exponent: 1 changes nothing, 0 gives all languages the same share.

    Returns:
      int64 [n].
    """
    totals = np.bincount(languages, sizes).astype(np.float64)
    shares = totals / max(totals.sum(), 1)
    powers = np.where(shares > 0, shares**exponent, 0)
    wanted = powers / max(powers.sum(), 1e-300) * totals.sum()
    factors = np.divide(
        wanted, totals, out=np.zeros_like(totals), where=totals > 0
    )[languages]
    # Not the hash of the held-out documents, whose ids are all small.
    chance = _uniform(ngrams.mix(ids + np.uint64(1)))
    whole = np.floor(factors)
    return (whole + (chance < factors - whole)).astype(np.int64)


def _uniform(ids: np.ndarray) -> np.ndarray:
    return (np.asarray(ids) >> np.uint64(11)) / float(1 << 53)

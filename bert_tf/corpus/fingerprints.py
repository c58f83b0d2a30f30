"""Fingerprints: hashes and MinHash signatures that find duplicates.

Worker processes compute the fingerprints of a chunk's documents and store them
in its part. The main process concatenates the arrays of all parts on disk.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import re
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from bert_tf.corpus.documents import Document

# Number of permutations in a MinHash signature. With 128, the estimate of a
# similarity of 0.8 has a standard error of 0.035.
NUM_PERM = 128
# Words in a shingle, as in FineWeb (https://arxiv.org/abs/2406.17557).
SHINGLE_LENGTH = 5
# Texts without words get signatures of this value and are not compared.
NO_SHINGLES = np.uint32(0xFFFFFFFF)
# Number of shingles permuted at once; more would not fit into the cache.
_BATCH = 4096

# Chinese, Japanese, Thai, Lao, Khmer and Burmese: words have no spaces between
# them, so each character counts as a word.
_UNSPACED = (
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
# `mix` multiplies hashes by these constants of MurmurHash3's 64-bit finalizer.
_MIX = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_SHIFT = np.uint64(33)


def hash_words(text: str) -> np.ndarray:
    """Returns a hash of each word, uint32 [words].

    Words are runs of letters and digits in lower case, and single characters
    of scripts without spaces.

    >>> hash_words("The cat, the CAT.").tolist() == [
    ...     zlib.crc32(word) for word in (b"the", b"cat", b"the", b"cat")
    ... ]
    True
    """
    words = _WORD.findall(text.lower())
    return np.fromiter(
        # Text from JSON may have lone surrogates; a strict encoder would fail.
        (zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in words),
        np.uint32,
        len(words),
    )


def hash_ngrams(words: np.ndarray, length: int) -> np.ndarray:
    """Returns a hash of each n-gram of words, uint64 [words - length + 1].

    `words` are hashes, uint32 [words]. With a length of 3, words a b c d give
    the hashes of (a b c) and (b c d); fewer than 3 words give none.
    """
    count = max(len(words) - length + 1, 0)
    hashes = np.zeros(count, np.uint64)
    for offset in range(length):
        hashes = hashes * _MULTIPLIER + words[offset : offset + count]
    return mix(hashes)


def mix(hashes: np.ndarray) -> np.ndarray:
    """Scatters uint64 values evenly; different values stay different."""
    for multiplier in _MIX:
        hashes = (hashes ^ (hashes >> _SHIFT)) * multiplier
    return hashes ^ (hashes >> _SHIFT)


@dataclasses.dataclass(frozen=True)
class Fingerprints:
    """Arrays about n documents with m paragraphs, in the order of the input.

    Attributes:
      documents: Hash of each document, uint64 [n, 2].
      ids: Hash of each document's id, uint64 [n].
      sizes: Number of characters of each document, int64 [n].
      num_paragraphs: Number of paragraphs of each document, int64 [n].
      paragraphs: Hash of each paragraph, uint64 [m].
      lengths: Number of characters of each paragraph, int64 [m].
      signatures: MinHash signature of each document, uint32 [n, NUM_PERM];
        uint32 [n, 0] if near duplicates are not dropped.
    """

    documents: np.ndarray
    ids: np.ndarray
    sizes: np.ndarray
    num_paragraphs: np.ndarray
    paragraphs: np.ndarray
    lengths: np.ndarray
    signatures: np.ndarray


def compute(
    documents: Iterable[Document], with_signatures: bool
) -> Fingerprints:
    """Returns the fingerprints of documents.

    White space in a paragraph is hashed as a single space. Signatures treat
    breaks between paragraphs as spaces, too.
    """
    hashes, ids, sizes, counts = [], [], [], []
    paragraphs, lengths, signatures = [], [], []
    for document in documents:
        texts = [" ".join(text.split()) for text in document.paragraphs]
        digest = _digest("\n".join(texts), 16)
        hashes.append((int.from_bytes(digest[:8]), int.from_bytes(digest[8:])))
        ids.append(int.from_bytes(_digest(document.id, 8)))
        counts.append(len(texts))
        paragraphs += [int.from_bytes(_digest(text, 8)) for text in texts]
        lengths += map(len, document.paragraphs)
        sizes.append(sum(map(len, document.paragraphs)))
        if with_signatures:
            signatures.append(compute_signature(" ".join(texts)))
    return Fingerprints(
        documents=np.array(hashes, np.uint64).reshape(-1, 2),
        ids=np.array(ids, np.uint64),
        sizes=np.array(sizes, np.int64),
        num_paragraphs=np.array(counts, np.int64),
        paragraphs=np.array(paragraphs, np.uint64),
        lengths=np.array(lengths, np.int64),
        signatures=np.array(signatures, np.uint32).reshape(
            len(ids), NUM_PERM if with_signatures else 0
        ),
    )


def compute_signature(text: str) -> np.ndarray:
    """Returns the MinHash signature of a text's shingles, uint32 [NUM_PERM].

    The share of positions at which two signatures are equal estimates the
    Jaccard similarity of their sets of shingles. A text of 1 to 4 words is one
    shingle. A text without words has a signature of `NO_SHINGLES` only.
    """
    words = hash_words(text)
    shingles = hash_ngrams(words, min(SHINGLE_LENGTH, len(words)))
    minhash = _empty_minhash().copy()
    if len(words):
        hashes = (shingles >> np.uint64(32)).tolist()
        for start in range(0, len(hashes), _BATCH):
            minhash.update_batch(hashes[start : start + _BATCH])
    return minhash.hashvalues


def concatenate(parts: Iterable[Fingerprints], folder: str) -> Fingerprints:
    """Concatenates parts, in order, as raw files in a new or existing folder.

    Only one part is in memory at a time. The arrays are read-only memory maps.
    """
    os.makedirs(folder, exist_ok=True)
    empty = vars(compute([], with_signatures=False))
    files = {name: os.path.join(folder, f"{name}.bin") for name in empty}
    shapes = {name: array.shape[1:] for name, array in empty.items()}
    with contextlib.ExitStack() as stack:
        opened = {
            name: stack.enter_context(open(path, "wb"))
            for name, path in files.items()
        }
        for part in parts:
            for name, array in vars(part).items():
                array.tofile(opened[name])
                shapes[name] = array.shape[1:]
    return Fingerprints(
        **{
            name: _map(path, empty[name].dtype, shapes[name])
            for name, path in files.items()
        }
    )


def _map(path: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Maps a file into memory as rows of `shape`."""
    # An empty file cannot be mapped: mmap would raise ValueError.
    if not os.path.getsize(path):
        return np.zeros((0, *shape), dtype)
    return np.memmap(path, dtype, "r").reshape(-1, *shape)


def _digest(text: str, size: int) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=size).digest()


@functools.cache
def _empty_minhash() -> Any:
    import datasketch

    return datasketch.MinHash(NUM_PERM, hashfunc=int)

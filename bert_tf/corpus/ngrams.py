"""Hashes of words and of sequences of words, computed with numpy."""

import re
import zlib

import numpy as np

# Scripts without spaces: Chinese, Japanese and Thai, Lao, Khmer and Burmese.
# Each of their characters counts as a word.
_UNSPACED = (
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
# The finalizer of MurmurHash3 for 64 bits.
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
        # A lone surrogate, as JSON may have, has no UTF-8.
        (zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in words),
        np.uint32,
        len(words),
    )


def hash_ngrams(words: np.ndarray, length: int) -> np.ndarray:
    """Returns a hash of each sequence of `length` words.

    Args:
      words: Hashes of the words, uint32 [words].
      length: Words in a sequence.

    Returns:
      uint64 [words - length + 1]; empty if there are fewer words.
    """
    count = max(len(words) - length + 1, 0)
    hashes = np.zeros(count, np.uint64)
    for offset in range(length):
        hashes = hashes * _MULTIPLIER + words[offset : offset + count]
    return mix(hashes)


def mix(hashes: np.ndarray) -> np.ndarray:
    """Spreads uint64 values evenly; a bijection."""
    for multiplier in _MIX:
        hashes = (hashes ^ (hashes >> _SHIFT)) * multiplier
    return hashes ^ (hashes >> _SHIFT)

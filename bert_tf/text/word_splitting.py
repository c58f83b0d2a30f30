"""Words of raw text, in the graph, as `tagging_words` cuts them.

What a character is was asked of Python once, for every one of them: so the
graph agrees with Python to the last character, whatever version of Unicode the
operators of TensorFlow follow.

Shapes:
  B: number of texts.
  N: characters of all texts, without white space.
  C: chunks of all texts: what stands between white space, or a character of
    Chinese.
"""

import dataclasses
import functools
import re
import sys
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from bert_tf.text import utf8
from bert_tf.text import words as words_lib

_NUM_CODE_POINTS = sys.maxunicode + 1


@dataclasses.dataclass(frozen=True)
class Words:
    """The words of texts.

    Attributes:
      texts: Ragged <string>[B, None].
      starts: Ragged <int32>[B, None], the first character of each word, as
        Python counts them.
      ends: The like, the character behind its last.
    """

    texts: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


@dataclasses.dataclass(frozen=True)
class _Characters:
    """All characters but white space.

    Attributes:
      codes: <int32>[N], code points.
      rows: <int64>[N], the text that each is in.
      places: <int32>[N], its number in that text.
      is_cjk: <bool>[N], as the next three.
      is_punctuation: What may be peeled off.
      is_word: What makes "@" and "#" in front of it a handle.
      is_letter: What may be abbreviated.
    """

    codes: tf.Tensor
    rows: tf.Tensor
    places: tf.Tensor
    is_cjk: tf.Tensor
    is_punctuation: tf.Tensor
    is_word: tf.Tensor
    is_letter: tf.Tensor


def split_words(text: tf.Tensor) -> Words:
    """Returns the words of texts, in their order.

    Bytes that are not UTF-8 count for nothing, as in
    `bytes.decode("utf-8", "ignore")`.

    Args:
      text: <string>[B].
    """
    characters = _read(text)
    chunks, is_first = _find_chunks(characters)
    starts, ends = _peel(characters, chunks, is_first)
    # Characters of what is left of a chunk are one word, all others are
    # words of their own.
    index = tf.range(tf.size(chunks))
    start, end = tf.gather(starts, chunks), tf.gather(ends, chunks)
    begins_word = (index <= start) | (index >= end)
    first = tf.where(begins_word)[:, 0]
    last = tf.where((index < start) | (index >= end - 1))[:, 0]
    rows = tf.gather(characters.rows, first)
    letters = tf.RaggedTensor.from_value_rowids(
        characters.codes,
        tf.cumsum(tf.cast(begins_word, tf.int64)) - 1,
        tf.size(rows, tf.int64),
        validate=False,
    )
    words = tf.RaggedTensor.from_value_rowids(
        utf8.encode(letters),
        rows,
        tf.size(text, tf.int64),
        validate=False,
    )
    return Words(
        words,
        words.with_flat_values(tf.gather(characters.places, first)),
        words.with_flat_values(tf.gather(characters.places, last) + 1),
    )


def _read(text: tf.Tensor) -> _Characters:
    decoded = tf.strings.unicode_decode(text, "UTF-8", errors="ignore")
    codes = decoded.flat_values
    first_codes, classes = _classes()
    index = tf.searchsorted(first_codes, codes, side="right") - 1
    is_space, *others = tf.unstack(tf.gather(classes, index), axis=1)
    rows = decoded.value_rowids()
    starts = tf.gather(decoded.row_starts(), rows)
    places = tf.range(tf.size(codes, tf.int64)) - starts
    fields = (codes, rows, tf.cast(places, tf.int32), *others)
    kept = tf.where(~is_space)[:, 0]
    return _Characters(*(tf.gather(x, kept) for x in fields))


def _find_chunks(characters: _Characters) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns chunks <int32>[N], and whether each begins one <bool>[N]."""
    is_first = (
        (_previous(characters.places, -1) + 1 != characters.places)
        | (_previous(characters.rows, -1) != characters.rows)
        | _previous(characters.is_cjk, True)
        | characters.is_cjk
    )
    return tf.cumsum(tf.cast(is_first, tf.int32)) - 1, is_first


def _peel(
    characters: _Characters, chunks: tf.Tensor, is_first: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns what punctuation leaves of each chunk.

    Args:
      characters: All characters.
      chunks: <int32>[N], rising.
      is_first: <bool>[N], whether a character begins a chunk.

    Returns:
      starts and ends <int32>[C], numbers of characters; they are equal where
      nothing is left.
    """
    count = tf.reduce_sum(tf.cast(is_first, tf.int32))
    index = tf.range(tf.size(chunks))
    codes, is_solid = characters.codes, ~characters.is_punctuation
    # Those of "@name" and "#topic"; "@" at the end of a chunk is none.
    is_handle = (
        ((codes == ord("@")) | (codes == ord("#")))
        & _next(characters.is_word, False)
        & ~_next(is_first, True)
    )
    chunk_ends = 1 + tf.math.unsorted_segment_max(index, chunks, count)
    starts = tf.math.unsorted_segment_min(
        tf.where(is_solid | is_handle, index, tf.int32.max), chunks, count
    )
    starts = tf.minimum(starts, chunk_ends)
    last_solid = tf.math.unsorted_segment_max(
        tf.where(is_solid, index, -1), chunks, count
    )
    ends = tf.maximum(last_solid + 1, starts)
    # A letter is no punctuation, so an abbreviation has nothing but its full
    # stop behind the last character that is none.
    place = index - tf.gather(starts, chunks)
    is_candidate = (place >= 0) & (index <= tf.gather(ends, chunks))
    fits = tf.where(place % 2 == 0, characters.is_letter, codes == ord("."))
    all_fit = tf.math.unsorted_segment_min(
        tf.cast(fits | ~is_candidate, tf.int32), chunks, count
    )
    length = ends + 1 - starts
    is_capital = (codes >= ord("A")) & (codes <= ord("Z"))
    has_capital = tf.math.unsorted_segment_max(
        tf.cast(is_capital & (place == 0), tf.int32), chunks, count
    )
    is_abbreviation = (
        (ends < chunk_ends)
        & (all_fit > 0)
        & (length % 2 == 0)
        & ((length >= 4) | ((length == 2) & (has_capital > 0)))
    )
    return starts, tf.where(is_abbreviation, ends + 1, ends)


def _previous(x: tf.Tensor, before: object) -> tf.Tensor:
    """Returns [N], of each element the one in front of it."""
    first = tf.cast(tf.fill([1], before), x.dtype)
    return tf.concat([first, x], 0)[: tf.size(x)]


def _next(x: tf.Tensor, behind: object) -> tf.Tensor:
    """Returns [N], of each element the one behind it."""
    last = tf.cast(tf.fill([1], behind), x.dtype)
    return tf.concat([x, last], 0)[1:]


@functools.cache
def _classes() -> tuple[np.ndarray, np.ndarray]:
    """Returns where characters of another kind begin, and what kind it is.

    Returns:
      <int32>[runs], rising, the first code point of each run of a kind; and
      <bool>[runs, 5]: white space, Chinese, punctuation, characters of words,
      letters.
    """
    everything = "".join(map(chr, range(_NUM_CODE_POINTS)))
    table = np.zeros([_NUM_CODE_POINTS, 5], bool)
    for column, pattern in (
        (0, r"\s"),
        (1, f"[{words_lib.CJK}]"),
        (3, r"\w"),
        (4, words_lib.LETTER),
    ):
        for start, end in _spans(pattern, everything):
            table[start:end, column] = True
    table[:, 2] = [words_lib.is_punctuation(x) for x in everything]
    changes = np.any(table[1:] != table[:-1], axis=1)
    starts = np.concatenate([[0], 1 + np.flatnonzero(changes)])
    return starts.astype(np.int32), table[starts]


def _spans(pattern: str, text: str) -> Iterator[tuple[int, int]]:
    for match in re.finditer(f"(?:{pattern})+", text):
        yield match.span()

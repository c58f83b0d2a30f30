"""Word splitting of raw text with offsets, in Python and in the graph.

Words are split as in tagged corpora. `split_words` defines the rules;
`split_words_in_graph` computes the same words with TensorFlow operators.

Shapes:
  B: number of texts.
  N: number of characters in all texts, without white space.
  C: number of chunks in all texts. A chunk is a run of characters between white
    space, or a single Chinese character.
"""

import functools
import re
import sys
import unicodedata
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.text import normalizer
from bert_tf.text.added_tokens import following
from bert_tf.text.added_tokens import previous

# Ranges of Chinese characters, for character classes of regular expressions.
_CJK = "".join(f"{chr(a)}-{chr(b)}" for a, b in normalizer.CJK_RANGES)
_LETTER = r"[^\W\d_]"
_CHUNKS = re.compile(rf"[{_CJK}]|[^\s{_CJK}]+")
# Abbreviations such as "U.S." and initials such as "W." keep their full stops.
_ABBREVIATION = re.compile(rf"(?:{_LETTER}\.){{2,}}|[A-Z]\.")
# "@name" and "#topic" are single words, as in corpora of social media.
_HANDLE = re.compile(r"[@#]\w")

_NUM_CODE_POINTS = sys.maxunicode + 1


class Word(NamedTuple):
    """A word of a text: `text[start:end]`, in characters."""

    text: str
    start: int
    end: int


def split_words(text: str) -> list[Word]:
    """Returns the words of a text, in order.

    White space separates words. Each punctuation character at either end of a
    word is split off as a word, and each Chinese character is a word, too.
    Punctuation stays inside words ("Coca-Cola", "3.5") and in handles and
    abbreviations. "(The U.S., @bob)" gives the words ( The U.S. , @bob ).
    """
    words = []
    for match in _CHUNKS.finditer(text):
        words += _split_chunk(text, *match.span())
    return words


def _split_chunk(text: str, start: int, end: int) -> list[Word]:
    before, after = [], []
    while (
        start < end
        and _is_punctuation(text[start])
        and not _HANDLE.match(text, start, end)
    ):
        before.append(Word(text[start], start, start + 1))
        start += 1
    while (
        start < end
        and _is_punctuation(text[end - 1])
        and not _ABBREVIATION.fullmatch(text, start, end)
    ):
        after.append(Word(text[end - 1], end - 1, end))
        end -= 1
    middle = [Word(text[start:end], start, end)] if start < end else []
    return [*before, *middle, *reversed(after)]


def _is_punctuation(character: str) -> bool:
    """Classifies a character like tokenization.py:386-399 of the original."""
    if character.isascii():
        return character.isprintable() and not (
            character.isalnum() or character == " "
        )
    return unicodedata.category(character).startswith("P")


class Words(NamedTuple):
    """The words of a batch of texts.

    Attributes:
      texts: Ragged <string>[B, None].
      starts: Ragged <int32>[B, None], index of the first character of each
        word, counted as in Python.
      ends: Ragged <int32>[B, None], index of the character after each word.
    """

    texts: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


class _Characters(NamedTuple):
    """All characters but white space."""

    codes: tf.Tensor  # <int32>[N], code points.
    rows: tf.Tensor  # <int64>[N], the index of each character's text.
    places: tf.Tensor  # <int32>[N], the index of each character in its text.
    is_cjk: tf.Tensor  # <bool>[N], as all fields below.
    is_punctuation: tf.Tensor
    is_word: tf.Tensor  # Letters, digits and "_".
    is_letter: tf.Tensor  # As in "U.S.".


def split_words_in_graph(text: tf.Tensor) -> Words:
    """Splits a batch of texts <string>[B] like `split_words`.

    Bytes that are not UTF-8 are dropped, as in
    `bytes.decode("utf-8", "ignore")`. Characters are classified by a table made
    with Python, so both functions agree on every character, whichever version
    of Unicode the operators of TensorFlow follow.
    """
    characters = _read_characters(text)
    chunks, is_first = _find_chunks(characters)
    starts, ends = _trim_chunks(characters, chunks, is_first)
    # Each trimmed chunk and each stripped punctuation mark becomes a word.
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
        tf.strings.unicode_encode(letters, "UTF-8"),
        rows,
        tf.size(text, tf.int64),
        validate=False,
    )
    return Words(
        words,
        words.with_flat_values(tf.gather(characters.places, first)),
        words.with_flat_values(tf.gather(characters.places, last) + 1),
    )


def _read_characters(text: tf.Tensor) -> _Characters:
    decoded = tf.strings.unicode_decode(text, "UTF-8", errors="ignore")
    codes = decoded.flat_values
    first_codes, classes = _character_classes()
    index = tf.searchsorted(first_codes, codes, side="right") - 1
    is_space, *others = tf.unstack(tf.gather(classes, index), axis=1)
    rows = decoded.value_rowids()
    starts = tf.gather(decoded.row_starts(), rows)
    places = tf.range(tf.size(codes, tf.int64)) - starts
    fields = (codes, rows, tf.cast(places, tf.int32), *others)
    kept = tf.where(~is_space)[:, 0]
    return _Characters(*(tf.gather(x, kept) for x in fields))


def _find_chunks(characters: _Characters) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns each character's chunk <int32>[N] and chunk starts <bool>[N]."""
    is_first = (
        (previous(characters.places, -1) + 1 != characters.places)
        | (previous(characters.rows, -1) != characters.rows)
        | previous(characters.is_cjk, True)
        | characters.is_cjk
    )
    return tf.cumsum(tf.cast(is_first, tf.int32)) - 1, is_first


def _trim_chunks(
    characters: _Characters, chunks: tf.Tensor, is_first: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns starts and ends <int32>[C] of chunks without outer punctuation.

    If a chunk has only punctuation, its start equals its end.
    """
    count = tf.reduce_sum(tf.cast(is_first, tf.int32))
    index = tf.range(tf.size(chunks))
    codes, is_solid = characters.codes, ~characters.is_punctuation
    # "@bob" is one word, unlike "@ bob": after the space, a new chunk begins.
    is_handle = (
        ((codes == ord("@")) | (codes == ord("#")))
        & following(characters.is_word, False)
        & ~following(is_first, True)
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
    # The final full stop of an abbreviation has been stripped and is now at the
    # index `ends`, so test the characters up to and including `ends`.
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


@functools.cache
def _character_classes() -> tuple[np.ndarray, np.ndarray]:
    """Classifies all code points with Python, as runs of equal classes.

    Returns:
      <int32>[runs], ascending, the first code point of each run; and
      <bool>[runs, 5], whether its characters are white space, Chinese,
      punctuation, word characters and letters.
    """
    everything = "".join(map(chr, range(_NUM_CODE_POINTS)))
    table = np.zeros([_NUM_CODE_POINTS, 5], bool)
    for column, pattern in (
        (0, r"\s"),
        (1, f"[{_CJK}]"),
        (3, r"\w"),
        (4, _LETTER),
    ):
        for match in re.finditer(f"(?:{pattern})+", everything):
            table[match.start() : match.end(), column] = True
    table[:, 2] = [_is_punctuation(x) for x in everything]
    changes = np.any(table[1:] != table[:-1], axis=1)
    starts = np.concatenate([[0], 1 + np.flatnonzero(changes)])
    return starts.astype(np.int32), table[starts]

"""Tokens that transformers added to a vocabulary, matched in the text itself.

Text is cut at added tokens, and each piece in between is tokenized separately:
with the added tokens <e1> and covid-19, "see <e1>covid-19s" becomes see, <e1>,
covid-19, s. Tokens whose flag `normalized` is false are matched in the raw
text. Then each piece is normalized, and the normalized forms of all other added
tokens are matched in the normalized piece. The leftmost match wins; of matches
with an equal start, the longest wins.

Source: AddedVocabulary of Hugging Face's tokenizers (added_vocabulary.rs).

Shapes:
  B: number of texts.
  P: number of pieces; each text is cut into text, match, text, ..., text.
  K: number of tokens of one `Matcher`.
"""

import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.text import normalizer

# Hugging Face's tokenizers use \w and \s of Rust, which match Unicode. In RE2,
# \w and \s match only ASCII, so these RE2 classes list Rust's characters.
_WORD = (
    r"\pL\pM\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}"
    r"\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}"
)
_SPACE = (
    r"\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}"
    r"\x{205F}\x{3000}"
)
_NOTHING = r"[^\x{0}-\x{10FFFF}]"
_MAX_HASH = 2**63 - 1


class Pieces(NamedTuple):
    """Texts, cut at their added tokens.

    Attributes:
      between: <string>[P], "" in place of matches.
      rows: <int64>[P], the index of each piece's text.
      is_match: <bool>[P], true for added tokens.
      ids: <int32>[P], the id of each match.
      starts: <int32>[P], the first byte of each piece in its text.
      ends: <int32>[P], the end of each piece, exclusive.
    """

    between: tf.Tensor
    rows: tf.Tensor
    is_match: tf.Tensor
    ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor

    def shift(self, offsets: tf.RaggedTensor) -> tf.RaggedTensor:
        """Turns offsets in pieces, ragged [P, None], into offsets in texts."""
        starts = tf.gather(self.starts, offsets.value_rowids())
        places = tf.cast(offsets.flat_values, tf.int32)
        return offsets.with_flat_values(places + starts)

    def join(
        self, between: tf.RaggedTensor, matches: tf.Tensor
    ) -> tf.RaggedTensor:
        """Joins the values of pieces into the values of texts, in order.

        Args:
          between: Ragged [P, None], values of each piece; empty for matches.
          matches: [P], the value of each match; ignored for pieces of text.

        Returns:
          Ragged [B, None].
        """
        found = tf.RaggedTensor.from_row_lengths(
            tf.boolean_mask(matches, self.is_match),
            tf.cast(self.is_match, tf.int64),
            validate=False,
        )
        values = tf.concat([between, found], 1)
        return tf.RaggedTensor.from_row_lengths(
            values.flat_values,
            tf.math.segment_sum(values.row_lengths(), self.rows),
            validate=False,
        )


class Matcher:
    """Finds added tokens in texts, each by its pattern.

    Args:
      tokens: [K], elements of `Vocabulary.added_tokens`.
      patterns: The string to find for each token, [K]; "" finds nothing. If
        patterns are equal, the first token wins; in transformers, any may win.
      is_normalized: Whether `normalizer.Normalizer` has normalized the texts.
        In normalized text, each Chinese character is a word of its own.
    """

    def __init__(
        self,
        tokens: Sequence[Mapping[str, Any]],
        patterns: Sequence[str],
        is_normalized: bool,
    ) -> None:
        pairs = [*zip(patterns, tokens, strict=True)]
        token_of = dict(reversed(pairs))
        token_of.pop("", None)
        # RE2 takes the first alternative that fits. In reverse order, longer
        # patterns come before their own prefixes, so the longest match wins.
        patterns = sorted(token_of, reverse=True)
        self._pattern = "|".join(map(re.escape, patterns)) or _NOTHING
        hashes = [_hash(pattern).numpy() for pattern in patterns]
        self._hashes = np.array(sorted(hashes), np.int64)
        # `split` uses indices of this list; len(self._tokens) means no match.
        self._tokens = [token_of[patterns[i]] for i in np.argsort(hashes)]
        self._space = " " if is_normalized else _SPACE
        self._separate = (
            normalizer.to_class(normalizer.CJK_RANGES) if is_normalized else ""
        )

    def split(self, text: tf.Tensor) -> Pieces:
        """Cuts texts <string>[B] without NULs at their added tokens."""
        marked = tf.strings.regex_replace(text, self._pattern, b"\0\\0\0")
        pieces = tf.strings.split(marked, "\0")
        texts, rows = pieces.flat_values, pieces.value_rowids()
        place = tf.range(tf.size(rows, tf.int64)) - tf.gather(
            pieces.row_starts(), rows
        )
        numbers = tf.where(
            place % 2 == 1,
            tf.searchsorted(self._hashes, _hash(texts)),
            len(self._tokens),
        )
        if any(token["single_word"] for token in self._tokens):
            texts, rows, numbers = self._join_parts(texts, rows, numbers)
        is_match = numbers < len(self._tokens)
        trimmed = _trim(
            texts,
            previous(self._flag("rstrip", numbers)),
            rf"\A[{self._space}]+",
        )
        left = tf.strings.length(texts) - tf.strings.length(trimmed)
        trimmed_twice = _trim(
            trimmed,
            following(self._flag("lstrip", numbers)),
            rf"[{self._space}]+\z",
        )
        right = tf.strings.length(trimmed) - tf.strings.length(trimmed_twice)
        lengths = tf.strings.length(texts)
        starts = tf.cumsum(lengths, exclusive=True)
        starts -= tf.gather(tf.math.segment_min(starts, rows), rows)
        return Pieces(
            tf.where(is_match, "", trimmed_twice),
            rows,
            is_match,
            tf.gather([*(x["id"] for x in self._tokens), 0], numbers),
            # As in transformers, a match spans the white space it strips.
            starts + tf.where(is_match, -previous(right), left),
            starts + lengths + tf.where(is_match, following(left), -right),
        )

    def _join_parts(
        self, texts: tf.Tensor, rows: tf.Tensor, numbers: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Turns `single_word` matches inside longer words back into text."""
        ends = _matches(texts, rf"\C*[{_WORD}]")
        starts = _matches(texts, rf"[{_WORD}]\C*")
        if self._separate:
            ends &= ~_matches(texts, rf"\C*[{self._separate}]")
            starts &= ~_matches(texts, rf"[{self._separate}]\C*")
        # If no text separates two matches, both may be parts of a longer word.
        empty = texts == ""
        before, after = previous(rows, -1), following(rows, -1)
        ends |= empty & (before == rows) & previous(ends)
        starts |= empty & (after == rows) & following(starts)
        is_part = previous(ends) | following(starts)
        discarded = self._flag("single_word", numbers) & is_part
        numbers = tf.where(discarded, len(self._tokens), numbers)
        kept = numbers < len(self._tokens)
        begins = kept | previous(kept) | (before != rows)
        groups = tf.cumsum(tf.cast(begins, tf.int32)) - 1
        count = tf.reduce_sum(tf.cast(begins, tf.int32))
        return (
            tf.strings.unsorted_segment_join(texts, groups, count),
            tf.boolean_mask(rows, begins),
            tf.boolean_mask(numbers, begins),
        )

    def _flag(self, name: str, numbers: tf.Tensor) -> tf.Tensor:
        return tf.gather([*(x[name] for x in self._tokens), False], numbers)


def _hash(text: tf.Tensor | str) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(text, _MAX_HASH)


def _matches(text: tf.Tensor, pattern: str) -> tf.Tensor:
    return tf.strings.regex_full_match(text, pattern)


def _trim(text: tf.Tensor, chosen: tf.Tensor, pattern: str) -> tf.Tensor:
    return tf.where(chosen, tf.strings.regex_replace(text, pattern, ""), text)


def previous(x: tf.Tensor, first: int = 0) -> tf.Tensor:
    """Shifts [P] by one: each element becomes the one before it."""
    return tf.concat([tf.fill([1], tf.cast(first, x.dtype)), x], 0)[:-1]


def following(x: tf.Tensor, last: int = 0) -> tf.Tensor:
    """Shifts [P] by one: each element becomes the one after it."""
    return tf.concat([x, tf.fill([1], tf.cast(last, x.dtype))], 0)[1:]

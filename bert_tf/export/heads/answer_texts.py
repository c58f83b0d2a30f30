"""Maps answer spans of tokens back to the text of the paragraph, in the graph.

The same as `squad.predictions`. Words are separated by spaces, tabs, line
breaks and narrow no-break spaces, and each word is tokenized by itself.

Shapes:
  B: number of paragraphs.
  C: characters of all paragraphs.
  W: words of all paragraphs.
  P: tokens of all paragraphs.
  M: characters of all words, normalized.
  N: characters of all words, as they are in the paragraphs.
  n: number of spans.
"""

from typing import NamedTuple
from typing import Self

import tensorflow as tf

from bert_tf.text import vocabulary as vocabulary_lib
from bert_tf.text.tokenizer import BertTokenizer

# Elements per step of a search.
_SEARCHED_AT_ONCE = 1 << 20

# Word separators, as in `bert_tf.tasks.squad.examples`.
_WHITE_SPACE = " \t\r\n\u202f"

# Any odd number with bits of all magnitudes, and its inverse, both as <int64>.
_BASE = 0x2545F4914F6CDD1D
_MODULUS = 1 << 64
_INVERSE = pow(_BASE, -1, _MODULUS)
# Above all code points.
_BEGINS_WORD = 1 << 21


class Paragraphs(NamedTuple):
    """The characters, words and tokens of paragraphs, concatenated.

    Attributes:
      texts: <string>[B], the paragraphs. Bytes that are not UTF-8 are dropped,
        as by `bytes.decode("utf-8", "ignore")`.
      codes: <int32>[C], code points.
      starts: <int64>[B], the first character of each paragraph.
      places: <int64>[N], the indices of characters in words.
      begins_word: <bool>[N], whether a word begins there.
      word_splits: <int64>[W + 1], where in `places` each word begins, and N.
      words: <string>[W].
      piece_ids: <int32>[P], token ids.
      piece_words: <int64>[P], ascending, the word of each token.
      piece_splits: <int64>[B + 1], where in `piece_ids` each paragraph begins,
        and P.
    """

    texts: tf.Tensor
    codes: tf.Tensor
    starts: tf.Tensor
    places: tf.Tensor
    begins_word: tf.Tensor
    word_splits: tf.Tensor
    words: tf.Tensor
    piece_ids: tf.Tensor
    piece_words: tf.Tensor
    piece_splits: tf.Tensor

    @classmethod
    def read(cls, text: tf.Tensor, tokenizer: BertTokenizer) -> Self:
        """Splits paragraphs, <string>[B], into words and tokens."""
        text = tf.strings.unicode_transcode(
            text, "UTF-8", "UTF-8", errors="ignore"
        )
        decoded = tf.strings.unicode_decode(text, "UTF-8")
        codes, rows = decoded.flat_values, decoded.value_rowids()
        is_space = tf.reduce_any(
            codes[:, tf.newaxis] == [ord(char) for char in _WHITE_SPACE], axis=1
        )
        places = tf.where(~is_space)[:, 0]
        rows = tf.gather(rows, places)
        begins_word = _differs(places, 1) | _differs(rows, 0)
        words = _split(text)
        tokens = tokenizer.tokenize(words)
        piece_words = tokens.value_rowids()
        piece_rows = tf.gather(tf.boolean_mask(rows, begins_word), piece_words)
        return cls(
            texts=text,
            codes=codes,
            starts=decoded.row_starts(),
            places=places,
            begins_word=begins_word,
            word_splits=tf.concat(
                [tf.where(begins_word)[:, 0], [tf.size(places, tf.int64)]], 0
            ),
            words=words,
            piece_ids=tokens.flat_values,
            piece_words=piece_words,
            piece_splits=tf.searchsorted(
                piece_rows,
                tf.range(tf.size(text, tf.int64) + 1),
                out_type=tf.int64,
            ),
        )

    def slice(
        self, paragraphs: tf.Tensor, begins: tf.Tensor, ends: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns substrings of paragraphs.

        White space between words becomes one space in the text.

        Args:
          paragraphs: <int64>[n].
          begins: <int64>[n], indices in `places` of the first characters.
          ends: <int64>[n], indices in `places`, exclusive.

        Returns:
          The texts <string>[n], and where they begin and end, <int32>[n]
          each, in characters of the paragraph.
        """
        shift = tf.gather(self.starts, paragraphs)
        starts = tf.cast(tf.gather(self.places, begins) - shift, tf.int32)
        ends = tf.cast(tf.gather(self.places, ends - 1) - shift, tf.int32) + 1
        text = tf.strings.substr(
            tf.gather(self.texts, paragraphs),
            starts,
            ends - starts,
            unit="UTF8_CHAR",
        )
        text = tf.strings.regex_replace(text, f"[{_WHITE_SPACE}]+", " ")
        return text, starts, ends


def _split(text: tf.Tensor) -> tf.Tensor:
    """Returns the words of all paragraphs, <string>[W], of <string>[B]."""
    # Encoding the code points again would not work: TensorFlow 2.12 replaces
    # Unicode noncharacters.
    spaced = tf.strings.regex_replace(text, f"[{_WHITE_SPACE}]", " ")
    words = tf.strings.split(spaced, " ").flat_values
    return tf.boolean_mask(words, words != "")


def _differs(x: tf.Tensor, step: int) -> tf.Tensor:
    """Returns <bool>[n], x[i] != x[i - 1] + step; True for the first."""
    return tf.concat([[True], x[1:] != x[:-1] + step], 0)[: tf.size(x)]


class Substrings:
    """Hashes of substrings, to compare any number of them at once.

    A substring is a sequence of words, of which the first and the last may be
    partial. Its hash is a polynomial of its characters, modulo 2**64; the
    overflow is intended.

    Args:
      codes: <int32>[N], code points.
      begins_word: <bool>[N], whether white space precedes a character.
    """

    def __init__(self, codes: tf.Tensor, begins_word: tf.Tensor) -> None:
        self._size = tf.size(codes, tf.int64)
        # Symbols start at 1, as zeros would not change the hash.
        symbols = 1 + tf.cast(codes, tf.int64)
        spaces = _BEGINS_WORD * tf.cast(begins_word, tf.int64)
        terms = (symbols + spaces) * _powers(_BASE, self._size)
        self._sums = tf.concat([[0], tf.cumsum(terms)], 0)
        self._inverses = _powers(_INVERSE, self._size + 1)
        self._spaces = tf.concat([spaces, [0]], 0)

    def key(self, begins: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """Returns the hashes of substrings, <int64>[...].

        Args:
          begins: <int64>[...], the first character of each.
          lengths: <int64>[...], the number of characters, clipped at the end
            of all texts.
        """
        ends = tf.minimum(begins + lengths, self._size)
        sums = tf.gather(self._sums, ends) - tf.gather(self._sums, begins)
        # Ignores the white space before the substring.
        return sums * tf.gather(self._inverses, begins) - tf.gather(
            self._spaces, begins
        )


class SpanTexts:
    """Finds the characters of the paragraphs that spans of tokens stand for.

    Args:
      paragraphs: The paragraphs.
      tokenizer: The tokenizer that produced their tokens.
    """

    def __init__(
        self, paragraphs: Paragraphs, tokenizer: BertTokenizer
    ) -> None:
        self._paragraphs = paragraphs
        self._written = Substrings(
            tf.gather(paragraphs.codes, paragraphs.places),
            paragraphs.begins_word,
        )
        parts = tokenizer.split_words(paragraphs.words)
        letters = tf.strings.unicode_decode(parts.flat_values, "UTF-8")
        self._normalized = Substrings(letters.flat_values, _begins_row(letters))
        # Where each word begins among these characters, and M: <int64>[W + 1].
        self._word_splits = tf.gather(letters.row_splits, parts.row_splits)

        tokens = tokenizer.tokens(paragraphs.piece_ids)
        is_continuation = _is_continuation(tokens)
        letters_of_tokens = _letters(tokens, is_continuation)
        self._substrings = Substrings(
            letters_of_tokens.flat_values,
            _begins_row(letters_of_tokens)
            & ~tf.gather(is_continuation, letters_of_tokens.value_rowids()),
        )
        self._token_splits = letters_of_tokens.row_splits
        self._places = _expected_places(
            paragraphs.piece_words,
            is_continuation,
            letters_of_tokens,
            parts,
            letters,
        )

    def find(
        self, first_tokens: tf.Tensor, last_tokens: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns where spans begin and end in their paragraphs.

        If the words of a span, without white space, have the same length
        before and after normalization, the span is where the characters of
        its tokens first occur in them. Otherwise, or if they do not occur, it
        is all of these words.

        Source: get_final_text (run_squad.py:927-1020 of the original).

        Args:
          first_tokens: <int32>[n].
          last_tokens: <int32>[n].

        Returns:
          begins and ends <int64>[n], indices in `Paragraphs.places`.
        """
        words = self._paragraphs.piece_words
        first_word = tf.gather(words, first_tokens)
        end_word = tf.gather(words, last_tokens) + 1
        begin = tf.gather(self._paragraphs.word_splits, first_word)
        end = tf.gather(self._paragraphs.word_splits, end_word)
        word_start = tf.gather(self._word_splits, first_word)
        word_end = tf.gather(self._word_splits, end_word)
        is_alike = end - begin == word_end - word_start

        start = tf.gather(self._token_splits, first_tokens)
        length = tf.gather(self._token_splits, last_tokens + 1) - start
        to_find = tf.where(is_alike)
        place, is_found = self._search(
            tf.gather_nd(self._substrings.key(start, length), to_find),
            tf.gather_nd(length, to_find),
            tf.gather_nd(word_start, to_find),
            tf.gather_nd(word_end - length, to_find),
            tf.gather_nd(tf.gather(self._places, first_tokens), to_find),
        )
        to_find = tf.boolean_mask(to_find, is_found)
        place = tf.boolean_mask(place, is_found) + tf.gather_nd(
            begin - word_start, to_find
        )
        return (
            tf.tensor_scatter_nd_update(begin, to_find, place),
            tf.tensor_scatter_nd_update(
                end, to_find, place + tf.gather_nd(length, to_find)
            ),
        )

    def key(self, begins: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """Returns <int64>[n], hashes of the texts that `find` returned."""
        return self._written.key(begins, ends - begins)

    def _search(
        self,
        keys: tf.Tensor,
        lengths: tf.Tensor,
        first: tf.Tensor,
        last: tf.Tensor,
        expected: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds substrings in the characters of the normalized words.

        Args:
          keys: <int64>[n], hashes of the substrings.
          lengths: <int64>[n], their lengths.
          first: <int64>[n], the first possible places.
          last: <int64>[n], the last possible places; may precede `first`.
          expected: <int64>[n], the likely places, although equal substrings may
            occur earlier.

        Returns:
          The first places <int64>[n], and whether they were found <bool>[n].
        """
        last = tf.maximum(last, first - 1)
        expected = tf.clip_by_value(expected, first, tf.maximum(last, first))

        def is_there(place):
            is_equal = self._normalized.key(place, lengths) == keys
            return is_equal & (place <= last)

        is_first, is_expected = is_there(first), is_there(expected)
        last = tf.where(is_expected, expected, last)
        last = tf.where(is_first, first, last)
        to_search = tf.where(first < last)
        place = tf.tensor_scatter_nd_update(
            first,
            to_search,
            _find_first(
                self._normalized,
                *(
                    tf.gather_nd(x, to_search)
                    for x in (keys, lengths, first, last)
                ),
            ),
        )
        return place, is_there(place)


def _begins_row(values: tf.RaggedTensor) -> tf.Tensor:
    """Returns <bool>[values], whether each value is the first of its row."""
    return _differs(values.value_rowids(), 0)


def _is_continuation(tokens: tf.Tensor) -> tf.Tensor:
    return tf.strings.regex_full_match(
        tokens, f"(?s){vocabulary_lib.CONTINUATION}.+"
    )


def _letters(tokens: tf.Tensor, is_continuation: tf.Tensor) -> tf.RaggedTensor:
    """Returns ragged <int32>[P, None]: code points of tokens, without "##"."""
    bare = tf.strings.substr(
        tokens,
        tf.where(is_continuation, len(vocabulary_lib.CONTINUATION), 0),
        tf.strings.length(tokens),
    )
    return tf.strings.unicode_decode(bare, "UTF-8")


def _expected_places(
    piece_words: tf.Tensor,
    is_continuation: tf.Tensor,
    letters_of_tokens: tf.RaggedTensor,
    parts: tf.RaggedTensor,
    letters: tf.RaggedTensor,
) -> tf.Tensor:
    """Returns where in the normalized words each token is expected, <int64>[P].

    Args:
      piece_words: <int64>[P].
      is_continuation: <bool>[P].
      letters_of_tokens: Ragged <int32>[P, None].
      parts: Ragged <string>[W, None], the parts of each word that WordPiece
        tokenizes; it splits at a few more punctuation marks.
      letters: Ragged <int32>[parts, None].
    """
    count = tf.cumsum(tf.cast(~is_continuation, tf.int64))
    count_before = tf.gather(count, tf.searchsorted(piece_words, piece_words))
    part = tf.gather(parts.row_starts(), piece_words) + count - count_before
    # The first token of a word is never a continuation.
    first_of_part = tf.gather(tf.where(~is_continuation)[:, 0], count - 1)
    start = letters_of_tokens.row_starts()
    starts = tf.concat([letters.row_starts(), [0]], 0)
    return (
        tf.gather(starts, tf.minimum(part, tf.size(starts, tf.int64) - 1))
        + start
        - tf.gather(start, first_of_part)
    )


def _find_first(
    substrings: Substrings,
    keys: tf.Tensor,
    lengths: tf.Tensor,
    first: tf.Tensor,
    last: tf.Tensor,
) -> tf.Tensor:
    """Returns the first places of substrings, `last` where they do not occur.

    Args:
      substrings: The texts to search.
      keys: <int64>[n], hashes of the substrings to find.
      lengths: <int64>[n], their lengths.
      first: <int64>[n], the first places to search.
      last: <int64>[n], the last places to search.
    """
    # Without white space, as in Chinese, a word may be a whole paragraph.
    distance = tf.reduce_max(last - first)
    step = _SEARCHED_AT_ONCE // tf.maximum(tf.size(first, tf.int64), 1)
    step = tf.maximum(tf.minimum(step, distance), 1)

    def search(offset, found):
        places = (first + offset)[:, tf.newaxis] + tf.range(step)
        places = tf.minimum(places, last[:, tf.newaxis])
        is_equal = (
            substrings.key(places, lengths[:, tf.newaxis])
            == keys[:, tf.newaxis]
        )
        places = tf.where(is_equal, places, last[:, tf.newaxis])
        return offset + step, tf.minimum(found, tf.reduce_min(places, axis=1))

    _, found = tf.while_loop(
        lambda offset, _: offset < distance,
        search,
        (tf.constant(0, tf.int64), last),
    )
    return found


def _powers(base: int, count: tf.Tensor) -> tf.Tensor:
    """Returns <int64>[count]: 1, base, base**2 and so on."""
    signed = (base + _MODULUS // 2) % _MODULUS - _MODULUS // 2
    return tf.math.cumprod(
        tf.fill([count], tf.constant(signed, tf.int64)), exclusive=True
    )

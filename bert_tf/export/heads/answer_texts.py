"""From pieces back to the paragraph, in the graph: see `squad_span_texts`.

Shapes:
  W: words of all paragraphs.
  P: pieces of all paragraphs.
  L: characters of all pieces.
  M: characters of all words, normalized.
  N: characters of all words, as they are in the paragraphs.
  n: number of spans.
"""

import tensorflow as tf

from bert_tf.export.heads.answer_paragraphs import Paragraphs
from bert_tf.export.heads.substrings import Substrings
from bert_tf.text import vocabulary as vocabulary_lib
from bert_tf.text.tokenizer import BertTokenizer

# How many numbers one step of a search may hold.
_SEARCHED_AT_ONCE = 1 << 20


class SpanTexts:
    """Finds what the pieces of spans are in the paragraphs.

    Args:
      paragraphs: The paragraphs.
      tokenizer: The one that made their pieces.
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
        letters_of_pieces = _letters(tokens, is_continuation)
        self._pieces = Substrings(
            letters_of_pieces.flat_values,
            _begins_row(letters_of_pieces)
            & ~tf.gather(is_continuation, letters_of_pieces.value_rowids()),
        )
        self._piece_splits = letters_of_pieces.row_splits
        self._places = _expected_places(
            paragraphs.piece_words,
            is_continuation,
            letters_of_pieces,
            parts,
            letters,
        )

    def find(
        self, first_pieces: tf.Tensor, last_pieces: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns where spans begin and end in their paragraphs.

        Where the words, without white space, are as long normalized as they
        are in the paragraph, it is what stands where the characters of the
        pieces are found first; else, or if they are not, all of the words.

        Source: get_final_text (run_squad.py:927-1020 of the original).

        Args:
          first_pieces: <int32>[n].
          last_pieces: <int32>[n].

        Returns:
          begins and ends <int64>[n], characters among `Paragraphs.places`.
        """
        words = self._paragraphs.piece_words
        first_word = tf.gather(words, first_pieces)
        end_word = tf.gather(words, last_pieces) + 1
        begin = tf.gather(self._paragraphs.word_splits, first_word)
        end = tf.gather(self._paragraphs.word_splits, end_word)
        word_start = tf.gather(self._word_splits, first_word)
        word_end = tf.gather(self._word_splits, end_word)
        is_alike = end - begin == word_end - word_start

        start = tf.gather(self._piece_splits, first_pieces)
        length = tf.gather(self._piece_splits, last_pieces + 1) - start
        to_find = tf.where(is_alike)
        place, is_found = self._search(
            tf.gather_nd(self._pieces.key(start, length), to_find),
            tf.gather_nd(length, to_find),
            tf.gather_nd(word_start, to_find),
            tf.gather_nd(word_end - length, to_find),
            tf.gather_nd(tf.gather(self._places, first_pieces), to_find),
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
        """Returns <int64>[n], equal for equal texts of what `find` returned."""
        return self._written.key(begins, ends - begins)

    def _search(
        self,
        keys: tf.Tensor,
        lengths: tf.Tensor,
        first: tf.Tensor,
        last: tf.Tensor,
        expected: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds characters among those of the normalized words.

        Args:
          keys: <int64>[n], what to find.
          lengths: <int64>[n], how many characters it has.
          first: <int64>[n], the first place where it may be.
          last: <int64>[n], the last one, maybe before the first.
          expected: <int64>[n], where it should be, but others like it may
            stand before.

        Returns:
          The first places where it is <int64>[n], and whether there is one.
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
    """Returns <bool>[values], whether each is the first of its row."""
    rows = values.value_rowids()
    changes = tf.concat([[True], rows[1:] != rows[:-1]], 0)
    return changes[: tf.size(rows)]


def _is_continuation(tokens: tf.Tensor) -> tf.Tensor:
    return tf.strings.regex_full_match(
        tokens, f"(?s){vocabulary_lib.CONTINUATION}.+"
    )


def _letters(tokens: tf.Tensor, is_continuation: tf.Tensor) -> tf.RaggedTensor:
    """Returns ragged <int32>[P, None]: code points of pieces, without "##"."""
    bare = tf.strings.substr(
        tokens,
        tf.where(is_continuation, len(vocabulary_lib.CONTINUATION), 0),
        tf.strings.length(tokens),
    )
    return tf.strings.unicode_decode(bare, "UTF-8")


def _expected_places(
    piece_words: tf.Tensor,
    is_continuation: tf.Tensor,
    letters_of_pieces: tf.RaggedTensor,
    parts: tf.RaggedTensor,
    letters: tf.RaggedTensor,
) -> tf.Tensor:
    """Returns where among the normalized words each piece should be.

    Args:
      piece_words: <int64>[P].
      is_continuation: <bool>[P].
      letters_of_pieces: Ragged <int32>[P, None].
      parts: Ragged <string>[W, None], what WordPiece cuts each word's pieces
        of; it knows a few more punctuation marks, which part them further.
      letters: Ragged <int32>[parts, None].

    Returns:
      <int64>[P].
    """
    count = tf.cumsum(tf.cast(~is_continuation, tf.int64))
    count_before = tf.gather(count, tf.searchsorted(piece_words, piece_words))
    part = tf.gather(parts.row_starts(), piece_words) + count - count_before
    # A word begins with no continuation, so that there is one before each.
    first_of_part = tf.gather(tf.where(~is_continuation)[:, 0], count - 1)
    start = letters_of_pieces.row_starts()
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
    """Returns the first places where parts of texts are.

    Args:
      substrings: The texts.
      keys: <int64>[n], of what to find.
      lengths: <int64>[n], its characters.
      first: <int64>[n], where to begin the search.
      last: <int64>[n], where to end it.

    Returns:
      <int64>[n], the last place where it is found nowhere.
    """
    # A word without white space, as of Chinese, may be a whole paragraph.
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

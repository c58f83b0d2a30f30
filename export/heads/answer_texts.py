"""From pieces back to the paragraph, in the graph: see `squad_span_texts`.

Shapes:
  P: pieces of all paragraphs.
  M: characters of all words, normalized.
  N: characters of all words, as they are in the paragraphs.
  n: number of spans.
"""

import numpy as np
import tensorflow as tf

from bert_tf.text import vocabulary as vocabulary_lib
from bert_tf.text.tokenizer import BertTokenizer
from export.heads.answer_paragraphs import Paragraphs
from export.heads.substrings import Substrings

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
        codes = letters.flat_values  # <int32>[M]
        self._normalized = Substrings(codes, _marks(letters))
        # Where each word begins among these characters, and M.
        self._word_splits = tf.gather(letters.row_splits, parts.row_splits)
        self._starts, lengths, is_unknown = _place_pieces(
            paragraphs.piece_ids, parts.flat_values, letters, tokenizer
        )
        self._ends = self._starts + lengths
        self._num_unknown = tf.concat(
            [[0], tf.cumsum(tf.cast(is_unknown, tf.int32))], 0
        )

    def find(
        self, first_pieces: tf.Tensor, last_pieces: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns where spans begin and end in their paragraphs.

        Where the words, without white space, are as long normalized as they
        are in the paragraph, it is what stands at the place of the first
        characters like those of the pieces; else it is all of the words.

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
        num_unknown = tf.gather(self._num_unknown, last_pieces + 1)
        num_unknown -= tf.gather(self._num_unknown, first_pieces)
        is_alike = (num_unknown == 0) & (end - begin == word_end - word_start)
        start = tf.gather(self._starts, first_pieces)
        length = tf.gather(self._ends, last_pieces) - start
        # The pieces stand at their place, but maybe elsewhere before.
        to_search = tf.where(is_alike & (start > word_start))
        start = tf.tensor_scatter_nd_update(
            start,
            to_search,
            _find_first(
                self._normalized,
                tf.gather_nd(word_start, to_search),
                tf.gather_nd(start, to_search),
                tf.gather_nd(length, to_search),
            ),
        )
        found = begin + start - word_start
        return (
            tf.where(is_alike, found, begin),
            tf.where(is_alike, found + length, end),
        )

    def key(self, begins: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """Returns <int64>[n], equal for equal texts of what `find` returned."""
        return self._written.key(begins, ends - begins)


def _marks(letters: tf.RaggedTensor) -> tf.Tensor:
    """Returns <bool>[M], whether a row begins with a character.

    Args:
      letters: Ragged <int32>[rows, None], no row of which is empty.
    """
    rows = letters.value_rowids()
    changes = tf.concat([[True], rows[1:] != rows[:-1]], 0)
    return changes[: tf.size(rows)]


def _place_pieces(
    piece_ids: tf.Tensor,
    parts: tf.Tensor,
    letters: tf.RaggedTensor,
    tokenizer: BertTokenizer,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Lays pieces and the normalized words side by side.

    Args:
      piece_ids: <int32>[P].
      parts: <string>[parts], what WordPiece has cut into these.
      letters: Ragged <int32>[parts, None], their characters.
      tokenizer: The one that did it.

    Returns:
      starts <int64>[P], the first character of each piece among those of all
      parts; lengths <int64>[P]; and whether it is not known what the piece
      stands for, <bool>[P].
    """
    tokens = tokenizer.vocabulary.tokens
    is_continuation = np.array(
        [token.startswith(vocabulary_lib.CONTINUATION) for token in tokens]
    )
    lengths = np.array(
        [len(x.removeprefix(vocabulary_lib.CONTINUATION)) for x in tokens]
    )
    begins_part = ~tf.gather(is_continuation, piece_ids)
    part = tf.cumsum(tf.cast(begins_part, tf.int32)) - 1
    lengths = tf.gather(lengths, piece_ids)
    ends = tf.cumsum(lengths)
    before = tf.gather(tf.boolean_mask(ends - lengths, begins_part), part)
    starts = tf.gather(letters.row_starts(), part) + ends - lengths - before
    # Typed in a text, [UNK] stands for itself.
    is_unknown = (piece_ids == tokenizer.vocabulary.unk_id) & (
        tf.gather(parts, part) != vocabulary_lib.UNK
    )
    return starts, lengths, is_unknown


def _find_first(
    substrings: Substrings,
    word_starts: tf.Tensor,
    starts: tf.Tensor,
    lengths: tf.Tensor,
) -> tf.Tensor:
    """Returns where characters like those at `starts` stand first.

    Args:
      substrings: The characters.
      word_starts: <int64>[n], where to begin the search.
      starts: <int64>[n], where they stand at the latest.
      lengths: <int64>[n], how many they are.

    Returns:
      <int64>[n].
    """
    keys = substrings.key(starts, lengths)[:, tf.newaxis]
    # A word without white space, as of Chinese, may be a whole paragraph.
    distance = tf.reduce_max(starts - word_starts)
    step = _SEARCHED_AT_ONCE // tf.maximum(tf.size(starts, tf.int64), 1)
    step = tf.maximum(tf.minimum(step, distance), 1)

    def search(offset, found):
        places = (word_starts + offset)[:, tf.newaxis] + tf.range(step)
        places = tf.minimum(places, starts[:, tf.newaxis])
        is_equal = substrings.key(places, lengths[:, tf.newaxis]) == keys
        places = tf.where(is_equal, places, tf.int64.max)
        return offset + step, tf.minimum(found, tf.reduce_min(places, axis=1))

    _, found = tf.while_loop(
        lambda offset, _: offset < distance,
        search,
        (tf.constant(0, tf.int64), starts),
    )
    return found

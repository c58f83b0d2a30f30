"""Cuts questions with paragraphs of any length into windows, in the graph.

Shapes:
  B: number of questions.
  P: tokens of all paragraphs.
  R: number of windows; a paragraph without tokens has none.
  T: row length, one of the buckets.
"""

import dataclasses
from collections.abc import Mapping
from typing import Self

import tensorflow as tf

from bert_tf.text.vocabulary import Vocabulary

# [CLS], and [SEP] after the question and after the paragraph.
NUM_SPECIAL_TOKENS = 3


@dataclasses.dataclass(frozen=True)
class Windows:
    """[CLS] question [SEP] window of the paragraph [SEP].

    Attributes:
      questions: <int64>[R], ascending, the question of each window.
      offsets: <int32>[R], where the paragraph's tokens begin in the row.
      lengths: <int32>[R], the number of the paragraph's tokens in the row.
      first_tokens: <int32>[R], the index of the first of them among the tokens
        of all paragraphs.
    """

    questions: tf.Tensor
    offsets: tf.Tensor
    lengths: tf.Tensor
    first_tokens: tf.Tensor

    @classmethod
    def cut(
        cls,
        query_lengths: tf.Tensor,
        piece_splits: tf.Tensor,
        max_seq_length: int,
        doc_stride: int,
    ) -> Self:
        """Returns windows that start `doc_stride` tokens apart.

        Source: run_squad.py:371-390 of the original.

        Args:
          query_lengths: <int32>[B], tokens of each question; they must leave
            room for the paragraph.
          piece_splits: <int64>[B + 1], where the tokens of each paragraph
            begin, and P.
          max_seq_length: The maximum number of tokens in a window.
          doc_stride: The distance between the starts of two windows.
        """
        splits = tf.cast(piece_splits, tf.int32)
        lengths = splits[1:] - splits[:-1]
        room = max_seq_length - NUM_SPECIAL_TOKENS - query_lengths
        stride = tf.minimum(room, doc_stride)
        # Rounded up: the number of steps to reach the last token.
        steps = -tf.math.floordiv(room - lengths, stride)
        counts = tf.where(lengths > 0, 1 + tf.maximum(steps, 0), 0)
        questions = tf.repeat(tf.range(tf.size(counts)), counts)
        numbers = tf.range(tf.size(questions)) - tf.gather(
            tf.cumsum(counts, exclusive=True), questions
        )
        begins = numbers * tf.gather(stride, questions)
        return cls(
            questions=tf.cast(questions, tf.int64),
            offsets=tf.gather(query_lengths, questions) + 2,
            lengths=tf.minimum(
                tf.gather(room, questions),
                tf.gather(lengths, questions) - begins,
            ),
            first_tokens=tf.gather(splits, questions) + begins,
        )

    @classmethod
    def from_state(cls, state: Mapping[str, tf.Tensor]) -> Self:
        """Restores the windows from `state`."""
        return cls(**{x.name: state[x.name] for x in dataclasses.fields(cls)})

    def state(self) -> dict[str, tf.Tensor]:
        """Returns the attributes as tensors by name."""
        return {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}

    @property
    def longest(self) -> tf.Tensor:
        """<int32>[], the length of the longest window with special tokens."""
        # Without windows, the minimum of int32.
        return tf.reduce_max(self._last_seps) + 1

    @property
    def _last_seps(self) -> tf.Tensor:
        """<int32>[R], the position of the last [SEP]."""
        return self.offsets + self.lengths

    def rows(
        self,
        queries: tf.RaggedTensor,
        piece_ids: tf.Tensor,
        length: tf.Tensor,
        vocabulary: Vocabulary,
    ) -> dict[str, tf.Tensor]:
        """Returns the model's inputs.

        Args:
          queries: Ragged <int32>[B, None], token ids of the questions, at least
            as many as in `query_lengths`.
          piece_ids: <int32>[P], token ids of the paragraphs.
          length: <int32>[], T, at least `longest`.
          vocabulary: Has the ids of [CLS], [SEP] and [PAD].

        Returns:
          `input_ids`, `input_mask` and `segment_ids`, each <int32>[R, T].
        """
        position, offset = tf.range(length), self.offsets[:, tf.newaxis]
        end = self._last_seps[:, tf.newaxis]
        # One vector holds the tokens of both texts and the special tokens.
        num_query = tf.size(queries.flat_values)
        cls_index = num_query + tf.size(piece_ids)
        query_starts = tf.cast(queries.row_starts(), tf.int32)
        query_starts = tf.gather(query_starts, self.questions)[:, tf.newaxis]
        doc_starts = num_query + (self.first_tokens - self.offsets)
        is_sep = (position == offset - 1) | (position == end)
        index = tf.where(
            position < offset - 1,
            query_starts - 1 + position,
            doc_starts[:, tf.newaxis] + position,
        )
        index = tf.where(position == 0, cls_index, index)
        index = tf.where(is_sep, cls_index + 1, index)
        index = tf.where(position > end, cls_index + 2, index)
        specials = (vocabulary.cls_id, vocabulary.sep_id, vocabulary.pad_id)
        everything = tf.concat([queries.flat_values, piece_ids, specials], 0)
        in_row = position <= end
        return {
            "input_ids": tf.gather(everything, index),
            "input_mask": tf.cast(in_row, tf.int32),
            "segment_ids": tf.cast(in_row & (position >= offset), tf.int32),
        }

    def is_max_context(
        self, num_tokens: tf.Tensor, length: tf.Tensor
    ) -> tf.Tensor:
        """Returns whether a token has its maximum context in a window.

        The context of a token is the smaller of its distances to the ends of
        the window; the first of equal windows wins.

        Source: _check_is_max_context (run_squad.py:513-547 of the original).

        Args:
          num_tokens: <int32>[], P.
          length: <int32>[], T, at least `longest`.

        Returns:
          <bool>[R, T], False for all but tokens of the paragraph.
        """
        left = tf.range(length) - self.offsets[:, tf.newaxis]
        count = self.lengths[:, tf.newaxis]
        is_token = (left >= 0) & (left < count)
        token = tf.where(is_token, self.first_tokens[:, tf.newaxis] + left, -1)
        # The arithmetic of `tasks.squad.features`, to preserve ties.
        context = tf.cast(tf.minimum(left, count - 1 - left), tf.float64)
        score = context + 0.01 * tf.cast(count, tf.float64)
        best = tf.math.unsorted_segment_max(score, token, num_tokens)
        is_best = is_token & (score == _gather(best, token))
        row = tf.range(tf.size(self.lengths))[:, tf.newaxis]
        first = tf.math.unsorted_segment_min(
            tf.broadcast_to(row, tf.shape(token)),
            tf.where(is_best, token, -1),
            num_tokens,
        )
        return is_best & (row == _gather(first, token))


def _gather(values: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Returns `values` at `indices`; undefined where these are -1."""
    return tf.gather(values, tf.maximum(indices, 0))

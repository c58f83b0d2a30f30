"""Windows of questions with paragraphs, and answer spans in them, in graph.

Shapes:
  B: number of questions.
  P: tokens of all paragraphs.
  R: number of windows; a paragraph without tokens has none.
  T: row length, one of the buckets.
  k: number of candidate starts and ends of a window.
  S: spans of all questions.
"""

from typing import NamedTuple
from typing import Self

import tensorflow as tf

from bert_tf.text.vocabulary import Vocabulary

# [CLS], and [SEP] after the question and after the paragraph.
NUM_SPECIAL_TOKENS = 3


class Windows(NamedTuple):
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


class Spans(NamedTuple):
    """Candidate answers, grouped by question, the best first.

    Attributes:
      questions: <int64>[S], ascending.
      first_tokens: <int32>[S], indices of tokens of all paragraphs.
      last_tokens: <int32>[S].
      start_logits: <float64>[S].
      end_logits: <float64>[S].
      splits: <int64>[B + 1], where the spans of each question begin, and S.
    """

    questions: tf.Tensor
    first_tokens: tf.Tensor
    last_tokens: tf.Tensor
    start_logits: tf.Tensor
    end_logits: tf.Tensor
    splits: tf.Tensor

    @classmethod
    def find(
        cls,
        start_logits: tf.Tensor,
        end_logits: tf.Tensor,
        windows: Windows,
        is_max_context: tf.Tensor,
        num_questions: tf.Tensor,
        n_best_size: int,
        max_answer_length: int,
        mask_padding: bool = True,
    ) -> Self:
        """Pairs the best starts of each window with its best ends.

        Ties keep the order of `tasks.squad.predictions`, which is that of the
        original.

        Args:
          start_logits: <float>[R, T], padding included.
          end_logits: <float>[R, T].
          windows: The windows.
          is_max_context: <bool>[R, T], where answers may start.
          num_questions: <int64>, B.
          n_best_size: As for `SquadTask`, like the arguments below.
          max_answer_length: In tokens.
          mask_padding: Whether to exclude padding from the candidates.
        """
        if mask_padding:
            start_logits = _mask_padding(start_logits, windows)
            end_logits = _mask_padding(end_logits, windows)
        best_starts, starts = _best(start_logits, n_best_size)
        best_ends, ends = _best(end_logits, n_best_size)
        may_start = tf.gather(is_max_context, starts, batch_dims=1)
        end_place = ends - windows.offsets[:, tf.newaxis]
        may_end = (end_place >= 0) & (
            end_place < windows.lengths[:, tf.newaxis]
        )
        # [R, k, k]
        length = 1 + ends[:, tf.newaxis] - starts[..., tf.newaxis]
        is_span = (
            may_start[..., tf.newaxis]
            & may_end[:, tf.newaxis]
            & (length >= 1)
            & (length <= max_answer_length)
        )
        row, start, end = tf.unstack(tf.where(is_span), num=3, axis=1)
        start, end = tf.stack([row, start], 1), tf.stack([row, end], 1)
        shift = tf.gather(windows.first_tokens - windows.offsets, row)
        questions = tf.gather(windows.questions, row)
        start_logits = tf.gather_nd(best_starts, start)
        end_logits = tf.gather_nd(best_ends, end)
        order = tf.argsort(
            start_logits + end_logits, direction="DESCENDING", stable=True
        )
        order = tf.gather(
            order, tf.argsort(tf.gather(questions, order), stable=True)
        )
        questions = tf.gather(questions, order)
        return cls(
            questions,
            tf.gather(shift + tf.gather_nd(starts, start), order),
            tf.gather(shift + tf.gather_nd(ends, end), order),
            tf.gather(start_logits, order),
            tf.gather(end_logits, order),
            tf.searchsorted(
                questions, tf.range(num_questions + 1), out_type=tf.int64
            ),
        )

    @property
    def scores(self) -> tf.Tensor:
        """<float64>[S]."""
        return self.start_logits + self.end_logits

    @property
    def ranks(self) -> tf.Tensor:
        """<int64>[S], the rank of each span for its question, from 0."""
        return tf.range(tf.size(self.questions, tf.int64)) - tf.gather(
            self.splits, self.questions
        )

    @property
    def counts(self) -> tf.Tensor:
        """<int64>[B], the number of spans of each question."""
        return self.splits[1:] - self.splits[:-1]


def null_scores(
    start_logits: tf.Tensor,
    end_logits: tf.Tensor,
    windows: Windows,
    num_questions: tf.Tensor,
) -> tf.Tensor:
    """Returns the "no answer" score of each question, <float64>[B].

    It is the minimum over the windows of the question, and 0 without windows.
    The arguments are those of `Spans.find`.
    """
    scores = tf.math.unsorted_segment_min(
        tf.cast(start_logits[:, 0], tf.float64)
        + tf.cast(end_logits[:, 0], tf.float64),
        windows.questions,
        num_questions,
    )
    has_window = tf.math.bincount(
        tf.cast(windows.questions, tf.int32),
        minlength=tf.cast(num_questions, tf.int32),
        maxlength=tf.cast(num_questions, tf.int32),
    )
    return tf.where(has_window > 0, scores, 0)


def _best(logits: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns at most `count` best logits of each window, and their positions.

    Returns:
      <float64>[R, k], as Python adds them, and <int32>[R, k].
    """
    count = tf.minimum(count, tf.shape(logits)[1])
    values, indices = tf.math.top_k(logits, count)
    return tf.cast(values, tf.float64), indices


def _mask_padding(logits: tf.Tensor, windows: Windows) -> tf.Tensor:
    """Gives padding the lowest logit."""
    num_tokens = windows.offsets + windows.lengths + 1
    in_row = tf.range(tf.shape(logits)[1]) < num_tokens[:, tf.newaxis]
    return tf.where(in_row, logits, logits.dtype.min)

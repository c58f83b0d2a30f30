"""Answer spans in the graph: pairs the best start and end logits of windows.

Shapes:
  B: number of questions.
  R: number of windows.
  T: tokens per window.
  k: number of candidate starts and ends.
  S: spans of all questions.
"""

import dataclasses
from typing import Self

import tensorflow as tf

from bert_tf.export.heads.answer_windows import Windows


@dataclasses.dataclass(frozen=True)
class Spans:
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
          n_best_size: The number of starts and ends to try per window.
          max_answer_length: The maximum number of tokens in an answer.
          mask_padding: Whether to exclude padding from the candidates; see
            `SquadTask`.
        """
        if mask_padding:
            start_logits = _mask_padding(start_logits, windows)
            end_logits = _mask_padding(end_logits, windows)
        starts = _best(start_logits, n_best_size)  # [R, k]
        ends = _best(end_logits, n_best_size)
        may_start = tf.gather(is_max_context, starts.indices, batch_dims=1)
        end_place = ends.indices - windows.offsets[:, tf.newaxis]
        may_end = (end_place >= 0) & (
            end_place < windows.lengths[:, tf.newaxis]
        )
        # [R, k, k]
        length = (
            1 + ends.indices[:, tf.newaxis] - starts.indices[..., tf.newaxis]
        )
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
        start_logits = tf.gather_nd(starts.values, start)
        end_logits = tf.gather_nd(ends.values, end)
        order = tf.argsort(
            start_logits + end_logits, direction="DESCENDING", stable=True
        )
        order = tf.gather(
            order, tf.argsort(tf.gather(questions, order), stable=True)
        )
        questions = tf.gather(questions, order)
        return cls(
            questions,
            tf.gather(shift + tf.gather_nd(starts.indices, start), order),
            tf.gather(shift + tf.gather_nd(ends.indices, end), order),
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
    """Returns the "no answer" score of each question.

    It is the minimum over the windows of the question, and 0 without windows.

    Args:
      start_logits: <float>[R, T].
      end_logits: <float>[R, T].
      windows: The windows.
      num_questions: <int64>, B.

    Returns:
      <float64>[B].
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


@dataclasses.dataclass(frozen=True)
class _Best:
    """The greatest logits of windows.

    Attributes:
      values: <float64>[R, k], as Python adds them.
      indices: <int32>[R, k].
    """

    values: tf.Tensor
    indices: tf.Tensor


def _best(logits: tf.Tensor, count: int) -> _Best:
    """Returns at most `count` best positions of each window."""
    count = tf.minimum(count, tf.shape(logits)[1])
    values, indices = tf.math.top_k(logits, count)
    return _Best(tf.cast(values, tf.float64), indices)


def _mask_padding(logits: tf.Tensor, windows: Windows) -> tf.Tensor:
    """Gives padding the lowest logit."""
    num_tokens = windows.offsets + windows.lengths + 1
    in_row = tf.range(tf.shape(logits)[1]) < num_tokens[:, tf.newaxis]
    return tf.where(in_row, logits, logits.dtype.min)

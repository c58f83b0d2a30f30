"""From logits to spans: the best starts of windows paired with their best ends.

Shapes:
  B: number of questions.
  R: number of windows.
  T: pieces of a window.
  k: how many starts and ends are tried.
  S: spans of all questions.
"""

import dataclasses
from typing import Self

import tensorflow as tf

from bert_tf.export.heads.answer_windows import Windows


@dataclasses.dataclass(frozen=True)
class Spans:
    """Possible answers, question by question, the best first.

    Attributes:
      questions: <int64>[S], rising.
      first_pieces: <int32>[S], of those of all paragraphs.
      last_pieces: <int32>[S].
      start_logits: <float64>[S].
      end_logits: <float64>[S].
      splits: <int64>[B + 1], where the spans of each question begin, and S.
    """

    questions: tf.Tensor
    first_pieces: tf.Tensor
    last_pieces: tf.Tensor
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

        Of equal logits the first comes first, and of equal scores that which
        `squad_predictions` finds first, as its order is the original's.

        Args:
          start_logits: <float>[R, T], padding included.
          end_logits: <float>[R, T].
          windows: The windows.
          is_max_context: <bool>[R, T], where answers may start.
          num_questions: <int64>, B.
          n_best_size: The most starts and ends of each window to try.
          max_answer_length: The most pieces in an answer.
          mask_padding: Whether padding may not be among the best; see
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
        shift = tf.gather(windows.first_pieces - windows.offsets, row)
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
        """<int64>[S], the place of each among those of its question, from 0."""
        return tf.range(tf.size(self.questions, tf.int64)) - tf.gather(
            self.splits, self.questions
        )

    @property
    def counts(self) -> tf.Tensor:
        """<int64>[B], how many each question has."""
        return self.splits[1:] - self.splits[:-1]


def null_scores(
    start_logits: tf.Tensor,
    end_logits: tf.Tensor,
    windows: Windows,
    num_questions: tf.Tensor,
) -> tf.Tensor:
    """Returns how each question scores that there is no answer.

    It is what the window says that favours it least, and 0 without windows.

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
    """Returns the best positions of each window, at most `count`."""
    count = tf.minimum(count, tf.shape(logits)[1])
    values, indices = tf.math.top_k(logits, count)
    return _Best(tf.cast(values, tf.float64), indices)


def _mask_padding(logits: tf.Tensor, windows: Windows) -> tf.Tensor:
    """Puts padding behind all else."""
    num_pieces = windows.offsets + windows.lengths + 1
    in_row = tf.range(tf.shape(logits)[1]) < num_pieces[:, tf.newaxis]
    return tf.where(in_row, logits, logits.dtype.min)

"""Windows over the words of texts, in the graph, as `tagging_features` cuts.

Each begins with a whole word, and each word is read where it has the most
context.

Shapes:
  B: number of texts.
  W: words of all texts.
  V: those of them that have pieces.
  R: number of windows.
"""

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Windows:
    """Which pieces windows show, and where words are in them.

    Attributes:
      pieces: Ragged <int32>[R, None]. Every text has a window, if need be an
        empty one, so that there is something for the model to compute.
      rows: <int32>[W], the window in which a word is read, -1 for none.
      places: <int32>[W], the number of its first piece there, -1 for none.
    """

    pieces: tf.RaggedTensor
    rows: tf.Tensor
    places: tf.Tensor


@dataclasses.dataclass(frozen=True)
class _Words:
    """The words that have pieces, and the windows that they would begin.

    Attributes:
      texts: <int64>[V], rising, the text of each.
      begins: <int64>[V], its first piece, of those of all texts.
      ends: <int64>[V], the piece behind the window that begins with it.
      is_last: <bool>[V], whether no other window would follow.
    """

    texts: tf.Tensor
    begins: tf.Tensor
    ends: tf.Tensor
    is_last: tf.Tensor

    def choose(self, indices: tf.Tensor) -> "_Words":
        """Returns some of them."""
        return _Words(
            *(
                tf.gather(getattr(self, field.name), indices)
                for field in dataclasses.fields(self)
            )
        )


def cut(
    pieces: tf.RaggedTensor,
    texts: tf.Tensor,
    num_texts: tf.Tensor,
    room: int,
    stride: int | None,
) -> Windows:
    """Puts words into windows.

    Args:
      pieces: Ragged <int32>[W, None], those of each word.
      texts: <int64>[W], rising, which text a word is of.
      num_texts: <int64>, B.
      room: The most pieces of a window.
      stride: The most pieces between the beginnings of two windows; None for
        one window only, so that words behind it are in none.
    """
    lengths = pieces.row_lengths()
    numbers = tf.where(lengths > 0)  # <int64>[V, 1]
    begins = tf.gather_nd(pieces.row_starts(), numbers)
    texts_of_words = tf.gather_nd(texts, numbers)
    text_ends = tf.cumsum(
        tf.math.unsorted_segment_sum(lengths, texts, num_texts)
    )
    end = tf.gather(text_ends, texts_of_words)
    words = _Words(
        texts_of_words,
        begins,
        tf.minimum(begins + room, end),
        begins + room >= end,
    )
    windows = words.choose(_find_windows(words, stride))
    rows = _most_context(words, windows)
    places = begins - tf.gather(windows.begins, tf.maximum(rows, 0))
    places = tf.where(rows < 0, -1, tf.cast(places, tf.int32))
    nowhere = tf.fill([tf.size(texts)], -1)
    return Windows(
        _gather(pieces.flat_values, windows, num_texts),
        tf.tensor_scatter_nd_update(nowhere, numbers, rows),
        tf.tensor_scatter_nd_update(nowhere, numbers, places),
    )


def _find_windows(words: _Words, stride: int | None) -> tf.Tensor:
    """Returns <int64>[R], the words that windows begin with, rising.

    Which window follows depends on where the one before begins, so each word
    is asked which one would follow if a window began with it. What is reached
    from the first word of a text is found by steps of one window, of two, of
    four and so on.
    """
    count = tf.size(words.texts, tf.int64)
    # None stands behind the last word.
    following = tf.fill([count + 1], count)
    if stride is not None:
        after = tf.searchsorted(
            words.begins,
            words.begins + stride,
            side="right",
            out_type=tf.int64,
        )
        # One word may have more pieces than the stride.
        after = tf.maximum(after - 1, tf.range(count) + 1)
        texts = tf.concat([words.texts, [-1]], 0)
        is_end = words.is_last | (tf.gather(texts, after) != words.texts)
        after = tf.where(is_end, count, after)
        following = tf.concat([after, [count]], 0)
    is_first = tf.concat(
        [[True], words.texts[1:] != words.texts[:-1], [False]], 0
    )
    # Where there is no word, there is no first one either.
    reached = tf.cast(is_first[-tf.size(following) :], tf.int32)

    def step(reached, following):
        now = tf.math.unsorted_segment_max(reached, following, count + 1)
        return tf.maximum(reached, now), tf.gather(following, following)

    reached, _ = tf.while_loop(
        lambda _, following: tf.reduce_any(following != count),
        step,
        (reached, following),
    )
    return tf.where(reached[:-1] > 0)[:, 0]


def _most_context(words: _Words, windows: _Words) -> tf.Tensor:
    """Returns <int32>[V], each word's best window, the first of several."""
    count = tf.size(words.begins)
    num_windows = tf.size(windows.begins)
    inside = tf.ragged.range(
        tf.searchsorted(words.begins, windows.begins),
        tf.searchsorted(words.begins, windows.ends),
    )
    word, window = inside.flat_values, inside.value_rowids()
    begins = tf.gather(words.begins, word)
    left = begins - tf.gather(windows.begins, window)
    right = tf.gather(windows.ends, window) - 1 - begins
    lengths = tf.gather(windows.ends - windows.begins, window)
    # In the arithmetic of `tagging_features`, for equal ones to stay equal.
    score = tf.cast(tf.minimum(left, right), tf.float64)
    score += 0.01 * tf.cast(lengths, tf.float64)
    best = tf.math.unsorted_segment_max(score, word, count)
    is_best = score == tf.gather(best, word)
    row = tf.where(is_best, tf.cast(window, tf.int32), num_windows)
    row = tf.math.unsorted_segment_min(row, word, count)
    return tf.where(row < num_windows, row, -1)


def _gather(
    pieces: tf.Tensor, windows: _Words, num_texts: tf.Tensor
) -> tf.RaggedTensor:
    """Returns ragged <int32>[R, None]: the windows, then empty ones."""
    shown = tf.ragged.range(windows.begins, windows.ends)
    ones = tf.ones_like(windows.texts)
    counts = tf.math.unsorted_segment_sum(ones, windows.texts, num_texts)
    num_empty = tf.reduce_sum(tf.cast(counts == 0, tf.int64))
    return tf.RaggedTensor.from_row_lengths(
        tf.gather(pieces, shown.flat_values),
        tf.concat([shown.row_lengths(), tf.zeros([num_empty], tf.int64)], 0),
        validate=False,
    )

"""Cuts the words of texts into windows.

Each window begins with a whole word, and each word is tagged in the window
where it has the most context. `cut` runs eagerly, or in exported graphs.

Shapes:
  W: number of words in all texts.
  V: number of words with tokens.
  R: number of windows.
"""

from typing import NamedTuple

import tensorflow as tf


class Windows(NamedTuple):
    """The tokens of windows, and where words are in them.

    Attributes:
      tokens: Ragged <int32>[R, None], token ids. A text without tokens gets an
        empty window, so that a batch always has a row.
      rows: <int32>[W], the window in which each word is tagged, -1 for none.
      places: <int32>[W], the index of a word's first token in its window or -1.
    """

    tokens: tf.RaggedTensor
    rows: tf.Tensor
    places: tf.Tensor


class _Words(NamedTuple):
    """The words with tokens, and for each word a window that begins with it."""

    texts: tf.Tensor  # <int64>[V], ascending, the index of each word's text.
    begins: tf.Tensor  # <int64>[V], the index of a word's first token.
    ends: tf.Tensor  # <int64>[V], the exclusive end of the word's window.
    is_last: tf.Tensor  # <bool>[V], whether this window ends with the text.


def cut(
    tokens: tf.RaggedTensor,
    texts: tf.Tensor,
    num_texts: tf.Tensor,
    room: int,
    stride: int | None,
) -> Windows:
    """Cuts the words of texts into windows.

    Five words of 2 tokens with `room` 6 and `stride` 4 give windows of tokens 0
    to 5 and 4 to 9. The third word is tagged in window 0, as it has no context
    on its left in window 1. So `rows` is 0 0 0 1 1, `places` is 0 2 4 2 4.

    Args:
      tokens: Ragged <int32>[W, None], the token ids of each word.
      texts: <int64>[W], ascending, the index of each word's text.
      num_texts: <int64>, the number of texts.
      room: The maximum number of tokens in a window.
      stride: The maximum distance in tokens between the starts of consecutive
        windows; a longer word exceeds it. None means one window per text; words
        after this window are in no window.
    """
    lengths = tokens.row_lengths()
    numbers = tf.where(lengths > 0)  # <int64>[V, 1]
    begins = tf.gather_nd(tokens.row_starts(), numbers)
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
    indices = _find_windows(words, stride)
    windows = _Words(*(tf.gather(values, indices) for values in words))
    rows = _most_context(words, windows)
    places = begins - tf.gather(windows.begins, tf.maximum(rows, 0))
    places = tf.where(rows < 0, -1, tf.cast(places, tf.int32))
    nowhere = tf.fill([tf.size(texts)], -1)
    return Windows(
        _gather(tokens.flat_values, windows, num_texts),
        tf.tensor_scatter_nd_update(nowhere, numbers, rows),
        tf.tensor_scatter_nd_update(nowhere, numbers, places),
    )


def _find_windows(words: _Words, stride: int | None) -> tf.Tensor:
    """Returns <int64>[R], ascending, the first word of each window.

    The start of a window depends on the start of the previous window. Suppose
    that a window begins with word i. Then `following[i]` is the first word of
    the next window. From each text's first word, this function jumps over 1, 2,
    4 and more windows to find the first words of all windows.
    """
    count = tf.size(words.texts, tf.int64)
    # In `following`, the value `count` means that no window follows.
    following = tf.fill([count + 1], count)
    if stride is not None:
        after = tf.searchsorted(
            words.begins,
            words.begins + stride,
            side="right",
            out_type=tf.int64,
        )
        # Advance by a word or more, even if a word is longer than the stride.
        after = tf.maximum(after - 1, tf.range(count) + 1)
        texts = tf.concat([words.texts, [-1]], 0)
        is_end = words.is_last | (tf.gather(texts, after) != words.texts)
        after = tf.where(is_end, count, after)
        following = tf.concat([after, [count]], 0)
    is_first = tf.concat(
        [[True], words.texts[1:] != words.texts[:-1], [False]], 0
    )
    # If there are no words, `is_first` is [True, False]: drop the True.
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
    """Returns <int32>[V], each word's first window with the most context."""
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
    # This is the original's formula; any other might break ties differently.
    score = tf.cast(tf.minimum(left, right), tf.float64)
    score += 0.01 * tf.cast(lengths, tf.float64)
    best = tf.math.unsorted_segment_max(score, word, count)
    is_best = score == tf.gather(best, word)
    row = tf.where(is_best, tf.cast(window, tf.int32), num_windows)
    row = tf.math.unsorted_segment_min(row, word, count)
    return tf.where(row < num_windows, row, -1)


def _gather(
    tokens: tf.Tensor, windows: _Words, num_texts: tf.Tensor
) -> tf.RaggedTensor:
    """Returns ragged <int32>[R, None]: the windows, then the empty windows."""
    shown = tf.ragged.range(windows.begins, windows.ends)
    ones = tf.ones_like(windows.texts)
    counts = tf.math.unsorted_segment_sum(ones, windows.texts, num_texts)
    num_empty = tf.reduce_sum(tf.cast(counts == 0, tf.int64))
    return tf.RaggedTensor.from_row_lengths(
        tf.gather(tokens, shown.flat_values),
        tf.concat([shown.row_lengths(), tf.zeros([num_empty], tf.int64)], 0),
        validate=False,
    )

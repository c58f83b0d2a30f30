"""Sliding windows over texts that are too long for one row.

Called eagerly to featurize, and in the graph by exported models.

Shapes:
  N: number of texts or pairs.
  W: number of windows, at least one of each text.
"""

from typing import NamedTuple

import tensorflow as tf


class Windows(NamedTuple):
    """The tokens of each window.

    Attributes:
      tokens_a: Ragged <int32>[W, None], segment A.
      tokens_b: Segment B, or None.
      texts: <int64>[W], ascending, the text of each window.
      lost: <int64>[N], the number of tokens that are in no window.
    """

    tokens_a: tf.RaggedTensor
    tokens_b: tf.RaggedTensor | None
    texts: tf.Tensor
    lost: tf.Tensor


def cut(
    tokens_a: tf.RaggedTensor,
    tokens_b: tf.RaggedTensor | None,
    max_seq_length: int,
    doc_stride: int,
) -> Windows:
    """Cuts texts that are too long into windows, as run_squad.py does.

    In a pair, the longer text is cut (B if both are equally long), and each of
    its windows is paired with the whole other text. Only if the other text
    takes more than half of the room, its end is lost, as in
    `packing.truncate`.

    Args:
      tokens_a: Ragged <int32>[N, None].
      tokens_b: Ragged <int32>[N, None], or None.
      max_seq_length: The most tokens of a window, special tokens included.
      doc_stride: Distance between the starts of windows. If that would skip
        tokens, the next window starts right after the last token.
    """
    length_a = tokens_a.row_lengths()
    length_b = (
        tf.zeros_like(length_a) if tokens_b is None else tokens_b.row_lengths()
    )
    # [CLS] A [SEP], and with a B, another [SEP]. `packing.pack` rejects lengths
    # that are too small.
    room = max_seq_length - 2 - tf.cast(length_b > 0, tf.int64)
    room = tf.maximum(room, 1)
    kept_a = tf.minimum(length_a, tf.maximum(room - length_b, (room + 1) // 2))
    kept_b = tf.minimum(length_b, room - kept_a)
    cuts_b = length_b >= length_a
    # For the segment that is cut, the length of its part in a window.
    shown = tf.where(cuts_b, kept_b, kept_a)
    whole = tf.where(cuts_b, length_b, length_a)
    stride = tf.maximum(tf.minimum(shown, doc_stride), 1)
    counts = 1 - (shown - whole) // stride
    texts = tf.repeat(tf.range(tf.size(counts, tf.int64)), counts)
    first = tf.gather(tf.cumsum(counts, exclusive=True), texts)
    offsets = (tf.range(tf.size(texts, tf.int64)) - first) * tf.gather(
        stride, texts
    )

    def segment(tokens, is_cut, lengths, kept):
        start = tf.where(tf.gather(is_cut, texts), offsets, 0)
        shown_here = tf.minimum(
            tf.gather(kept, texts), tf.gather(lengths, texts) - start
        )
        begin = tf.gather(tokens.row_starts(), texts) + start
        places = tf.ragged.range(begin, begin + shown_here)
        return places.with_flat_values(
            tf.gather(tokens.flat_values, places.flat_values)
        )

    return Windows(
        segment(tokens_a, ~cuts_b, length_a, kept_a),
        None
        if tokens_b is None
        else segment(tokens_b, cuts_b, length_b, kept_b),
        texts,
        tf.where(cuts_b, length_a - kept_a, length_b - kept_b),
    )

"""Sliding windows over texts that are too long for one row.

Featurizing calls `cut` eagerly; exported models call it in the graph.

Shapes:
  N: number of texts or pairs.
  W: number of windows, at least one per text.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf.text import packing


class Windows(NamedTuple):
    """The windows of texts.

    Attributes:
      segments: The tokens of each window; `packing.Segments` with R = W.
      texts: <int64>[W], ascending, the index of each window's text.
      lost: <int32>[N], the number of tokens that are in no window.
    """

    segments: packing.Segments
    texts: tf.Tensor
    lost: tf.Tensor


def cut(
    tokens: Sequence[tf.RaggedTensor],
    max_seq_length: int,
    doc_stride: int,
) -> Windows:
    """Cuts texts that are too long into windows, as run_squad.py does.

    Tokens 0 to 11 with `max_seq_length` 8 and `doc_stride` 4 become the windows
    0 to 5, 4 to 9 and 8 to 11.

    In a pair, the longer text is cut (B if both are equally long), and each of
    its windows is paired with the whole shorter text. If even the shorter text
    takes more than half of the room, it is truncated as in `packing.truncate`.

    Args:
      tokens: One or two ragged <int32>[N, None], as for
        `packing.find_segments`.
      max_seq_length: Maximum tokens of a window, special tokens included.
      doc_stride: Distance between the starts of windows. If windows have fewer
        tokens than `doc_stride`, each starts right after the previous window.
    """
    whole_texts, _ = packing.find_segments(tokens)
    length_a = whole_texts[0][1]
    length_b = whole_texts[1][1] if len(tokens) > 1 else tf.zeros_like(length_a)
    # If special tokens leave no room, `packing` raises an error later.
    room = max_seq_length - 2 - tf.cast(length_b > 0, tf.int32)
    room = tf.maximum(room, 1)
    kept_a, kept_b = packing.truncate([length_a, length_b], room)
    cuts_b = length_b >= length_a
    # The longer text is cut: a window has room for `shown` of its tokens.
    shown = tf.where(cuts_b, kept_b, kept_a)
    whole = tf.where(cuts_b, length_b, length_a)
    # Limit `doc_stride`, or int32 may overflow. The limit changes no window,
    # because `shown` is at most `max_seq_length`.
    stride = tf.maximum(tf.minimum(shown, min(doc_stride, max_seq_length)), 1)
    counts = 1 - (shown - whole) // stride
    firsts = tf.cumsum(counts, exclusive=True)
    # Window counts 2 and 1 give `texts` 0 0 1. tf.repeat takes twice as long.
    begun = tf.math.unsorted_segment_sum(
        tf.ones_like(firsts), firsts, tf.reduce_sum(counts)
    )
    texts = tf.cumsum(begun) - 1
    numbers = tf.range(tf.size(texts)) - tf.gather(firsts, texts)
    offsets = numbers * tf.gather(stride, texts)
    segments = []
    for (starts, lengths), kept, is_cut in zip(
        whole_texts, (kept_a, kept_b), (~cuts_b, cuts_b), strict=False
    ):
        skipped = tf.where(tf.gather(is_cut, texts), offsets, 0)
        shown_here = tf.minimum(
            tf.gather(kept, texts), tf.gather(lengths, texts) - skipped
        )
        segments.append((tf.gather(starts, texts) + skipped, shown_here))
    return Windows(
        segments,
        tf.cast(texts, tf.int64),
        tf.where(cuts_b, length_a - kept_a, length_b - kept_b),
    )

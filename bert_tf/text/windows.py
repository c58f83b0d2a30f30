"""Sliding windows over texts that are too long for one row.

Shapes:
  N: number of texts or pairs.
  W: number of windows, at least one of each text.
"""

import dataclasses

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True, eq=False)
class Windows:
    """The tokens of each window.

    Attributes:
      counts: <int64>[N], number of windows of each text.
      num_truncated: Number of pairs with tokens that are in no window.
    """

    counts: np.ndarray
    num_truncated: int
    _segments: tuple["_Segment", ...]

    def tokens(
        self, start: int, end: int
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor | None]:
        """Returns the segments A and B of a range of windows.

        Args:
          start: The first window.
          end: The window after the last; may exceed the number of windows.
        """
        tokens = [
            segment.tokens(slice(start, end)) for segment in self._segments
        ]
        return tokens[0], tokens[1] if len(tokens) > 1 else None


@dataclasses.dataclass(frozen=True, eq=False)
class _Segment:
    """One of the two segments in all windows.

    Attributes:
      values: <int32>[tokens of all texts].
      begins: <int64>[W], index of the first token of each window.
      lengths: <int64>[W].
    """

    values: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray

    def tokens(self, windows: slice) -> tf.RaggedTensor:
        lengths = self.lengths[windows]
        # 0, 1, 2 ... in each window, plus the start of the window.
        splits = np.cumsum(lengths) - lengths
        indices = np.arange(lengths.sum()) + np.repeat(
            self.begins[windows] - splits, lengths
        )
        return tf.RaggedTensor.from_row_lengths(self.values[indices], lengths)


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
    length_a = tokens_a.row_lengths().numpy()
    if tokens_b is None:
        length_b = np.zeros_like(length_a)
    else:
        length_b = tokens_b.row_lengths().numpy()
    # [CLS] A [SEP], and with a B, another [SEP]. `packing.pack` rejects lengths
    # that are too small.
    room = np.maximum(max_seq_length - 2 - (length_b > 0), 1)
    kept_a = np.minimum(length_a, np.maximum(room - length_b, (room + 1) // 2))
    kept_b = np.minimum(length_b, room - kept_a)
    cuts_b = length_b >= length_a
    # The window length of the text that is cut.
    shown = np.where(cuts_b, kept_b, kept_a)
    whole = np.where(cuts_b, length_b, length_a)
    stride = np.maximum(np.minimum(shown, doc_stride), 1)
    counts = 1 + -(-(whole - shown) // stride)
    # The text of each window, and the number of the window in it.
    texts = np.repeat(np.arange(len(counts)), counts)
    numbers = np.arange(len(texts)) - (np.cumsum(counts) - counts)[texts]
    offsets = numbers * stride[texts]

    def segment(tokens, is_cut, lengths, kept):
        first = np.where(is_cut[texts], offsets, 0)
        return _Segment(
            tokens.flat_values.numpy(),
            tokens.row_starts().numpy()[texts] + first,
            np.minimum(kept[texts], lengths[texts] - first),
        )

    segments = [segment(tokens_a, ~cuts_b, length_a, kept_a)]
    if tokens_b is not None:
        segments.append(segment(tokens_b, cuts_b, length_b, kept_b))
    lost = np.where(cuts_b, length_a - kept_a, length_b - kept_b)
    return Windows(counts, int(np.sum(lost > 0)), tuple(segments))

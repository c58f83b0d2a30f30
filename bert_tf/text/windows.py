"""Windows of texts that are too long, all pieces at once.

Shapes:
  N: number of texts or pairs.
  W: number of windows, at least one of each text.
"""

import dataclasses

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True, eq=False)
class Windows:
    """Which pieces each window shows.

    Attributes:
      counts: <int64>[N], windows of each text.
      num_truncated: How many pairs lost pieces that no window shows.
    """

    counts: np.ndarray
    num_truncated: int
    _segments: tuple["_Segment", ...]

    def tokens(
        self, start: int, end: int
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor | None]:
        """Returns the segments A and B of some windows.

        Args:
          start: The first window.
          end: The one behind the last, maybe more than there are.
        """
        tokens = [
            segment.tokens(slice(start, end)) for segment in self._segments
        ]
        return tokens[0], tokens[1] if len(tokens) > 1 else None


@dataclasses.dataclass(frozen=True, eq=False)
class _Segment:
    """What windows show of one of the two texts.

    Attributes:
      values: <int32>[pieces of all texts].
      begins: <int64>[W], where in it each window begins.
      lengths: <int64>[W].
    """

    values: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray

    def tokens(self, windows: slice) -> tf.RaggedTensor:
        lengths = self.lengths[windows]
        # 0, 1, 2 ... in each window, and where the window begins.
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

    Of a pair the longer text (of two of one length B) is cut, and each of its
    windows stands beside the whole of the other. Only where that other one has
    more than half of the room itself, its end is lost, as in
    `packing.truncate_pair`.

    Args:
      tokens_a: Ragged <int32>[N, None].
      tokens_b: Ragged <int32>[N, None], or None.
      max_seq_length: The most pieces of a window, with the special ones.
      doc_stride: How far one window begins after the other. Where that would
        skip pieces, the next window begins behind the last piece.
    """
    length_a = tokens_a.row_lengths().numpy()
    if tokens_b is None:
        length_b = np.zeros_like(length_a)
    else:
        length_b = tokens_b.row_lengths().numpy()
    # [CLS] A [SEP], and where there is a B, its [SEP]. Too small ones are for
    # `packing.pack` to refuse.
    room = np.maximum(max_seq_length - 2 - (length_b > 0), 1)
    kept_a = np.minimum(length_a, np.maximum(room - length_b, (room + 1) // 2))
    kept_b = np.minimum(length_b, room - kept_a)
    cuts_b = length_b >= length_a
    # Of the one that is cut it is the length of a window.
    shown = np.where(cuts_b, kept_b, kept_a)
    whole = np.where(cuts_b, length_b, length_a)
    stride = np.maximum(np.minimum(shown, doc_stride), 1)
    counts = 1 + -(-(whole - shown) // stride)
    # Of each window its text, and its number there.
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

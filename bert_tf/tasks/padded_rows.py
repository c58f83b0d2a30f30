"""Rows of unequal lengths, kept one after the other, as padded batches.

Shapes:
  N: number of rows.
  B: batch size.
  T: length of a batch.
"""

import dataclasses

import numpy as np

from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.features import SEGMENT_IDS


@dataclasses.dataclass(frozen=True, eq=False)
class PaddedRows:
    """Which values go where in a batch.

    Attributes:
      mask: <bool>[B, T], where there is a value.
      source: <int64>[values of the batch], which of all values those are.
    """

    mask: np.ndarray
    source: np.ndarray

    def place(self, values: np.ndarray, padding: int) -> np.ndarray:
        """Returns <int32>[B, T] of <int32>[sum of lengths]."""
        placed = np.full(self.mask.shape, padding, np.int32)
        placed[self.mask] = values[self.source]
        return placed

    def inputs(
        self,
        input_ids: np.ndarray,
        pad_id: int,
        first_lengths: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """Returns the model's inputs.

        Args:
          input_ids: <int32>[sum of lengths], the pieces of all rows.
          pad_id: The id of [PAD].
          first_lengths: <int32>[B], pieces of each row's first segment; None
            if there is but one segment.

        Returns:
          `input_ids`, `input_mask` and `segment_ids`, each <int32>[B, T].
        """
        segments = np.zeros_like(self.mask)
        if first_lengths is not None:
            position = np.arange(self.mask.shape[1])
            segments = self.mask & (position >= first_lengths[:, np.newaxis])
        return {
            INPUT_IDS.name: self.place(input_ids, pad_id),
            INPUT_MASK.name: self.mask.astype(np.int32),
            SEGMENT_IDS.name: segments.astype(np.int32),
        }


def choose(
    row_splits: np.ndarray, indices: np.ndarray, length: int
) -> PaddedRows:
    """Chooses the rows of a batch.

    Args:
      row_splits: <int64>[N + 1], where the rows begin and end.
      indices: <int64>[B], which rows.
      length: T, at least that of the longest of them.

    Raises:
      ValueError: If one of the rows is longer.
    """
    starts = row_splits[indices][:, np.newaxis]
    lengths = row_splits[indices + 1][:, np.newaxis] - starts
    if lengths.size and lengths.max() > length:
        raise ValueError(
            "`length` must be at least that of the longest row, "
            f"{lengths.max()}. Received: {length}."
        )
    position = np.arange(length)
    mask = position < lengths
    return PaddedRows(mask, (starts + position)[mask])

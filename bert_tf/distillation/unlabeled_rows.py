"""Rows with labels and rows without, as the rows that one run trains on.

Shapes:
  B: batch size.
  T: length of a batch.
"""

import numpy as np

from bert_tf.distillation.objective import IS_LABELED
from bert_tf.tasks.task import Features


class MixedFeatures:
    """Those with labels first, then those without.

    Args:
      labeled: Rows with labels.
      unlabeled: Rows without; what they have beside the model's inputs, the
        others have too.
    """

    def __init__(self, labeled: Features, unlabeled: Features) -> None:
        self._labeled = labeled
        self._unlabeled = unlabeled

    @property
    def lengths(self) -> np.ndarray:
        """<int64>[N], pieces of each row."""
        return np.concatenate([self._labeled.lengths, self._unlabeled.lengths])

    def __len__(self) -> int:
        return len(self._labeled) + len(self._unlabeled)

    def batch(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns rows of both kinds.

        Args:
          indices: <int64>[B], which rows.
          length: T, at least that of the longest of them.

        Returns:
          What `Features.batch` of those with labels returns, 0 where a row has
          none, and `is_labeled` <float32>[B].
        """
        is_labeled = indices < len(self._labeled)
        mine = self._labeled.batch(indices[is_labeled], length)
        theirs = self._unlabeled.batch(
            indices[~is_labeled] - len(self._labeled), length
        )
        batch = {IS_LABELED: is_labeled.astype(np.float32)}
        for name, value in mine.items():
            other = theirs.get(name, np.zeros([0, *value.shape[1:]]))
            # Examples of the one may have more choices than all of the other.
            shape = np.maximum(value.shape[1:], other.shape[1:])
            rows = np.zeros([len(indices), *shape], value.dtype)
            _put(rows, is_labeled, value)
            if name in theirs:
                _put(rows, ~is_labeled, other)
            batch[name] = rows
        return batch


def _put(rows: np.ndarray, which: np.ndarray, values: np.ndarray) -> None:
    """Sets some rows; what is behind an axis of `values` stays 0."""
    parts = tuple(slice(size) for size in values.shape[1:])
    rows[(np.flatnonzero(which), *parts)] = values

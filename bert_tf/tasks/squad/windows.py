"""The windows of many questions, packed: any of them may share a batch.

Shapes:
  N: number of windows.
  P: pieces of all windows.
  D: pieces of all windows that are of a paragraph.
  B: batch size.
  T: length of a batch.
"""

import dataclasses
import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np

from bert_tf.tasks import padded_rows
from bert_tf.tasks.squad import features as squad_features
from bert_tf.tasks.squad.features import InputFeatures

START_POSITIONS = "start_positions"
END_POSITIONS = "end_positions"


@dataclasses.dataclass(frozen=True, eq=False)
class SquadFeatures:
    """Windows of unequal lengths, without padding.

    Attributes:
      input_ids: <int32>[P], one window after the other.
      row_splits: <int64>[N + 1], where in it the windows begin and end.
      doc_offsets: <int32>[N], where in each window its paragraph begins.
      example_indices: <int32>[N], which example each window is of.
      is_query_truncated: <bool>[N].
      positions: <int32>[N, 2], the answer's first and last piece in each
        window to train on; None for windows to predict for.
      word_indices: <int32>[D], the word that each piece belongs to; None for
        windows to train on, as is the next.
      is_max_context: <bool>[D], whether no other window shows more around it.
      pad_id: The id of [PAD].
    """

    input_ids: np.ndarray
    row_splits: np.ndarray
    doc_offsets: np.ndarray
    example_indices: np.ndarray
    is_query_truncated: np.ndarray
    positions: np.ndarray | None
    word_indices: np.ndarray | None
    is_max_context: np.ndarray | None
    pad_id: int

    def __len__(self) -> int:
        return len(self.doc_offsets)

    @property
    def lengths(self) -> np.ndarray:
        """<int64>[N], pieces of each window with its special ones."""
        return np.diff(self.row_splits)

    @property
    def num_truncated_queries(self) -> int:
        """How many examples' questions were too long."""
        return len(np.unique(self.example_indices[self.is_query_truncated]))

    def batch(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns the model's inputs for some windows, and the positions.

        Args:
          indices: <int64>[B], which windows.
          length: T, at least that of the longest of them.

        Returns:
          `input_ids`, `input_mask` and `segment_ids` <int32>[B, T], and of
          windows to train on `start_positions` and `end_positions` <int32>[B].

        Raises:
          ValueError: If one of the windows is longer.
        """
        rows = padded_rows.choose(self.row_splits, indices, length)
        batch = rows.inputs(
            self.input_ids, self.pad_id, self.doc_offsets[indices]
        )
        if self.positions is not None:
            batch[START_POSITIONS] = self.positions[indices, 0]
            batch[END_POSITIONS] = self.positions[indices, 1]
        return batch

    def windows(self) -> Iterator[InputFeatures]:
        """Yields the windows to predict for, as they were before packing.

        Their arrays share the memory of these.
        """
        doc_lengths = self.lengths - self.doc_offsets - 1
        doc_splits = np.cumsum([0, *doc_lengths]).tolist()
        spans = itertools.pairwise(self.row_splits.tolist())
        doc_spans = itertools.pairwise(doc_splits)
        doc_span_index, previous = 0, None
        for row, (span, doc_span) in enumerate(
            zip(spans, doc_spans, strict=True)
        ):
            example_index = int(self.example_indices[row])
            is_next = example_index == previous
            doc_span_index = doc_span_index + 1 if is_next else 0
            previous = example_index
            yield InputFeatures(
                unique_id=squad_features.FIRST_UNIQUE_ID + row,
                example_index=example_index,
                doc_span_index=doc_span_index,
                input_ids=self.input_ids[slice(*span)],
                doc_offset=int(self.doc_offsets[row]),
                word_indices=self.word_indices[slice(*doc_span)],
                is_max_context=self.is_max_context[slice(*doc_span)],
                is_query_truncated=bool(self.is_query_truncated[row]),
            )


def pack_windows(
    windows: Iterable[InputFeatures], pad_id: int, is_training: bool
) -> SquadFeatures:
    """Packs windows, of which no more than the arrays stays in memory.

    Args:
      windows: From `squad_features.convert_examples_to_features`.
      pad_id: The id of [PAD].
      is_training: Whether they are to train on, or to predict for.
    """
    ids, word_indices, is_max_context = [], [], []
    rows, positions = [], []
    for window in windows:
        ids.append(window.input_ids)
        rows.append(
            (
                len(window.input_ids),
                window.doc_offset,
                window.example_index,
                window.is_query_truncated,
            )
        )
        if is_training:
            positions.append((window.start_position, window.end_position))
        else:
            word_indices.append(window.word_indices)
            is_max_context.append(window.is_max_context)
    lengths, doc_offsets, example_indices, is_query_truncated = (
        np.array(rows, np.int64).reshape([-1, 4]).T
    )
    return SquadFeatures(
        input_ids=_join(ids, np.int32),
        row_splits=np.cumsum([0, *lengths]),
        doc_offsets=doc_offsets.astype(np.int32),
        example_indices=example_indices.astype(np.int32),
        is_query_truncated=is_query_truncated.astype(bool),
        positions=np.array(positions, np.int32) if is_training else None,
        word_indices=None if is_training else _join(word_indices, np.int32),
        is_max_context=None if is_training else _join(is_max_context, bool),
        pad_id=pad_id,
    )


def _join(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.zeros([0], dtype), *parts])

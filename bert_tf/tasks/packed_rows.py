"""Packed rows of unequal lengths, any of which may share a padded batch.

Shapes:
  N: number of rows or texts.
  B: batch size.
  T: length of a batch.
"""

import dataclasses
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.features import SEGMENT_IDS
from bert_tf.text import packing
from bert_tf.text import windows as text_windows
from bert_tf.text.tokenizer import BertTokenizer

# The tokenizer is fast for many texts at once; this bounds memory.
_TEXTS_PER_CALL = 2048


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PackedRows:
    """Rows of tokens, concatenated without padding.

    Attributes:
      input_ids: <int32>[sum of lengths].
      row_splits: <int64>[N + 1], the bounds of the rows in `input_ids`.
      first_lengths: <int32>[N], tokens of each row's first segment, as
        [CLS] A [SEP]; None if all rows have a single segment.
      pad_id: The id of [PAD].
    """

    input_ids: np.ndarray
    row_splits: np.ndarray
    first_lengths: np.ndarray | None = None
    pad_id: int

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    @property
    def lengths(self) -> np.ndarray:
        """<int64>[N], tokens of each row, special tokens included."""
        return np.diff(self.row_splits)

    def batch(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns the model's inputs for some of the rows, padded.

        Args:
          indices: <int64>[B], the rows.
          length: T, at least the length of the longest row.

        Returns:
          `input_ids`, `input_mask` and `segment_ids`, each <int32>[B, T].

        Raises:
          ValueError: If a row is longer than `length`.
        """
        lengths = self.row_splits[indices + 1] - self.row_splits[indices]
        if lengths.size and lengths.max() > length:
            raise ValueError(
                "`length` must be at least the length of the longest row, "
                f"{lengths.max()}. Received: {length}."
            )
        input_ids = self.place(self.input_ids, indices, length, self.pad_id)
        position = np.arange(length)
        mask = position < lengths[:, np.newaxis]
        segments = np.zeros_like(mask)
        if self.first_lengths is not None:
            first_lengths = self.first_lengths[indices][:, np.newaxis]
            segments = mask & (position >= first_lengths)
        return {
            INPUT_IDS.name: input_ids,
            INPUT_MASK.name: mask.astype(np.int32),
            SEGMENT_IDS.name: segments.astype(np.int32),
        }

    def place(
        self, values: np.ndarray, indices: np.ndarray, length: int, padding: int
    ) -> np.ndarray:
        """Returns <int32>[B, T] for the <int32>[sum of lengths] of all rows."""
        starts = self.row_splits[indices][:, np.newaxis]
        position = np.arange(length)
        mask = position < self.row_splits[indices + 1][:, np.newaxis] - starts
        placed = np.full(mask.shape, padding, np.int32)
        placed[mask] = values[(starts + position)[mask]]
        return placed


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PackedTexts(PackedRows):
    """Texts packed as [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

    Attributes:
      num_truncated: The number of texts or pairs with too many tokens.
    """

    num_truncated: int


def pack_texts(
    texts_a: Sequence[str],
    texts_b: Sequence[str | None] | None,
    tokenizer: BertTokenizer,
    max_seq_length: int,
) -> PackedTexts:
    """Tokenizes texts or pairs and packs them; see `packing.pack`.

    `texts_b`, or any of its texts, may be None.

    Raises:
      UserError: If `max_seq_length` leaves no room for a token.
    """
    rows = _Rows(tokenizer, max_seq_length)
    for tokens in _tokenize(texts_a, texts_b, tokenizer):
        rows.add(tokens)
    return rows.join()


def pack_windows(
    texts_a: Sequence[str],
    texts_b: Sequence[str | None] | None,
    tokenizer: BertTokenizer,
    max_seq_length: int,
    doc_stride: int,
) -> tuple[PackedTexts, np.ndarray]:
    """Packs texts or pairs, cutting long ones into several windows.

    `text_windows.cut` chooses which text of a pair is cut.

    `texts_b`, or any of its texts, may be None. `doc_stride` is the distance
    between the starts of windows, in tokens.

    Returns:
      The windows, with the number of texts that are truncated nevertheless as
      `num_truncated`, and <int64>[N + 1], the bounds of each text's windows.

    Raises:
      UserError: If `max_seq_length` leaves no room for a token.
    """
    rows = _Rows(tokenizer, max_seq_length)
    counts = [np.zeros([1], np.int64)]
    for tokens in _tokenize(texts_a, texts_b, tokenizer):
        windows = text_windows.cut(tokens, max_seq_length, doc_stride)
        counts.append(np.bincount(windows.texts, minlength=len(windows.lost)))
        rows.add(tokens, windows.segments)
        rows.num_truncated += int(np.sum(windows.lost > 0))
    return rows.join(), np.cumsum(np.concatenate(counts))


def _tokenize(
    texts_a: Sequence[str],
    texts_b: Sequence[str | None] | None,
    tokenizer: BertTokenizer,
) -> Iterator[list[tf.RaggedTensor]]:
    """Yields the tokens of texts, some thousand texts at a time."""
    for start in range(0, len(texts_a), _TEXTS_PER_CALL):
        end = start + _TEXTS_PER_CALL
        tokens = [tokenizer.tokenize(texts_a[start:end])]
        if texts_b:
            seconds = [text or "" for text in texts_b[start:end]]
            tokens.append(tokenizer.tokenize(seconds))
        yield tokens


class _Rows:
    """Collects rows that are packed part by part."""

    def __init__(self, tokenizer: BertTokenizer, max_seq_length: int) -> None:
        self._vocabulary = tokenizer.vocabulary
        self._max_seq_length = max_seq_length
        self._ids = [np.zeros([0], np.int32)]
        self._lengths = [np.zeros([1], np.int64)]
        self._first_lengths = [np.zeros([0], np.int32)]
        self.num_truncated = 0

    def add(
        self,
        tokens: Sequence[tf.RaggedTensor],
        segments: packing.Segments | None = None,
    ) -> None:
        """Packs more rows.

        Args:
          tokens: One or two ragged <int32>[n, None], the segments of texts.
          segments: The parts of `tokens` in each row, as of windows; by default
            each text has a row with all of its tokens.
        """
        if segments is None:
            segments, _ = packing.find_segments(tokens)
        vocabulary = self._vocabulary
        special = (vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id)
        values = [one.flat_values.numpy() for one in tokens]
        ids = np.concatenate([*values, np.array(special, np.int32)])
        for start in range(0, len(segments[0][0]), _TEXTS_PER_CALL):
            part = slice(start, start + _TEXTS_PER_CALL)
            layout = packing.lay_out_ragged(
                [(first[part], length[part]) for first, length in segments],
                len(ids) - len(special),
                self._max_seq_length,
            )
            self._ids.append(ids[layout.index])
            self._lengths.append(layout.lengths)
            self._first_lengths.append(layout.first_lengths)
            self.num_truncated += int(np.sum(layout.is_truncated))

    def join(self) -> PackedTexts:
        """Returns all rows."""
        return PackedTexts(
            input_ids=np.concatenate(self._ids),
            row_splits=np.cumsum(np.concatenate(self._lengths)),
            first_lengths=np.concatenate(self._first_lengths),
            pad_id=self._vocabulary.pad_id,
            num_truncated=self.num_truncated,
        )

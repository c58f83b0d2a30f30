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


@dataclasses.dataclass(frozen=True, eq=False)
class PaddedRows:
    """The layout of a padded batch: where each value of its rows goes.

    Attributes:
      mask: <bool>[B, T], True where there is a value.
      source: <int64>[values of the batch], their indices among all values.
    """

    mask: np.ndarray
    source: np.ndarray

    def place(self, values: np.ndarray, padding: int) -> np.ndarray:
        """Pads the rows of <int32>[sum of lengths] to <int32>[B, T]."""
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
          input_ids: <int32>[sum of lengths], the tokens of all rows.
          pad_id: The id of [PAD].
          first_lengths: <int32>[B], tokens of each row's first segment; None
            if there is only one segment.

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


def choose_rows(
    row_splits: np.ndarray, indices: np.ndarray, length: int
) -> PaddedRows:
    """Lays out the rows of a batch.

    Args:
      row_splits: <int64>[N + 1], the bounds of the rows.
      indices: <int64>[B], the rows.
      length: T, at least the length of the longest row.

    Raises:
      ValueError: If a row is longer than `length`.
    """
    starts = row_splits[indices][:, np.newaxis]
    lengths = row_splits[indices + 1][:, np.newaxis] - starts
    if lengths.size and lengths.max() > length:
        raise ValueError(
            "`length` must be at least the length of the longest row, "
            f"{lengths.max()}. Received: {length}."
        )
    position = np.arange(length)
    mask = position < lengths
    return PaddedRows(mask, (starts + position)[mask])


@dataclasses.dataclass(frozen=True)
class PackedTexts:
    """Texts packed as [CLS] A [SEP] or [CLS] A [SEP] B [SEP], without padding.

    Attributes:
      input_ids: <int32>[sum of lengths], the texts concatenated.
      row_splits: <int64>[N + 1], the bounds of the texts in `input_ids`.
      first_lengths: <int32>[N], tokens of [CLS] A [SEP].
      pad_id: The id of [PAD].
      num_truncated: The number of texts or pairs with too many tokens.
    """

    input_ids: np.ndarray
    row_splits: np.ndarray
    first_lengths: np.ndarray
    pad_id: int
    num_truncated: int

    def __len__(self) -> int:
        return len(self.first_lengths)

    @property
    def lengths(self) -> np.ndarray:
        """<int64>[N], tokens of each text, special tokens included."""
        return np.diff(self.row_splits)

    def batch(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns the model's inputs for some of the texts.

        Args:
          indices: <int64>[B], the texts.
          length: T, at least the length of the longest text.

        Returns:
          `input_ids`, `input_mask` and `segment_ids`, each <int32>[B, T].

        Raises:
          ValueError: If a text is longer than `length`.
        """
        rows = choose_rows(self.row_splits, indices, length)
        return rows.inputs(
            self.input_ids, self.pad_id, self.first_lengths[indices]
        )


def pack_texts(
    texts_a: Sequence[str],
    texts_b: Sequence[str | None] | None,
    tokenizer: BertTokenizer,
    max_seq_length: int,
) -> PackedTexts:
    """Tokenizes texts or pairs and packs them; see `packing.pack`.

    Args:
      texts_a: N texts.
      texts_b: N second texts, each of which may be None; or None.
      tokenizer: The tokenizer.
      max_seq_length: The maximum number of tokens in a row, special tokens
        included.

    Raises:
      UserError: If `max_seq_length` leaves no room for a token.
    """
    rows = _Rows(tokenizer, max_seq_length)
    for tokens_a, tokens_b in _tokenize(texts_a, texts_b, tokenizer):
        rows.add(tokens_a, tokens_b)
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

    Args:
      texts_a: N texts.
      texts_b: N second texts, each of which may be None; or None.
      tokenizer: The tokenizer.
      max_seq_length: The maximum number of tokens in a window, special tokens
        included.
      doc_stride: The distance between the starts of windows, in tokens.

    Returns:
      The windows, with the number of texts that are truncated nevertheless as
      `num_truncated`, and <int64>[N + 1], the bounds of each text's windows.

    Raises:
      UserError: If `max_seq_length` leaves no room for a token.
    """
    rows = _Rows(tokenizer, max_seq_length)
    counts = [np.zeros([1], np.int64)]
    for tokens_a, tokens_b in _tokenize(texts_a, texts_b, tokenizer):
        windows = text_windows.cut(
            tokens_a, tokens_b, max_seq_length, doc_stride
        )
        counts.append(np.bincount(windows.texts, minlength=len(windows.lost)))
        for start in range(0, len(windows.texts), _TEXTS_PER_CALL):
            part = slice(start, start + _TEXTS_PER_CALL)
            rows.add(
                windows.tokens_a[part],
                None if tokens_b is None else windows.tokens_b[part],
            )
        rows.num_truncated += int(np.sum(windows.lost > 0))
    return rows.join(), np.cumsum(np.concatenate(counts))


def _tokenize(
    texts_a: Sequence[str],
    texts_b: Sequence[str | None] | None,
    tokenizer: BertTokenizer,
) -> Iterator[tuple[tf.RaggedTensor, tf.RaggedTensor | None]]:
    """Yields the tokens of texts, some thousand texts at a time."""
    for start in range(0, len(texts_a), _TEXTS_PER_CALL):
        end = start + _TEXTS_PER_CALL
        tokens_b = texts_b and tokenizer.tokenize(
            [text or "" for text in texts_b[start:end]]
        )
        yield tokenizer.tokenize(texts_a[start:end]), tokens_b


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
        self, tokens_a: tf.RaggedTensor, tokens_b: tf.RaggedTensor | None
    ) -> None:
        """Packs more rows."""
        packed = packing.pack(
            tokens_a, tokens_b, self._max_seq_length, self._vocabulary
        )
        packed = {name: value.numpy() for name, value in packed.items()}
        mask = packed[INPUT_MASK.name]
        lengths = mask.sum(-1, dtype=np.int64)
        second_lengths = packed[SEGMENT_IDS.name].sum(-1, dtype=np.int32)
        self._ids.append(packed[INPUT_IDS.name][mask == 1])
        self._lengths.append(lengths)
        self._first_lengths.append(lengths.astype(np.int32) - second_lengths)
        self.num_truncated += int(
            np.sum(_full_lengths(tokens_a, tokens_b) > self._max_seq_length)
        )

    def join(self) -> PackedTexts:
        """Returns all rows."""
        return PackedTexts(
            np.concatenate(self._ids),
            np.cumsum(np.concatenate(self._lengths)),
            np.concatenate(self._first_lengths),
            self._vocabulary.pad_id,
            self.num_truncated,
        )


def _full_lengths(
    tokens_a: tf.RaggedTensor, tokens_b: tf.RaggedTensor | None
) -> np.ndarray:
    """Returns the lengths of rows before truncation."""
    lengths = tokens_a.row_lengths().numpy() + 2
    if tokens_b is None:
        return lengths
    second = tokens_b.row_lengths().numpy()
    # An empty second text has no [SEP].
    return lengths + second + (second > 0)

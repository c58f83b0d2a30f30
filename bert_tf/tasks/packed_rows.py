"""Packed texts of unequal lengths, of which any may share a batch.

Shapes:
  N: number of texts.
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
from bert_tf.tasks import padded_rows
from bert_tf.text import packing
from bert_tf.text import windows as text_windows
from bert_tf.text.tokenizer import BertTokenizer

# The tokenizer is fast for many texts at a time, and this bounds memory.
_TEXTS_PER_CALL = 2048


@dataclasses.dataclass(frozen=True)
class PackedTexts:
    """[CLS] A [SEP] or [CLS] A [SEP] B [SEP] of each text, without padding.

    Attributes:
      input_ids: <int32>[sum of lengths], one text after the other.
      row_splits: <int64>[N + 1], where in it the texts begin and end.
      first_lengths: <int32>[N], pieces of [CLS] A [SEP]; all of a single text.
      pad_id: The id of [PAD].
      num_truncated: How many texts or pairs had too many pieces.
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
        """<int64>[N], pieces of each text with its special ones."""
        return np.diff(self.row_splits)

    def batch(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns the model's inputs for some of the texts.

        Args:
          indices: <int64>[B], which texts.
          length: T, at least that of the longest of them.

        Returns:
          `input_ids`, `input_mask` and `segment_ids`, each <int32>[B, T].

        Raises:
          ValueError: If one of the texts is longer.
        """
        rows = padded_rows.choose(self.row_splits, indices, length)
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
      texts_b: N texts, None for each that has no second one; or None.
      tokenizer: The tokenizer.
      max_seq_length: The most pieces a text may have, with the special ones.

    Raises:
      UserError: If `max_seq_length` leaves no room for a piece.
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
    """Packs texts or pairs, those that are too long as several windows.

    Which of a pair is cut into windows says `text_windows.cut`.

    Args:
      texts_a: N texts.
      texts_b: N texts, None for each that has no second one; or None.
      tokenizer: The tokenizer.
      max_seq_length: The most pieces a window may have, with the special ones.
      doc_stride: How far one window begins after the other, in pieces.

    Returns:
      The windows, `num_truncated` of which counts the texts that windows do
      not show whole, and <int64>[N + 1], where those of each text begin and
      end.

    Raises:
      UserError: If `max_seq_length` leaves no room for a piece.
    """
    rows = _Rows(tokenizer, max_seq_length)
    counts = [np.zeros([1], np.int64)]
    for tokens_a, tokens_b in _tokenize(texts_a, texts_b, tokenizer):
        windows = text_windows.cut(
            tokens_a, tokens_b, max_seq_length, doc_stride
        )
        counts.append(windows.counts)
        for start in range(0, windows.counts.sum(), _TEXTS_PER_CALL):
            rows.add(*windows.tokens(start, start + _TEXTS_PER_CALL))
        rows.num_truncated += windows.num_truncated
    return rows.join(), np.cumsum(np.concatenate(counts))


def _tokenize(
    texts_a: Sequence[str],
    texts_b: Sequence[str | None] | None,
    tokenizer: BertTokenizer,
) -> Iterator[tuple[tf.RaggedTensor, tf.RaggedTensor | None]]:
    """Yields the pieces of as many texts as there is memory for."""
    for start in range(0, len(texts_a), _TEXTS_PER_CALL):
        end = start + _TEXTS_PER_CALL
        tokens_b = texts_b and tokenizer.tokenize(
            [text or "" for text in texts_b[start:end]]
        )
        yield tokenizer.tokenize(texts_a[start:end]), tokens_b


class _Rows:
    """Rows that are packed part by part.

    Args:
      tokenizer: The one that made the pieces.
      max_seq_length: The most pieces of a row.
    """

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
        """Packs some more rows."""
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
    """Returns the lengths that no limit would have cut."""
    lengths = tokens_a.row_lengths().numpy() + 2
    if tokens_b is None:
        return lengths
    second = tokens_b.row_lengths().numpy()
    # [SEP] comes with pieces before it only.
    return lengths + second + (second > 0)

"""Packed rows of unequal lengths; any rows may share a padded batch.

Shapes:
  N: number of rows or texts.
  B: batch size.
  T: number of tokens in a padded row.
"""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.features import SEGMENT_IDS
from bert_tf.text import packing
from bert_tf.text import windows as text_windows
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary

LABEL_IDS = "label_ids"
# The number of texts tokenized, or of rows packed, at once.
_PER_CALL = 2048


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PackedRows:
    """Rows of tokens, concatenated without padding.

    The rows [101, 7, 102] and [101, 102] are stored as the `input_ids`
    [101, 7, 102, 101, 102] with the `row_splits` [0, 3, 5].

    Attributes:
      input_ids: <int32>[sum of lengths].
      row_splits: <int64>[N + 1], the bounds of the rows in `input_ids`.
      first_lengths: <int32>[N], the number of tokens in each row's first
        segment, [CLS] A [SEP].
      pad_id: The id of [PAD].
      examples: <int64>[N], ascending, the index of each row's example; None if
        a row may have several examples, as in tagging.
      targets: The labels of rows, [N, ...] each, by their names in a batch.
      num_truncated: The number of texts or pairs with too many tokens.
    """

    input_ids: np.ndarray
    row_splits: np.ndarray
    first_lengths: np.ndarray
    pad_id: int
    examples: np.ndarray | None = None
    targets: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    num_truncated: int = 0

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    @property
    def lengths(self) -> np.ndarray:
        """<int64>[N], tokens of each row, special tokens included."""
        return np.diff(self.row_splits)

    def batch(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns the model's inputs and targets of some rows; see `inputs`."""
        targets = {name: x[indices] for name, x in self.targets.items()}
        return self.inputs(indices, length) | targets

    def inputs(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns the model's inputs for some rows, padded to `length`, T.

        `input_ids`, `input_mask` and `segment_ids` are <int32>[B, T] each. The
        `indices` <int64>[B] of the rows are -1 for a row that is all padding.

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
        """Pads some rows of `values`, <int32>[sum of lengths], to [B, T]."""
        starts = self.row_splits[indices][:, np.newaxis]
        position = np.arange(length)
        mask = position < self.row_splits[indices + 1][:, np.newaxis] - starts
        placed = np.full(mask.shape, padding, np.int32)
        placed[mask] = values[(starts + position)[mask]]
        return placed


@dataclasses.dataclass(frozen=True, eq=False)
class GroupedRows:
    """Examples of at most C texts each; several examples may share a text.

    All batches have C texts for each example, so shapes can be static.

    Attributes:
      rows: The texts, one row each.
      groups: <int>[N, C], the rows of each example; -1 for missing texts, which
        have only padding, so that `input_mask` is 0 even at [CLS].
      targets: The labels of examples, [N, ...] each, by their names in a batch.
    """

    rows: PackedRows
    groups: np.ndarray
    targets: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def lengths(self) -> np.ndarray:
        """<int64>[N], tokens of the longest text of each example."""
        lengths = np.append(self.rows.lengths, 0)  # 0 for missing texts.
        return lengths[self.groups].max(axis=1)

    def batch(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns inputs <int32>[B, C, T] and the targets."""
        groups = self.groups[indices]
        inputs = self.rows.inputs(groups.ravel(), length)
        return {
            name: x.reshape([*groups.shape, length])
            for name, x in inputs.items()
        } | {name: x[indices] for name, x in self.targets.items()}


def pack_texts(
    texts_a: Sequence[str],
    texts_b: Sequence[str | None] | None,
    tokenizer: BertTokenizer,
    max_seq_length: int,
    doc_stride: int | None = None,
) -> PackedRows:
    """Tokenizes texts or pairs and packs them; see `packing.pack`.

    All or some of `texts_b`, the second texts of pairs, may be None. Long texts
    are cut into windows whose starts are `doc_stride` tokens apart (see
    `text_windows.cut` for pairs), or truncated if `doc_stride` is None.

    Raises:
      UserError: If `max_seq_length` leaves no room for a token.
    """
    tokens = [tokenize(tokenizer, texts_a)]
    if any(text is not None for text in texts_b or ()):
        tokens.append(tokenize(tokenizer, [text or "" for text in texts_b]))
    if doc_stride is None:
        segments, _ = packing.find_segments(tokens)
        examples, num_truncated = np.arange(len(texts_a)), 0
    else:
        segments, examples, lost = text_windows.cut(
            tokens, max_seq_length, doc_stride
        )
        num_truncated = int(np.sum(lost > 0))
    rows = pack_tokens(tokens, segments, tokenizer.vocabulary, max_seq_length)
    return dataclasses.replace(
        rows,
        examples=np.asarray(examples),
        num_truncated=rows.num_truncated + num_truncated,
    )


def tokenize(
    tokenizer: BertTokenizer, texts: Sequence[str], per_call: int = _PER_CALL
) -> tf.RaggedTensor:
    """Returns the tokens of texts, ragged <int32>[n, None].

    Many texts per call make the tokenizer fast; `per_call` bounds memory use.
    """
    starts = range(0, max(len(texts), 1), per_call)
    parts = [tokenizer.tokenize(texts[x : x + per_call]) for x in starts]
    return tf.concat(parts, 0)


def pack_tokens(
    tokens: Sequence[tf.RaggedTensor],
    segments: packing.Segments,
    vocabulary: Vocabulary,
    max_seq_length: int,
) -> PackedRows:
    """Packs the spans `segments` of tokens into rows.

    `tokens` are one or two ragged <int32>[n, None], of texts or of pairs.
    """
    special = (vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id)
    values = [one.flat_values.numpy() for one in tokens]
    ids = np.concatenate([*values, np.array(special, np.int32)])
    parts = []
    for start in range(0, max(len(segments[0][0]), 1), _PER_CALL):
        part = slice(start, start + _PER_CALL)
        layout = packing.lay_out_ragged(
            [(first[part], length[part]) for first, length in segments],
            len(ids) - len(special),
            max_seq_length,
        )
        parts.append(layout._replace(index=ids[layout.index]))
    input_ids, lengths, first_lengths, is_truncated = map(
        np.concatenate, zip(*parts, strict=True)
    )
    return PackedRows(
        input_ids=input_ids,
        row_splits=np.append(0, np.cumsum(lengths)),
        first_lengths=first_lengths,
        pad_id=vocabulary.pad_id,
        num_truncated=int(is_truncated.sum()),
    )

"""Multiple-choice features: packed contexts with choices, and labels.

Shapes:
  N: number of examples.
  B: batch size.
  C: the maximum number of choices.
  T: length of a batch.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_tf.features import INPUT_IDS
from bert_tf.tasks import packed_rows
from bert_tf.tasks.classification.features import LABEL_IDS
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceExample
from bert_tf.tasks.packed_rows import PackedTexts
from bert_tf.text.tokenizer import BertTokenizer


@dataclasses.dataclass(frozen=True)
class MultipleChoiceFeatures:
    """Packed contexts with choices.

    Attributes:
      texts: The context with each choice, example by example.
      example_splits: <int64>[N + 1], the bounds of the examples in `texts`.
      label_ids: <int32>[N], indices of correct choices; None without labels.
    """

    texts: PackedTexts
    example_splits: np.ndarray
    label_ids: np.ndarray | None

    def __len__(self) -> int:
        return len(self.example_splits) - 1

    @property
    def lengths(self) -> np.ndarray:
        """<int64>[N], tokens of the longest choice with its context."""
        return np.maximum.reduceat(self.texts.lengths, self.example_splits[:-1])

    def batch(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns inputs [B, C, T], and `label_ids` if there are any.

        Missing choices are all padding: their `input_mask` is 0 everywhere,
        also at [CLS].
        """
        first = self.example_splits[indices][:, np.newaxis]
        count = self.example_splits[indices + 1][:, np.newaxis] - first
        # The same C in all batches, so that shapes can be static.
        position = np.arange(np.diff(self.example_splits).max())
        is_there = position < count  # [B, C]
        batch = {}
        texts = self.texts.batch((first + position)[is_there], length)
        for name, values in texts.items():
            padding = self.texts.pad_id if name == INPUT_IDS.name else 0
            batch[name] = np.full([*is_there.shape, length], padding, np.int32)
            batch[name][is_there] = values
        if self.label_ids is not None:
            batch[LABEL_IDS] = self.label_ids[indices]
        return batch


def convert_examples_to_features(
    examples: Sequence[MultipleChoiceExample],
    tokenizer: BertTokenizer,
    max_seq_length: int,
) -> MultipleChoiceFeatures:
    """Tokenizes, truncates and packs the context with each of its choices.

    Section 4.4 of the paper: [CLS] context [SEP] choice [SEP]; without a
    context [CLS] choice [SEP]. Pairs are truncated like pairs of texts.

    All examples have a label, or none.

    Raises:
      UserError: If `max_seq_length` leaves no room for a token.
    """
    texts_a, texts_b = [], []
    for example in examples:
        for choice in example.choices:
            has_context = example.context is not None
            texts_a.append(example.context if has_context else choice)
            texts_b.append(choice if has_context else None)
    has_pairs = any(text is not None for text in texts_b)
    counts = [len(example.choices) for example in examples]
    labels = [example.label for example in examples]
    is_labeled = bool(labels) and labels[0] is not None
    return MultipleChoiceFeatures(
        packed_rows.pack_texts(
            texts_a, texts_b if has_pairs else None, tokenizer, max_seq_length
        ),
        np.cumsum([0, *counts]),
        np.array(labels, np.int32) if is_labeled else None,
    )

"""Tagging features: windows of tokens with labels.

Each word is tokenized independently, and only its first token has a label
(section 5.3 of the paper). In "Jim Henson was", the tokens jim, hen, ##son and
was have the labels B-PER, I-PER, none and O.

Shapes:
  W: number of words in all examples.
  N: number of windows.
  B: batch size.
  T: row length.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.tasks import packed_rows
from bert_tf.tasks.packed_rows import LABEL_IDS
from bert_tf.tasks.packed_rows import PackedRows
from bert_tf.tasks.tagging.examples import ALONE
from bert_tf.tasks.tagging.examples import TaggingExample
from bert_tf.text import packing
from bert_tf.text import word_windows
from bert_tf.text.tokenizer import BertTokenizer

LABEL_WEIGHTS = "label_weights"

# Fewer words per call make the tokenizer slower; more words take more memory.
_WORDS_PER_CALL = 16384
_NONE = -1


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TaggingFeatures(PackedRows):
    """Windows [CLS] tokens [SEP] of unequal lengths, without padding.

    Attributes:
      label_ids: <int32>[sum of lengths], the label of each token, or -1 for no
        label; None if the examples have no labels.
      word_rows: <int32>[W], the window in which each word has the most context;
        -1 if the word is in no window.
      word_positions: <int32>[W], the position of each word's first token in its
        window.
      word_splits: <int64>[number of examples + 1]; example i has the words
        `word_splits[i]` to `word_splits[i + 1]` - 1.
      num_words_without_token: The number of words with only characters that
        the tokenizer drops, such as control characters; their tag is O.
      num_truncated_words: The number of words in no window; their tag is O.
    """

    label_ids: np.ndarray | None
    word_rows: np.ndarray
    word_positions: np.ndarray
    word_splits: np.ndarray
    num_words_without_token: int
    num_truncated_words: int

    def batch(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns the inputs and, with labels, `label_ids` and `label_weights`.

        `label_ids` <int32>[B, T] and `label_weights` <float32>[B, T] are 0 at
        tokens without a label.
        """
        batch = super().batch(indices, length)
        if self.label_ids is not None:
            labels = self.place(self.label_ids, indices, length, _NONE)
            batch[LABEL_IDS] = np.maximum(labels, 0)
            batch[LABEL_WEIGHTS] = (labels != _NONE).astype(np.float32)
        return batch


def convert_examples_to_features(
    examples: Sequence[TaggingExample],
    tokenizer: BertTokenizer,
    max_seq_length: int,
    labels: Sequence[str] | None = None,
    context: Literal["document", "sentence"] = "document",
    doc_stride: int | None = 128,
) -> TaggingFeatures:
    """Tokenizes words and cuts them into windows.

    Every window begins with a whole word. A word in several windows is labeled
    and predicted in the window where it has the most context, by the rule of
    _check_is_max_context (run_squad.py:513-547 of the original).

    Args:
      examples: The sentences; sentences of one document are consecutive.
      tokenizer: The tokenizer.
      max_seq_length: The maximum number of tokens in a window, with [CLS] and
        [SEP].
      labels: The names of the labels in the order of their ids; None ignores
        the examples' tags. Tags that are not in `labels` get no label.
      context: With "document", a window may span several sentences.
      doc_stride: The maximum distance between the starts of windows, in
        tokens, at most `max_seq_length` - 2. With None, there is a single
        window, and all later words are dropped.

    Raises:
      UserError: If `max_seq_length` leaves no room for a token, or if `labels`
        are given and an example has no tags.
    """
    tokens = _tokenize(examples, tokenizer)
    lengths = tokens.row_lengths().numpy()
    units, num_units = _units(examples, context)
    windows = word_windows.cut(
        tokens, units, num_units, max_seq_length - 2, doc_stride
    )
    word_rows = windows.rows.numpy()
    word_positions = windows.places.numpy() + 1
    # `cut` appends an empty window for each text without tokens: drop these.
    is_window = windows.tokens.row_lengths() > 0
    window_tokens = tf.ragged.boolean_mask(windows.tokens, is_window)
    segments, _ = packing.find_segments([window_tokens])
    rows = packed_rows.pack_tokens(
        [window_tokens], segments, tokenizer.vocabulary, max_seq_length
    )
    label_ids = None
    is_covered = word_rows != _NONE
    if labels is not None:
        label_ids = np.full(len(rows.input_ids), _NONE, np.int32)
        places = rows.row_splits[word_rows[is_covered]]
        places += word_positions[is_covered]
        label_ids[places] = _convert_tags(examples, labels)[is_covered]
    return TaggingFeatures(
        **vars(rows),
        label_ids=label_ids,
        word_rows=word_rows,
        word_positions=word_positions,
        word_splits=np.cumsum([0, *(len(x.words) for x in examples)]),
        num_words_without_token=int(np.sum(lengths == 0)),
        num_truncated_words=int(np.sum(~is_covered & (lengths > 0))),
    )


def _tokenize(
    examples: Sequence[TaggingExample], tokenizer: BertTokenizer
) -> tf.RaggedTensor:
    """Returns ragged <int32>[W, None]; tokenizes each distinct word once."""
    numbers: dict[str, int] = {}
    order = [
        numbers.setdefault(word, len(numbers))
        for example in examples
        for word in example.words
    ]
    distinct = list(numbers)
    parts = [
        tokenizer.tokenize(distinct[start : start + _WORDS_PER_CALL])
        for start in range(0, max(len(distinct), 1), _WORDS_PER_CALL)
    ]
    return tf.gather(tf.concat(parts, 0), np.array(order, np.int64))


def _units(
    examples: Sequence[TaggingExample], context: Literal["document", "sentence"]
) -> tuple[np.ndarray, int]:
    """Returns each word's unit, <int64>[W], and a number above all units.

    A unit is a document or a sentence; no window spans two units.
    """
    documents = np.array([example.document for example in examples], np.int64)
    is_next = np.zeros(len(examples), bool)
    if context == "document":
        is_next[1:] = documents[1:] == documents[:-1]
        is_next &= documents != ALONE
    units = np.cumsum(~is_next) - 1
    counts = [len(example.words) for example in examples]
    return np.repeat(units, counts), len(examples)


def _convert_tags(
    examples: Sequence[TaggingExample], labels: Sequence[str]
) -> np.ndarray:
    """Returns <int32>[W], the label id of each word; -1 if its tag has none."""
    ids = {label: number for number, label in enumerate(labels)}
    for example in examples:
        if example.tags is None:
            raise UserError(
                "Expected a tag for each word. Received: a sentence without "
                f"tags, {' '.join(example.words)[:50]!r}."
            )
    return np.array(
        [ids.get(tag, _NONE) for x in examples for tag in x.tags], np.int32
    )

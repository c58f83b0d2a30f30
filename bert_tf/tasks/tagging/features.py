"""Tagging features: windows of tokens with labels.

Each word is tokenized independently, and only its first token has a label
(section 5.3 of the paper). In "Jim Henson was", the tokens jim, hen, ##son and
was have the labels B-PER, I-PER, none and O.

Shapes:
  W: number of words in all examples.
  B: batch size.
  T: row length.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
import tensorflow as tf
from absl import logging

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
      word_splits: <int64>[number of examples + 1], the bounds of the words of
        each example.
    """

    label_ids: np.ndarray | None
    word_rows: np.ndarray
    word_positions: np.ndarray
    word_splits: np.ndarray

    def batch(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns the inputs and, with labels, `label_ids` and `label_weights`.

        Both, <int32>[B, T] and <float32>[B, T], are 0 at tokens without label.
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
    """Tokenizes words and cuts them into windows of `max_seq_length` tokens.

    Logs how many words have no token or are in no window; their tag is O.

    Every window begins with a whole word. A word in several windows is labeled
    and predicted in the window where it has the most context, by the rule of
    _check_is_max_context (run_squad.py:513-547 of the original).

    With the `context` "document", a window may span several consecutive
    sentences of a document. Windows start at most `doc_stride` tokens apart, a
    number up to `max_seq_length` - 2. If `doc_stride` is None, a document (or
    sentence) has a single window, and its later words are dropped.

    Tags become indices in `labels`; other tags, and all tags if `labels` is
    None, get no label.

    Raises:
      UserError: If `max_seq_length` leaves no room for a token.
    """
    tokens = _tokenize(examples, tokenizer)
    lengths = tokens.row_lengths().numpy()
    windows = word_windows.cut(
        tokens,
        _units(examples, context),
        len(examples),
        max_seq_length - 2,
        doc_stride,
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
        ids = {label: number for number, label in enumerate(labels)}
        tags = [ids.get(tag, _NONE) for x in examples for tag in x.tags]
        label_ids[places] = np.array(tags, np.int32)[is_covered]
    for is_lost, reason in (
        (
            ~is_covered & (lengths > 0),
            f"are behind --max_seq_length={max_seq_length}; a --doc_stride "
            "above 0 would add windows for them",
        ),
        (lengths == 0, "have only characters that the tokenizer drops"),
    ):
        if count := np.sum(is_lost):
            logging.warning(
                "%d of %d words %s. They are tagged O.",
                count,
                len(lengths),
                reason,
            )
    return TaggingFeatures(
        **vars(rows),
        label_ids=label_ids,
        word_rows=word_rows,
        word_positions=word_positions,
        word_splits=np.cumsum([0, *(len(x.words) for x in examples)]),
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
    tokens = packed_rows.tokenize(tokenizer, list(numbers), _WORDS_PER_CALL)
    return tf.gather(tokens, np.array(order, np.int64))


def _units(
    examples: Sequence[TaggingExample], context: Literal["document", "sentence"]
) -> np.ndarray:
    """Returns the index of each word's document or sentence: <int>[W]."""
    documents = np.array([example.document for example in examples], np.int64)
    is_next = np.zeros(len(examples), bool)
    if context == "document":
        is_next[1:] = documents[1:] == documents[:-1]
        is_next &= documents != ALONE
    counts = [len(example.words) for example in examples]
    return np.repeat(np.cumsum(~is_next) - 1, counts)

"""Classification features: the model's inputs and label ids of examples.

Shapes:
  N: number of examples.
  C: number of labels.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_tf.tasks import packed_rows
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.labels import ProblemType
from bert_tf.tasks.packed_rows import PackedRows
from bert_tf.text.tokenizer import BertTokenizer

LABEL_IDS = "label_ids"


def convert_examples_to_features(
    examples: Sequence[InputExample],
    tokenizer: BertTokenizer,
    max_seq_length: int,
    labels: Sequence[str] | None = None,
    problem_type: ProblemType = "single_label",
    doc_stride: int | None = None,
) -> PackedRows:
    """Tokenizes, truncates and packs examples as the original does.

    Source: convert_single_example (run_classifier.py:377-453 of the
    original). Padding comes with `PackedRows.batch`. All windows
    of an example have its `label_ids`.

    Args:
      examples: All with a label or all without.
      tokenizer: The tokenizer.
      max_seq_length: The maximum number of tokens, with [CLS] and [SEP].
      labels: C labels in the order of their ids; unused for regression.
      problem_type: The problem type of the labels.
      doc_stride: The distance between the starts of windows of long texts, in
        tokens (see `text_windows.cut`); None truncates long texts.

    Raises:
      UserError: If `max_seq_length` leaves no room for a token.
    """
    texts_a = [example.text_a for example in examples]
    texts_b = [example.text_b for example in examples]
    if all(text is None for text in texts_b):
        texts_b = None
    rows = packed_rows.pack_texts(
        texts_a, texts_b, tokenizer, max_seq_length, doc_stride
    )
    label_ids = convert_labels(examples, labels, problem_type)
    if label_ids is None:
        return rows
    targets = {LABEL_IDS: label_ids[rows.examples]}
    return dataclasses.replace(rows, targets=targets)


def convert_labels(
    examples: Sequence[InputExample],
    labels: Sequence[str] | None,
    problem_type: ProblemType,
) -> np.ndarray | None:
    """Returns the `label_ids` of examples; by problem type.

    They are <int32>[N] ids of single labels; <float32>[N, C] with 1 for each of
    several labels; <float32>[N] scores; or None without labels.
    """
    values = [example.label for example in examples]
    if not values or values[0] is None:
        return None
    if problem_type == "regression":
        return np.array(values, np.float32)
    ids = {label: index for index, label in enumerate(labels)}
    if problem_type == "single_label":
        return np.array([ids[label] for label in values], np.int32)
    label_ids = np.zeros([len(values), len(ids)], np.float32)
    for row, names in zip(label_ids, values, strict=True):
        row[[ids[name] for name in names]] = 1.0
    return label_ids

"""Requests that mean something to each head: examples, and rows of any length.

Shapes:
  B: number of rows.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.export.artifact import Artifact
from bert_tf.export.graph_file import Signature
from bert_tf.export.verify import texts as text_expectations
from bert_tf.export.verify.calls import to_inputs
from bert_tf.export.verify.clients import Arrays
from bert_tf.export.verify.expectation import Row
from bert_tf.text.vocabulary import MASK

_NUM_CHOICES = 2
_QUESTION_WORDS = 3
# By the names of the strings that a head takes.
_EXAMPLES: Mapping[frozenset[str], Row] = {
    frozenset({"text"}): {"text": "A fine film from Paris."},
    frozenset({"text", "text_pair"}): {
        "text": "The cat sat on the mat.",
        "text_pair": "Then it slept.",
    },
    frozenset({"question", "context"}): {
        "question": "Where did the cat sit?",
        "context": "The cat sat on the mat, and the dog by the door.",
    },
    frozenset({"text", "choices"}): {
        "text": "The cat sat on the",
        "choices": ["mat.", "number seven."],
    },
}
_MASKED_EXAMPLE = {"text": f"The cat sat on the {MASK}."}


def example(
    artifact: Artifact, signature: Signature, stored: StoredModel
) -> dict[str, Any]:
    """Returns one row for serving_default, as JSON values.

    Args:
      artifact: The export.
      signature: Its serving_default.
      stored: The model.
    """
    if artifact.ids_only:
        inputs = _ids_of(artifact.buckets[0], 1, signature, stored)
        return {name: values[0].tolist() for name, values in inputs.items()}
    if artifact.head == "fill_mask":
        return dict(_MASKED_EXAMPLE)
    return dict(_EXAMPLES[frozenset(signature.inputs)])


def of_bucket(
    bucket: int,
    count: int,
    artifact: Artifact,
    signature: Signature,
    stored: StoredModel,
) -> Arrays:
    """Returns the inputs of serving_default for rows that fill a bucket.

    Args:
      bucket: The length of the rows.
      count: B.
      artifact: The export.
      signature: Its serving_default.
      stored: The model.
    """
    if artifact.ids_only:
        return _ids_of(bucket, count, signature, stored)
    tokenizer = stored.build_tokenizer()
    rows = []
    for seed in range(count):
        (text,) = text_expectations.of_length(tokenizer, [bucket], seed)
        rows.append(_row(text.split(), bucket, artifact, signature))
    return to_inputs(rows)


def _row(
    words: list[str], bucket: int, artifact: Artifact, signature: Signature
) -> Row:
    """Returns a row of so many words that with special pieces it is full."""
    names = set(signature.inputs)

    def join(first: int, last: int) -> str:
        return " ".join(words[first : max(last, first + 1)])

    if names == {"question", "context"}:
        question = min(_QUESTION_WORDS, bucket // 3)
        return {
            "question": join(0, question),
            "context": join(question, bucket - 3),
        }
    half = bucket // 2 - 1
    if names == {"text", "text_pair"}:
        return {"text": join(0, half), "text_pair": join(half, bucket - 3)}
    if names == {"text", "choices"}:
        choice = join(half, bucket - 3)
        return {"text": join(0, half), "choices": [choice] * _NUM_CHOICES}
    if artifact.head == "fill_mask":
        return {"text": f"{MASK} {join(0, bucket - 3)}"}
    return {"text": join(0, bucket - 2)}


def _ids_of(
    bucket: int, count: int, signature: Signature, stored: StoredModel
) -> dict[str, np.ndarray]:
    """Returns full rows of ids of one segment."""
    tokenizer = stored.build_tokenizer()
    vocabulary = tokenizer.vocabulary
    rows = []
    for seed in range(count):
        (text,) = text_expectations.of_length(tokenizer, [bucket - 2], seed)
        ids = tokenizer.tokenize(text).numpy().tolist()
        rows.append([vocabulary.cls_id, *ids, vocabulary.sep_id])
    values = {
        "input_ids": np.array(rows, np.int32),
        "input_mask": np.ones((count, bucket), np.int32),
        "segment_ids": np.zeros((count, bucket), np.int32),
    }
    if signature.inputs["input_ids"].shape.rank == 3:
        values = {
            name: np.repeat(x[:, np.newaxis], _NUM_CHOICES, axis=1)
            for name, x in values.items()
        }
    return values

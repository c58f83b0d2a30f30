"""Warm-up requests, which TensorFlow Serving runs when it loads a model.

They run what TensorFlow does once per row length, so that the first users do
not have to wait for it.

Shapes:
  B: number of rows.
"""

import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.export.artifact import Artifact
from bert_tf.export.serving_module import Signature
from bert_tf.export.verify import texts as test_texts
from bert_tf.export.verify.calls import Arrays
from bert_tf.export.verify.calls import Call
from bert_tf.export.verify.texts import Row
from bert_tf.io import files
from bert_tf.text.vocabulary import MASK

# The maximum of TensorFlow Serving.
MAX_REQUESTS = 1000

_NUM_CHOICES = 2
_QUESTION_WORDS = 3
# Keyed by the names of a head's input strings.
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


def write(path: str, model_name: str, calls: Sequence[Call]) -> None:
    """Writes warm-up requests, a TFRecord file of PredictionLogs."""
    tf.io.gfile.makedirs(os.path.dirname(path))
    with (
        files.atomic_file(path) as temporary,
        tf.io.TFRecordWriter(temporary) as writer,
    ):
        for call in calls:
            log = prediction_log_pb2.PredictionLog()
            request = log.predict_log.request
            request.model_spec.name = model_name
            request.model_spec.signature_name = call.signature
            for name, values in call.inputs.items():
                dtype = tf.string if values.dtype == object else None
                request.inputs[name].CopyFrom(
                    tf.make_tensor_proto(values, dtype, values.shape)
                )
            writer.write(log.SerializeToString())


def read(path: str) -> list[Call]:
    """Reads the calls of a file of warm-up requests.

    Raises:
      UserError: If the file is missing, or TensorFlow Serving would reject it.
    """
    files.require_file(path, "--export_dir")
    calls = []
    try:
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            log = prediction_log_pb2.PredictionLog.FromString(record)
            request = log.predict_log.request
            inputs = {
                name: tf.make_ndarray(proto)
                for name, proto in request.inputs.items()
            }
            calls.append(Call(request.model_spec.signature_name, inputs))
    except tf.errors.DataLossError as error:
        raise UserError(f"{path} is damaged: {error.message}.") from error
    if len(calls) > MAX_REQUESTS:
        raise UserError(
            f"{path} must have at most {MAX_REQUESTS} requests. Received: "
            f"{len(calls)}."
        )
    return calls


def example(
    artifact: Artifact, signature: Signature, stored: StoredModel
) -> dict[str, Any]:
    """Returns one row for serving_default, as JSON values."""
    if artifact.ids_only:
        inputs = _ids_of(artifact.buckets[0], 1, signature, stored)
        return {name: values[0].tolist() for name, values in inputs.items()}
    if artifact.head == "fill_mask":
        return dict(_MASKED_EXAMPLE)
    return dict(_EXAMPLES[frozenset(signature.inputs)])


def bucket_inputs(
    bucket: int,
    count: int,
    artifact: Artifact,
    signature: Signature,
    stored: StoredModel,
) -> Arrays:
    """Returns the inputs of serving_default for B rows that fill a bucket."""
    if artifact.ids_only:
        return _ids_of(bucket, count, signature, stored)
    tokenizer = stored.build_tokenizer()
    rows = []
    for seed in range(count):
        (text,) = test_texts.of_length(tokenizer, [bucket], seed)
        rows.append(_row(text.split(), bucket, artifact, signature))
    return test_texts.to_inputs(rows)


def _row(
    words: list[str], bucket: int, artifact: Artifact, signature: Signature
) -> Row:
    """Returns a row of words that fills the bucket with its special tokens."""
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
    """Returns rows of token ids that fill the bucket, in one segment."""
    tokenizer = stored.build_tokenizer()
    vocabulary = tokenizer.vocabulary
    rows = []
    for seed in range(count):
        (text,) = test_texts.of_length(tokenizer, [bucket - 2], seed)
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

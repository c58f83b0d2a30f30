"""Warm-up requests, which TensorFlow Serving runs when it loads a model.

They run what TensorFlow does once per row length, so that the first users do
not have to wait for it.
"""

import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from bert_tf.errors import UserError
from bert_tf.export.heads.head import ServingHead
from bert_tf.export.serving_module import SERVING
from bert_tf.export.verify import texts as test_texts
from bert_tf.export.verify.reference import Call
from bert_tf.export.verify.texts import Row
from bert_tf.io import files
from bert_tf.text.vocabulary import MASK

# The maximum of TensorFlow Serving.
MAX_REQUESTS = 1000

_NUM_CHOICES = 2
_QUESTION_WORDS = 3
# Keyed by the names of a head's input strings.
_EXAMPLES: Mapping[tuple[str, ...], Row] = {
    ("text",): {"text": "A fine film from Paris."},
    ("text", "text_pair"): {
        "text": "The cat sat on the mat.",
        "text_pair": "Then it slept.",
    },
    ("question", "context"): {
        "question": "Where did the cat sit?",
        "context": "The cat sat on the mat, and the dog by the door.",
    },
    ("text", "choices"): {
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


def requests(
    head: ServingHead, ids_only: bool = False, counts: Sequence[int] = (1,)
) -> list[Call]:
    """Returns requests of rows that fill each of the buckets of a head.

    Args:
      head: The head.
      ids_only: Whether the signature takes token ids instead of strings.
      counts: The numbers of rows of the requests for a bucket.
    """
    calls = []
    for bucket in head.buckets:
        for count in counts:
            rows = [_row(head, bucket, seed) for seed in range(count)]
            inputs = test_texts.to_inputs(rows)
            if ids_only:
                packed = head.pack(
                    {x: tf.constant(v, tf.string) for x, v in inputs.items()}
                ).inputs
                inputs = {x: packed[x].numpy() for x in head.ids_specs()}
            calls.append(Call(SERVING, inputs))
    return calls


def _row(head: ServingHead, bucket: int, seed: int) -> Row:
    """Returns a row of words that fills the bucket with its special tokens."""
    first, *others = head.inputs
    room = bucket - 2 - len(others)
    size = room
    if others:
        size = bucket // 2 - 1
    if "question" in head.inputs:
        size = min(_QUESTION_WORDS, bucket // 3)
    if "masked_lm_logits" in head.outputs:
        size -= 1
    text, other = test_texts.of_length(
        head.tokenizer, [max(size, 1), max(room - size, 1)], seed
    )
    if "masked_lm_logits" in head.outputs:
        text = f"{MASK} {text}"
    row: dict[str, Any] = {first: text}
    for name in others:
        row[name] = [other] * _NUM_CHOICES if name == "choices" else other
    return row


def example(head: ServingHead, ids_only: bool = False) -> dict[str, Any]:
    """Returns one row for serving_default, as JSON values."""
    if ids_only:
        inputs = requests(head, ids_only)[0].inputs
        return {name: values[0].tolist() for name, values in inputs.items()}
    if "masked_lm_logits" in head.outputs:
        return dict(_MASKED_EXAMPLE)
    return dict(_EXAMPLES[head.inputs])

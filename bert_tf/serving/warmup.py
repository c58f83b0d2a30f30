"""Runs a version's warmup requests before it serves."""

import os

import tensorflow as tf
from google.protobuf import message
from tensorflow_serving.apis import prediction_log_pb2

from bert_tf.serving import calls
from bert_tf.serving import errors
from bert_tf.serving.servable import Servable

WARMUP_FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")
# saved_model_warmup_util.h of TensorFlow Serving.
_MAX_RECORDS = 1000

_CALLS = {
    "predict_log": lambda *args: [calls.predict(*args)],
    "classify_log": lambda *args: [calls.classify(*args)],
    "regress_log": lambda *args: [calls.regress(*args)],
    "multi_inference_log": calls.multi_inference,
}


def run(servable: Servable, directory: str) -> int:
    """Runs the requests in a version's warmup file, if it has one.

    Args:
      servable: The model.
      directory: The version's directory.

    Returns:
      The number of requests.

    Raises:
      RequestError: If a request fails; then the version must not be served.
    """
    path = os.path.join(directory, WARMUP_FILE)
    if not os.path.exists(path):
        return 0
    count = 0
    try:
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            count += 1
            if count > _MAX_RECORDS:
                raise errors.invalid(
                    "Number of warmup records exceeds the maximum "
                    f"({_MAX_RECORDS}) at {path}"
                )
            _run_record(servable, record, path)
    except tf.errors.DataLossError as error:
        raise errors.RequestError(
            tf.errors.DATA_LOSS,
            f"{error.message}. Please verify your warmup data is in TFRecord "
            "format.",
        ) from error
    return count


def _run_record(servable: Servable, record: bytes, path: str) -> None:
    log = prediction_log_pb2.PredictionLog()
    try:
        log.ParseFromString(record)
    except message.DecodeError as error:
        raise errors.invalid(
            f"Failed to parse warmup record: {record[:80]!r} from {path}"
        ) from error
    kind = log.WhichOneof("log_type")
    request = getattr(log, kind).request if kind in _CALLS else None
    if request is None:
        raise errors.unimplemented(
            f"Unsupported log_type for warmup: {kind}. In {path}"
        )
    for call in _CALLS[kind](request, servable):
        try:
            outputs = servable.run(call.signature, call.inputs, call.outputs)
        except tf.errors.OpError as error:
            raise errors.from_exception(error) from error
        call.respond(outputs)

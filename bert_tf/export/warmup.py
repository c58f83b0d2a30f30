"""Requests that TensorFlow Serving sends to itself when it loads a model.

So the first users do not wait for what is done once for each length.
"""

import os
from collections.abc import Sequence

import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from bert_tf.errors import UserError
from bert_tf.export.verify import clients
from bert_tf.export.verify.clients import Call
from bert_tf.io import files

# TensorFlow Serving refuses more.
MAX_REQUESTS = 1000


def write(path: str, model_name: str, calls: Sequence[Call]) -> None:
    """Writes warm-up requests, a TFRecord file of PredictionLogs.

    Args:
      path: The file.
      model_name: What servers call the model.
      calls: The calls to make.
    """
    tf.io.gfile.makedirs(os.path.dirname(path))
    with (
        files.atomic_file(path) as temporary,
        tf.io.TFRecordWriter(temporary) as writer,
    ):
        for call in calls:
            log = prediction_log_pb2.PredictionLog()
            log.predict_log.request.CopyFrom(
                clients.predict_request(model_name, call)
            )
            writer.write(log.SerializeToString())


def read(path: str) -> list[Call]:
    """Returns the calls that a file of warm-up requests makes.

    Raises:
      UserError: If there is no such file, or TensorFlow Serving would not
        read it.
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

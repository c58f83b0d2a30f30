"""What tf.saved_model.save cannot be told, put into its file afterwards."""

import os
from collections.abc import Mapping

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.saved_model import fingerprinting_utils

_FILE = "saved_model.pb"


def set_methods(directory: str, methods: Mapping[str, str]) -> None:
    """Says of signatures which of a server's interfaces they are for.

    Args:
      directory: A SavedModel.
      methods: Signature to method, such as "tensorflow/serving/classify".
    """
    path = os.path.join(directory, _FILE)
    saved = saved_model_pb2.SavedModel()
    with tf.io.gfile.GFile(path, "rb") as file:
        saved.ParseFromString(file.read())
    (graph,) = saved.meta_graphs
    for name, method in methods.items():
        graph.signature_def[name].method_name = method
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(saved.SerializeToString(deterministic=True))
    # It has a checksum of the file.
    fingerprinting_utils.write_fingerprint(directory)

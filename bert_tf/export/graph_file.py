"""Reads the graph and the signatures of a saved_model.pb, and edits methods."""

import dataclasses
import os
from collections.abc import Mapping

import tensorflow as tf
from google.protobuf import message
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.saved_model import fingerprinting_utils

from bert_tf.errors import UserError
from bert_tf.io import files

FILE = "saved_model.pb"
# tf.saved_model.save adds this signature.
_INTERNAL = "__saved_model_init_op"


@dataclasses.dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a signature, by name."""

    inputs: Mapping[str, tf.TensorSpec]
    outputs: Mapping[str, tf.TensorSpec]


def read(version_directory: str) -> meta_graph_pb2.MetaGraphDef:
    """Returns the graph that servers load.

    Raises:
      UserError: If the file is missing or cannot be read.
    """
    path = os.path.join(version_directory, FILE)
    files.require_file(path, "--export_dir")
    saved_model = saved_model_pb2.SavedModel()
    try:
        saved_model.ParseFromString(files.read_bytes(path))
    except message.DecodeError as error:
        raise UserError(f"{path} is not a SavedModel: {error}.") from error
    if len(saved_model.meta_graphs) != 1:
        raise UserError(
            f"{path} must hold one graph. Received: "
            f"{len(saved_model.meta_graphs)}."
        )
    return saved_model.meta_graphs[0]


def read_signatures(version_directory: str) -> dict[str, Signature]:
    """Returns the signatures by name.

    Raises:
      UserError: If the SavedModel cannot be read.
    """
    return to_signatures(read(version_directory).signature_def)


def to_signatures(
    definitions: Mapping[str, meta_graph_pb2.SignatureDef],
) -> dict[str, Signature]:
    """Returns the signatures by name, without TensorFlow's internal one."""
    return {
        name: Signature(_specs(signature.inputs), _specs(signature.outputs))
        for name, signature in definitions.items()
        if name != _INTERNAL
    }


def _specs(tensors) -> dict[str, tf.TensorSpec]:
    return {
        name: tf.TensorSpec(info.tensor_shape, info.dtype, name)
        for name, info in tensors.items()
    }


def set_methods(directory: str, methods: Mapping[str, str]) -> None:
    """Sets the method names of signatures, which tf.saved_model.save cannot.

    Args:
      directory: A SavedModel.
      methods: Signature name to method name, such as
        "tensorflow/serving/classify".
    """
    path = os.path.join(directory, FILE)
    saved = saved_model_pb2.SavedModel()
    with tf.io.gfile.GFile(path, "rb") as file:
        saved.ParseFromString(file.read())
    (graph,) = saved.meta_graphs
    for name, method in methods.items():
        graph.signature_def[name].method_name = method
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(saved.SerializeToString(deterministic=True))
    # The fingerprint has a checksum of the file.
    fingerprinting_utils.write_fingerprint(directory)

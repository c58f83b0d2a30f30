"""What stands in a saved_model.pb: one graph and its signatures."""

import dataclasses
import os
from collections.abc import Mapping

import tensorflow as tf
from google.protobuf import message
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf.errors import UserError
from bert_tf.io import files

FILE = "saved_model.pb"
# What tf.saved_model.save adds beside the signatures.
_INTERNAL = "__saved_model_init_op"


@dataclasses.dataclass(frozen=True)
class Signature:
    """What a signature takes and gives, by name."""

    inputs: Mapping[str, tf.TensorSpec]
    outputs: Mapping[str, tf.TensorSpec]


def read(version_directory: str) -> meta_graph_pb2.MetaGraphDef:
    """Returns the graph that servers load.

    Raises:
      UserError: If there is none, or it cannot be read.
    """
    path = os.path.join(version_directory, FILE)
    files.require_file(path, "--export_dir")
    saved_model = saved_model_pb2.SavedModel()
    try:
        saved_model.ParseFromString(files.read_bytes(path))
    except message.DecodeError as error:
        raise UserError(f"{path} is no SavedModel: {error}.") from error
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
    """Returns signatures by name, but for what is no user's."""
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

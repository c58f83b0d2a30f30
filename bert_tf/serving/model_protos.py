"""Builds the response protos for model status and metadata."""

from tensorflow_serving.apis import get_model_metadata_pb2
from tensorflow_serving.apis import get_model_status_pb2

from bert_tf.serving.model_manager import ModelManager
from bert_tf.serving.servable import Servable


def status(
    manager: ModelManager,
    name: str,
    version: int | None = None,
    label: str | None = None,
) -> get_model_status_pb2.GetModelStatusResponse:
    """Returns the state of a model's versions, the newest first.

    Args:
      manager: The manager of the models.
      name: The model's name.
      version: One version; by default all.
      label: A label of the version, instead of its number.

    Raises:
      RequestError: If there is no such model or version.
    """
    response = get_model_status_pb2.GetModelStatusResponse()
    for number, state, error in manager.status(name, version, label):
        entry = response.model_version_status.add(
            version=number,
            state=get_model_status_pb2.ModelVersionStatus.State.Value(state),
        )
        if error is None:
            entry.status.error_code = 0
        else:
            entry.status.error_code = error.code
            entry.status.error_message = error.message
    return response


def metadata(
    servable: Servable,
) -> get_model_metadata_pb2.GetModelMetadataResponse:
    """Returns the signatures of a version."""
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for name, definition in servable.signature_defs().items():
        signatures.signature_def[name].CopyFrom(definition)
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    response.model_spec.name = servable.name
    response.model_spec.version.value = servable.version
    response.metadata["signature_def"].Pack(signatures)
    return response

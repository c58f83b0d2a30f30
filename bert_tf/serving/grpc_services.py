"""The gRPC interface: TensorFlow Serving's two services."""

import asyncio
from collections.abc import Callable

import grpc
from google.protobuf import message
from tensorflow_serving.apis import get_model_metadata_pb2
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import inference_pb2
from tensorflow_serving.apis import model_management_pb2
from tensorflow_serving.apis import model_pb2
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import prediction_service_pb2_grpc

from bert_tf.serving import calls as inference
from bert_tf.serving import errors
from bert_tf.serving import model_config
from bert_tf.serving import model_protos
from bert_tf.serving.servable import Servable
from bert_tf.serving.service import Service

# Messages of any size, as in TensorFlow Serving. A port that is in use is an
# error.
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_SIGNATURE_DEF = "signature_def"


def server(service: Service, address: str) -> grpc.aio.Server:
    """Returns a gRPC server, to be started in the running event loop.

    Args:
      service: The service that answers requests.
      address: Host and port to listen on.

    Raises:
      RuntimeError: If it cannot listen there.
    """
    grpc_server = grpc.aio.server(options=_OPTIONS)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        _PredictionService(service), grpc_server
    )
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(
        _ModelService(service), grpc_server
    )
    if not grpc_server.add_insecure_port(address):
        raise RuntimeError(f"Cannot listen at {address}.")
    return grpc_server


class _PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """The gRPC service for predictions; method names are the protocol's."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def Predict(self, request, context):
        return await self._answer(
            "Predict", inference.predict, request, context
        )

    async def Classify(self, request, context):
        return await self._answer(
            "Classify", inference.classify, request, context
        )

    async def Regress(self, request, context):
        return await self._answer(
            "Regress", inference.regress, request, context
        )

    async def MultiInference(self, request, context):
        try:
            async with self._service.counted("MultiInference") as counted:
                inference.check_tasks(request)
                model = _model(request.tasks[0].model_spec)
                with self._service.manager.use(**model) as servable:
                    counted.servable = servable
                    calls = inference.multi_inference(request, servable)
                    outputs = await asyncio.gather(
                        *(self._service.compute(servable, x) for x in calls)
                    )
                    return inference_pb2.MultiInferenceResponse(
                        results=[
                            call.respond(values)
                            for call, values in zip(calls, outputs, strict=True)
                        ]
                    )
        except errors.RequestError as error:
            await _abort(context, error)

    async def GetModelMetadata(self, request, context):
        try:
            async with self._service.counted("GetModelMetadata") as counted:
                _check_metadata(request)
                model = _model(request.model_spec)
                with self._service.manager.use(**model) as servable:
                    counted.servable = servable
                    return model_protos.metadata(servable)
        except errors.RequestError as error:
            await _abort(context, error)

    async def _answer(
        self,
        method: str,
        make_call: Callable[[message.Message, Servable], inference.Call],
        request: message.Message,
        context: grpc.aio.ServicerContext,
    ) -> message.Message:
        try:
            async with self._service.counted(method) as counted:
                if not request.HasField("model_spec"):
                    raise errors.invalid("Missing ModelSpec")
                model = _model(request.model_spec)
                with self._service.manager.use(**model) as servable:
                    counted.servable = servable
                    call = make_call(request, servable)
                    outputs = await self._service.compute(servable, call)
                    return call.respond(outputs)
        except errors.RequestError as error:
            await _abort(context, error)


class _ModelService(model_service_pb2_grpc.ModelServiceServicer):
    """The gRPC service for model states; method names are the protocol's."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def GetModelStatus(
        self, request, context
    ) -> get_model_status_pb2.GetModelStatusResponse:
        try:
            async with self._service.counted("GetModelStatus"):
                if not request.HasField("model_spec"):
                    raise errors.invalid("Missing ModelSpec")
                return model_protos.status(
                    self._service.manager, **_model(request.model_spec)
                )
        except errors.RequestError as error:
            await _abort(context, error)

    async def HandleReloadConfigRequest(
        self, request, context
    ) -> model_management_pb2.ReloadConfigResponse:
        try:
            async with self._service.counted("HandleReloadConfigRequest"):
                try:
                    configs = model_config.from_proto(request.config)
                except ValueError as error:
                    raise errors.invalid(str(error)) from error
                await asyncio.to_thread(
                    self._service.manager.reconfigure, configs
                )
                return model_management_pb2.ReloadConfigResponse()
        except errors.RequestError as error:
            await _abort(context, error)


def _check_metadata(
    request: get_model_metadata_pb2.GetModelMetadataRequest,
) -> None:
    if not request.HasField("model_spec"):
        raise errors.invalid("Missing ModelSpec")
    if not request.metadata_field:
        raise errors.invalid(
            "GetModelMetadataRequest must specify at least one metadata_field"
        )
    for field in request.metadata_field:
        if field != _SIGNATURE_DEF:
            raise errors.invalid(f"Metadata field {field} is not supported")


def _model(spec: model_pb2.ModelSpec) -> dict:
    """Returns the model and version of a request, for `ModelManager.use`."""
    choice = spec.WhichOneof("version_choice")
    return {
        "name": spec.name,
        "version": spec.version.value if choice == "version" else None,
        "label": spec.version_label if choice == "version_label" else None,
    }


async def _abort(
    context: grpc.aio.ServicerContext, error: errors.RequestError
) -> None:
    await context.abort(_CODES[error.code], error.message)

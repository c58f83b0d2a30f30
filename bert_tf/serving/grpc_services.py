"""The gRPC interface: TensorFlow Serving's two services."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Coroutine
from collections.abc import Mapping
from collections.abc import Sequence

import grpc
from google.protobuf import message
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import inference_pb2
from tensorflow_serving.apis import model_management_pb2
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import prediction_service_pb2_grpc

from bert_tf.serving import calls as inference
from bert_tf.serving import errors
from bert_tf.serving import model_config
from bert_tf.serving import service as services
from bert_tf.serving.bodies import LARGE_BYTES
from bert_tf.serving.bodies import num_bytes
from bert_tf.serving.service import Service

# Answers of any size, as in TensorFlow Serving. A port that is in use is an
# error.
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_SIGNATURE_DEF = "signature_def"


def server(
    service: Service,
    address: str,
    options: Mapping[str, int],
    allow_reload: bool = False,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    credentials: grpc.ServerCredentials | None = None,
) -> grpc.aio.Server:
    """Returns a gRPC server, to be started in the running event loop.

    Args:
      service: The models.
      address: Host and port to listen at.
      options: gRPC's options, by name.
      allow_reload: Whether clients may replace the models.
      interceptors: What sees a call before its message is decoded.
      credentials: The keys for TLS; None for none.

    Raises:
      RuntimeError: If it cannot listen there.
    """
    grpc_server = grpc.aio.server(
        interceptors=[*interceptors, _Decoder(service)],
        options=(
            *_OPTIONS,
            # Larger messages than the limit are refused with the flag's name
            # by `_Decoder`, still larger ones by gRPC.
            (
                "grpc.max_receive_message_length",
                2 * service.limits.max_request_bytes,
            ),
            *options.items(),
        ),
    )
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        _PredictionService(service), grpc_server
    )
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(
        _ModelService(service, allow_reload), grpc_server
    )
    if credentials is None:
        port = grpc_server.add_insecure_port(address)
    else:
        port = grpc_server.add_secure_port(address, credentials)
    if not port:
        raise RuntimeError(f"Cannot listen at {address}.")
    return grpc_server


class _Decoder(grpc.aio.ServerInterceptor):
    """Decodes messages within the limits, large ones in a thread."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        method = handler_call_details.method.rsplit("/", 1)[-1]

        async def answer(content: bytes, context: grpc.aio.ServicerContext):
            with self._service.bodies.room() as reserve:
                try:
                    self._service.bodies.check_size(len(content))
                    if len(content) > LARGE_BYTES:
                        reserve(len(content))
                    request = await self._service.parse(
                        len(content),
                        _decode,
                        handler.request_deserializer,
                        content,
                    )
                except errors.RequestError as error:
                    async with _counted(self._service, method, context):
                        raise error
                del content
                response = await handler.unary_unary(request, context)
            await self._reserve(method, response, context)
            return response

        return grpc.unary_unary_rpc_method_handler(
            answer, response_serializer=handler.response_serializer
        )

    async def _reserve(
        self,
        method: str,
        response: message.Message,
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Reserves the memory of a large answer until the client has it."""
        size = response.ByteSize()
        if size <= LARGE_BYTES:
            return
        with contextlib.ExitStack() as stack:
            reserve = stack.enter_context(self._service.bodies.room())
            try:
                reserve(size)
            except errors.RequestError as error:
                async with _counted(self._service, method, context):
                    raise error
            kept = stack.pop_all()
            context.add_done_callback(lambda _: kept.close())


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
        async with _counted(
            self._service, "MultiInference", context
        ) as counted:
            inference.check_tasks(request)
            with self._service.manager.use(
                **_model(request.tasks[0])
            ) as servable:
                counted.servable = servable
                calls = await self._service.parse(
                    request.ByteSize(),
                    inference.multi_inference,
                    request,
                    servable,
                    self._service.limits,
                )
                outputs = await _all(
                    [self._service.compute(counted, servable, x) for x in calls]
                )
                return inference_pb2.MultiInferenceResponse(
                    results=[
                        call.respond(values)
                        for call, values in zip(calls, outputs, strict=True)
                    ]
                )

    async def GetModelMetadata(self, request, context):
        async with _counted(
            self._service, "GetModelMetadata", context
        ) as counted:
            model = _model(request)
            _check_fields(request.metadata_field)
            with self._service.manager.use(**model) as servable:
                counted.servable = servable
                return services.metadata(servable)

    async def _answer(
        self,
        method: str,
        make_call: Callable[..., inference.Call],
        request: message.Message,
        context: grpc.aio.ServicerContext,
    ) -> message.Message:
        async with _counted(self._service, method, context) as counted:
            with self._service.manager.use(**_model(request)) as servable:
                counted.servable = servable
                call = await self._service.parse(
                    request.ByteSize(),
                    make_call,
                    request,
                    servable,
                    self._service.limits,
                )
                outputs = await self._service.compute(counted, servable, call)
                if num_bytes(outputs) <= LARGE_BYTES:
                    return call.respond(outputs)
                return await asyncio.to_thread(call.respond, outputs)


class _ModelService(model_service_pb2_grpc.ModelServiceServicer):
    """The gRPC service for model states; method names are the protocol's."""

    def __init__(self, service: Service, allow_reload: bool) -> None:
        self._service = service
        self._allow_reload = allow_reload

    async def GetModelStatus(
        self, request, context
    ) -> get_model_status_pb2.GetModelStatusResponse:
        async with _counted(self._service, "GetModelStatus", context):
            return self._service.status(**_model(request))

    async def HandleReloadConfigRequest(
        self, request, context
    ) -> model_management_pb2.ReloadConfigResponse:
        async with _counted(
            self._service, "HandleReloadConfigRequest", context
        ):
            if not self._allow_reload:
                raise errors.permission_denied(
                    "Models are reloaded only with --allow_reload."
                )
            try:
                configs = model_config.from_proto(request.config)
            except ValueError as error:
                raise errors.invalid(str(error)) from error
            await asyncio.to_thread(self._service.manager.reconfigure, configs)
            return model_management_pb2.ReloadConfigResponse()


@contextlib.asynccontextmanager
async def _counted(
    service: Service, method: str, context: grpc.aio.ServicerContext
) -> AsyncIterator[services.Request]:
    """Counts a request, and answers it with its error if there is one."""
    try:
        async with service.counted(method) as counted:
            yield counted
    except errors.RequestError as error:
        await context.abort(_CODES[error.code], error.message)


async def _all(coroutines: Sequence[Coroutine]) -> list:
    """Returns the results of coroutines; ends all when one fails."""
    tasks = [asyncio.create_task(x) for x in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        del tasks, task  # As in `_while_connected` of rest.py.


def _decode(
    deserialize: Callable[[bytes], message.Message], content: bytes
) -> message.Message:
    try:
        return deserialize(content)
    except message.DecodeError as error:
        raise errors.invalid("The message is not a valid proto.") from error


def _check_fields(fields: Sequence[str]) -> None:
    if not fields:
        raise errors.invalid(
            "GetModelMetadataRequest must specify at least one metadata_field"
        )
    for field in fields:
        if field != _SIGNATURE_DEF:
            raise errors.invalid(
                f"Metadata field {errors.shortened(field)} is not supported"
            )


def _model(request: message.Message) -> dict:
    """Returns the model and version of a request, for `ModelManager.use`."""
    if not request.HasField("model_spec"):
        raise errors.invalid("Missing ModelSpec")
    spec = request.model_spec
    choice = spec.WhichOneof("version_choice")
    return {
        "name": spec.name,
        "version": spec.version.value if choice == "version" else None,
        "label": spec.version_label if choice == "version_label" else None,
    }

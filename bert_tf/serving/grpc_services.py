"""The gRPC interface: TensorFlow Serving's two services."""

import asyncio
import collections
import contextlib
import functools
import itertools
import weakref
from collections.abc import AsyncIterator
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Coroutine
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TypeVar

import grpc
from google.protobuf import message
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import inference_pb2
from tensorflow_serving.apis import model_management_pb2
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import prediction_service_pb2_grpc

from bert_tf.serving import bodies
from bert_tf.serving import calls as inference
from bert_tf.serving import errors
from bert_tf.serving import model_config
from bert_tf.serving import service as services
from bert_tf.serving.service import Service

_RELOAD = "HandleReloadConfigRequest"
# Maximum calls in progress. gRPC buffers up to 64 kB for each waiting call.
_MAX_CALLS = 1000
# Maximum messages that arrive at a time, because gRPC buffers whole messages.
_MAX_ARRIVING = 32
# Maximum unread answers. A call with one still counts toward `_MAX_CALLS`.
_MAX_UNREAD = 500
# Three copies of an unread answer are in memory: proto, bytes, gRPC's buffer.
_ANSWER_COPIES = 3
# A decoded message takes at most its encoded bytes plus this many per field.
_FIELD_BYTES = 256
_T = TypeVar("_T")
# Maps the asyncio task that runs a call to the task that awaits the call's end.
_LISTENERS = weakref.WeakKeyDictionary()


def server(
    service: Service,
    address: str,
    options: Mapping[str, int],
    body_seconds: float,
    allow_reload: bool = False,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    credentials: grpc.ServerCredentials | None = None,
) -> grpc.aio.Server:
    """Returns a gRPC server, to be started in the running event loop.

    `body_seconds` is the time for a client to send a message, or to read an
    answer. With `allow_reload`, clients may replace the models. `interceptors`
    see a call before its message is decoded.

    Raises:
      RuntimeError: If the server cannot listen at the address.
    """
    asyncio.get_running_loop().set_task_factory(_make_task)
    decoder = _Decoder(service, body_seconds, allow_reload)
    grpc_server = grpc.aio.server(
        interceptors=[*interceptors, decoder],
        maximum_concurrent_rpcs=_MAX_CALLS,
        options=(
            # Allow answers of any size, and do not share the port.
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            # For messages above the limit, `_Decoder` raises an error that
            # names the flag. So gRPC itself accepts twice the limit.
            (
                "grpc.max_receive_message_length",
                2 * service.limits.max_grpc_message_bytes,
            ),
            *options.items(),
        ),
    )
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        _PredictionService(service), grpc_server
    )
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(
        _ModelService(service), grpc_server
    )
    if credentials is None:
        port = grpc_server.add_insecure_port(address)
    else:
        port = grpc_server.add_secure_port(address, credentials)
    if not port:
        raise RuntimeError(f"Cannot listen at {address}.")
    return grpc_server


def _make_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine, **options
) -> asyncio.Task:
    """Creates a task for the event loop, and stores the two tasks of a call.

    `_end_call` cancels these two tasks, because grpc itself can only end whole
    connections. If a version of grpc renames its private function
    `_handle_exceptions`, every call fails with a KeyError.
    """
    task = asyncio.Task(coroutine, loop=loop, **options)
    # `getattr`, because some coroutines, such as `aclose()`, have no name.
    if getattr(coroutine, "__name__", "") == "_handle_exceptions":
        _LISTENERS[task] = asyncio.current_task(loop)
    return task


def _end_call(task: asyncio.Task, listener: asyncio.Task) -> None:
    listener.cancel()
    task.cancel()


def _client(context: grpc.aio.ServicerContext) -> tuple[str, str]:
    """Returns the host and the connection of a call."""
    peer = context.peer()
    return peer.rpartition(":")[0], peer


def _take_oldest_of_most(clients: dict[_T, tuple[str, str]]) -> _T:
    """Removes and returns the oldest key of the busiest host and connection."""
    counts = collections.Counter(itertools.chain(*clients.values()))
    oldest = max(clients, key=lambda x: [counts[y] for y in clients[x]])
    del clients[oldest]
    return oldest


class _Decoder(grpc.aio.ServerInterceptor):
    """Receives messages within the limits, and decodes large ones in a thread.

    `server` describes the arguments.
    """

    def __init__(
        self, service: Service, body_seconds: float, allow_reload: bool
    ) -> None:
        self._service = service
        self._body_seconds = body_seconds
        self._allow_reload = allow_reload
        # The timer of each arriving message -> its client, in order of arrival.
        self._arriving: dict[asyncio.Timeout, tuple[str, str]] = {}
        self._unread: dict[asyncio.Task, tuple[str, str]] = {}

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
        metadata = handler_call_details.invocation_metadata
        header_bytes = sum(len(key) + len(value) for key, value in metadata)

        async def answer(_, context: grpc.aio.ServicerContext):
            with self._service.bodies.room() as reserve:
                try:
                    # Until clients confirm the limit, gRPC allows long headers.
                    limits, subject = self._service.limits, "The metadata"
                    errors.check_limit(
                        header_bytes, limits, "max_header_bytes", subject
                    )
                    request = await self._request(
                        method, handler.request_deserializer, context, reserve
                    )
                except (errors.RequestError, TimeoutError) as error:
                    async with _counted(self._service, method, context):
                        raise error
                response = await handler.unary_unary(request, context)
            await self._limit(method, response, context)
            return response

        # Use a stream: a unary handler would wait for a message forever.
        return grpc.stream_unary_rpc_method_handler(
            answer, response_serializer=handler.response_serializer
        )

    async def _request(
        self,
        method: str,
        deserialize: Callable[[bytes], message.Message],
        context: grpc.aio.ServicerContext,
        reserve: Callable[[int], None],
    ) -> message.Message:
        """Returns the decoded message of a call."""
        if method == _RELOAD and not self._allow_reload:
            raise errors.permission_denied(
                "Models are reloaded only with --allow_reload."
            )
        content = await self._receive(context)
        if content is grpc.aio.EOF:
            raise errors.invalid("The call has no message.")
        memory = size = len(content)
        limits = self._service.limits
        for flag in ("max_request_bytes", "max_grpc_message_bytes"):
            errors.check_limit(size, limits, flag, "The message")
        if size > bodies.COUNTED_BYTES:
            kind = deserialize.__self__.DESCRIPTOR
            memory += _FIELD_BYTES * await self._service.parse(
                size, bodies.count_fields, content, kind, limits
            )
        if memory > bodies.LARGE_BYTES:
            reserve(memory)
        return await self._service.parse(memory, _decode, deserialize, content)

    async def _receive(self, context: grpc.aio.ServicerContext) -> bytes:
        """Returns the message of a call; raises TimeoutError if it is late."""
        if len(self._arriving) >= _MAX_ARRIVING:
            _take_oldest_of_most(self._arriving).reschedule(0)
        async with asyncio.timeout(self._body_seconds) as limit:
            self._arriving[limit] = _client(context)
            try:
                return await context.read()
            finally:
                self._arriving.pop(limit, None)

    async def _limit(
        self,
        method: str,
        response: message.Message,
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Reserves memory until an answer is read; limits the reading time."""
        task = asyncio.current_task()
        if len(self._unread) >= _MAX_UNREAD:
            ended = _take_oldest_of_most(self._unread)
            _end_call(ended, _LISTENERS[ended])
        self._unread[task] = _client(context)
        task.add_done_callback(lambda x: self._unread.pop(x, None))
        with contextlib.ExitStack() as stack:
            reserve = stack.enter_context(self._service.bodies.room())
            size = response.ByteSize()
            if size > bodies.LARGE_BYTES:
                try:
                    reserve(_ANSWER_COPIES * size)
                except errors.RequestError as error:
                    async with _counted(self._service, method, context):
                        raise error
            timer = asyncio.get_running_loop().call_later(
                self._body_seconds, _end_call, task, _LISTENERS[task]
            )
            stack.callback(timer.cancel)
            reserved = stack.pop_all()
            # Use `task`: a callback of `context` would make a reference cycle.
            task.add_done_callback(lambda _: reserved.close())


class _PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """The gRPC service for predictions; method names are the protocol's."""

    def __init__(self, service: Service) -> None:
        self._service = service
        of = functools.partial
        self.Predict = of(self._answer, "Predict", inference.predict)
        self.Classify = of(self._answer, "Classify", inference.classify)
        self.Regress = of(self._answer, "Regress", inference.regress)

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
                _reserve_repeated(counted, request, calls[0])
                results = await _all(
                    [self._service.answer(counted, call) for call in calls]
                )
                return inference_pb2.MultiInferenceResponse(results=results)

    async def GetModelMetadata(self, request, context):
        async with _counted(
            self._service, "GetModelMetadata", context
        ) as counted:
            model = _model(request)
            if not request.metadata_field:
                raise errors.invalid(
                    "GetModelMetadataRequest must specify at least one "
                    "metadata_field"
                )
            for field in request.metadata_field:
                if field != "signature_def":
                    shown = errors.shortened(field)
                    raise errors.invalid(
                        f"Metadata field {shown} is not supported"
                    )
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
                    inference.parsed_size(request),
                    make_call,
                    request,
                    servable,
                    self._service.limits,
                )
                _reserve_repeated(counted, request, call)
                return await self._service.answer(counted, call)


class _ModelService(model_service_pb2_grpc.ModelServiceServicer):
    """The gRPC service for model states; method names are the protocol's."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def GetModelStatus(
        self, request, context
    ) -> get_model_status_pb2.GetModelStatusResponse:
        async with _counted(self._service, "GetModelStatus", context):
            return self._service.status(**_model(request))

    async def HandleReloadConfigRequest(
        self, request, context
    ) -> model_management_pb2.ReloadConfigResponse:
        async with _counted(self._service, _RELOAD, context):
            try:
                configs = await self._service.parse(
                    request.ByteSize(), model_config.from_proto, request.config
                )
            except ValueError as error:
                raise errors.invalid(str(error)) from error
            await asyncio.to_thread(self._service.manager.reconfigure, configs)
            return model_management_pb2.ReloadConfigResponse()


@contextlib.asynccontextmanager
async def _counted(
    service: Service, method: str, context: grpc.aio.ServicerContext
) -> AsyncIterator[services.Request]:
    """Counts a request, and sends its error, if any, to the client."""
    try:
        async with service.counted(method) as counted:
            yield counted
    except errors.RequestError as error:
        await context.abort(errors.GRPC_CODES[error.code], error.message)


def _reserve_repeated(
    counted: services.Request, request: message.Message, call: inference.Call
) -> None:
    """Reserves memory if the inputs are much larger than their message."""
    size = bodies.num_bytes(call.inputs) - request.ByteSize()
    if size > bodies.LARGE_BYTES:
        try:
            counted.reserve(bodies.ANSWER_COPIES * size)
        except errors.RequestError:
            call.inputs.clear()  # Or the traceback keeps the inputs.
            raise


async def _all(coroutines: Sequence[Coroutine]) -> list:
    """Returns the results of coroutines; cancels all when one fails."""
    tasks = [asyncio.create_task(x) for x in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        del tasks, task  # Or else an error's traceback would keep the results.


def _decode(
    deserialize: Callable[[bytes], message.Message], content: bytes
) -> message.Message:
    try:
        return deserialize(content)
    except message.DecodeError as error:
        raise errors.invalid(bodies.NO_PROTO) from error


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

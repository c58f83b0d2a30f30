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

import grpc
from google.protobuf import descriptor
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
from bert_tf.serving.bodies import ANSWER_COPIES
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
_RELOAD = "HandleReloadConfigRequest"
# Calls in progress, and messages that arrive at once. Each of the former may
# hold the 64 kB that a client sends unasked, each of the latter a message.
_MAX_CALLS = 1000
_MAX_ARRIVING = 32
# An unread answer is kept as a proto, as bytes and in gRPC's buffer.
_ANSWER_COPIES = 3
# Fields of smaller messages are not counted.
_COUNTED_BYTES = 1 << 14
# Memory of a decoded field beside its bytes, at most.
_FIELD_BYTES = 256
# Packed integers that count as a field.
_NUMBERS_PER_FIELD = 8
_FIXED_SIZES = {1: 8, 5: 4}
_NO_PROTO = "The message is not a valid proto."
_FIELD = descriptor.FieldDescriptor
# Fields that take no more memory than their bytes.
_FLAT = (_FIELD.CPPTYPE_STRING, _FIELD.CPPTYPE_FLOAT, _FIELD.CPPTYPE_DOUBLE)
# Bytes of a varint before its last one.
_WITHOUT_END = bytes(range(128, 256))
# The tasks in which grpc awaits the end of a call, by the call's own task.
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

    Args:
      service: The models.
      address: Host and port to listen at.
      options: gRPC's options, by name.
      body_seconds: Time for a message to arrive, and for reading an answer.
      allow_reload: Whether clients may replace the models.
      interceptors: What sees a call before its message is decoded.
      credentials: The keys for TLS; None for none.

    Raises:
      RuntimeError: If it cannot listen there.
    """
    asyncio.get_running_loop().set_task_factory(_make_task)
    decoder = _Decoder(service, body_seconds, allow_reload)
    grpc_server = grpc.aio.server(
        interceptors=[*interceptors, decoder],
        maximum_concurrent_rpcs=_MAX_CALLS,
        options=(
            *_OPTIONS,
            # Larger messages than the limit are refused with the flag's name
            # by `_Decoder`, still larger ones by gRPC.
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
    """Returns a new task, as the loop's task factory.

    Notes the two tasks of a call. grpc has no function that ends a call whose
    answer waits for its client, and its settings end whole connections, at an
    age. If grpc renames its coroutine, every call fails with a KeyError.
    """
    task = asyncio.Task(coroutine, loop=loop, **options)
    if coroutine.__name__ == "_handle_exceptions":
        _LISTENERS[task] = asyncio.current_task(loop)
    return task


def _end_call(task: asyncio.Task, listener: asyncio.Task) -> None:
    """Resets a call's stream: nothing refers to the call without its tasks."""
    listener.cancel()
    task.cancel()


class _Decoder(grpc.aio.ServerInterceptor):
    """Receives and decodes messages within the limits, large ones in a thread.

    Args: As for `server`.
    """

    def __init__(
        self, service: Service, body_seconds: float, allow_reload: bool
    ) -> None:
        self._service = service
        self._body_seconds = body_seconds
        self._allow_reload = allow_reload
        # Messages that arrive, the oldest first, with their host and peer.
        self._arriving: dict[asyncio.Timeout, tuple[str, str]] = {}

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
                    # gRPC refuses only clients that have confirmed its limit.
                    self._check(
                        "The metadata", header_bytes, "max_header_bytes"
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

        # Before the call of a unary handler grpc waits for the message, without
        # a limit.
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
        for flag in ("max_request_bytes", "max_grpc_message_bytes"):
            self._check("The message", size, flag)
        if size > _COUNTED_BYTES:
            kind = deserialize.__self__.DESCRIPTOR
            limit = self._service.limits.max_message_fields
            memory += _FIELD_BYTES * await self._service.parse(
                size, count_fields, content, kind, limit
            )
        if memory > LARGE_BYTES:
            reserve(memory)
        return await self._service.parse(memory, _decode, deserialize, content)

    def _check(self, subject: str, size: int, flag: str) -> None:
        limit = getattr(self._service.limits, flag)
        if size > limit:
            raise errors.TooLargeError(subject, limit, "bytes", flag)

    async def _receive(self, context: grpc.aio.ServicerContext) -> bytes:
        """Returns the message of a call; raises TimeoutError if it is late."""
        if len(self._arriving) >= _MAX_ARRIVING:
            self._make_room()
        peer = context.peer()
        async with asyncio.timeout(self._body_seconds) as limit:
            self._arriving[limit] = peer.rpartition(":")[0], peer
            try:
                return await context.read()
            finally:
                self._arriving.pop(limit, None)

    def _make_room(self) -> None:
        """Ends the oldest message of the host and connection with the most."""
        arriving = self._arriving
        counts = collections.Counter(itertools.chain(*arriving.values()))
        ended = max(arriving, key=lambda x: [counts[y] for y in arriving[x]])
        del arriving[ended]
        ended.reschedule(0)

    async def _limit(
        self,
        method: str,
        response: message.Message,
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Limits the time of an answer, and reserves its memory meanwhile."""
        task = asyncio.current_task()
        with contextlib.ExitStack() as stack:
            reserve = stack.enter_context(self._service.bodies.room())
            size = response.ByteSize()
            if size > LARGE_BYTES:
                try:
                    reserve(_ANSWER_COPIES * size)
                except errors.RequestError as error:
                    async with _counted(self._service, method, context):
                        raise error
            timer = asyncio.get_running_loop().call_later(
                self._body_seconds, _end_call, task, _LISTENERS[task]
            )
            stack.callback(timer.cancel)
            kept = stack.pop_all()
            # A callback of the context would be a cycle, and keep its call.
            task.add_done_callback(lambda _: kept.close())


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
                _reserve_repeated(counted, request, calls[0])
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
                _reserve_repeated(counted, request, call)
                outputs = await self._service.compute(counted, servable, call)
                if num_bytes(outputs) <= LARGE_BYTES:
                    return call.respond(outputs)
                return await asyncio.to_thread(call.respond, outputs)


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


def _reserve_repeated(
    counted: services.Request, request: message.Message, call: inference.Call
) -> None:
    """Reserves memory for values that a message holds once and means often."""
    size = num_bytes(call.inputs) - request.ByteSize()
    if size > LARGE_BYTES:
        try:
            counted.reserve(ANSWER_COPIES * size)
        except errors.RequestError:
            call.inputs.clear()  # The traceback would keep them for a while.
            raise


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
        raise errors.invalid(_NO_PROTO) from error


@functools.cache
def _kinds(kind: descriptor.Descriptor) -> dict:
    """Returns the types of submessages by number; None for packed integers."""
    return {
        field.number: field.message_type
        for field in kind.fields
        if field.cpp_type not in _FLAT
    }


def count_fields(
    content: bytes, kind: descriptor.Descriptor, limit: int
) -> int:
    """Returns the number of fields of a serialized message, nested ones, too.

    An empty field takes 2 bytes, and its object more than 100.

    Raises:
      RequestError: If there are too many, or it is not a message.
    """
    count = 0
    parts = [(kind, 0, len(content))]

    def varint(position: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = content[position]
            value |= (byte & 127) << shift
            position += 1
            shift += 7
            if byte < 128 or shift == 70:
                return value, position

    while parts:
        kind, position, end = parts.pop()
        kinds = _kinds(kind)
        while position < end:
            count += 1
            try:
                tag, position = varint(position)
                wire_type = tag & 7
                size = _FIXED_SIZES.get(wire_type)
                if size is None:
                    size, position = varint(position)
            except IndexError:
                raise errors.invalid(_NO_PROTO) from None
            if wire_type == 0:  # `size` is a number.
                size = 0
            elif wire_type == 2 and tag >> 3 in kinds:
                child = kinds[tag >> 3]
                if child is not None:
                    parts.append((child, position, position + size))
                else:
                    numbers = content[position : position + size]
                    ends = len(numbers.translate(None, _WITHOUT_END))
                    count += ends // _NUMBERS_PER_FIELD
            elif wire_type not in _FIXED_SIZES and wire_type != 2:
                raise errors.invalid(_NO_PROTO)  # A group; none has any.
            position += size
            if count > limit:
                raise errors.TooLargeError(
                    "The message", limit, "fields", "max_message_fields"
                )
        if position > end:
            raise errors.invalid(_NO_PROTO)
    return count


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

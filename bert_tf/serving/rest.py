"""The REST interface: TensorFlow Serving's paths, bodies and status codes."""

import asyncio
import dataclasses
import functools
import os
import re
import urllib.parse
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Coroutine
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from google.protobuf import json_format
from starlette import applications
from starlette import middleware
from starlette import requests
from starlette import responses
from starlette import routing
from starlette import staticfiles
from starlette import types
from tensorflow_serving.apis import classification_pb2
from tensorflow_serving.apis import get_model_metadata_pb2
from tensorflow_serving.apis import regression_pb2

from bert_tf.flags.serve import ServeLimits
from bert_tf.serving import access
from bert_tf.serving import bodies
from bert_tf.serving import calls
from bert_tf.serving import errors
from bert_tf.serving import json_values
from bert_tf.serving import service as services
from bert_tf.serving.servable import DEFAULT_SIGNATURE
from bert_tf.serving.servable import Servable
from bert_tf.serving.service import Service

_PAGE = os.path.join(os.path.dirname(__file__), "page")
_INDEX = os.path.join(_PAGE, "index.html")
# Patterns of URL paths, from http_rest_api_util.cc of TensorFlow Serving.
_MODEL = r"/v1/models/(?P<name>[^/:]+)"
_NO_MODEL = re.compile(r"/v1/models(/metadata)?", re.I)
_VERSION = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_CALL = re.compile(
    _MODEL + _VERSION + r":(?P<method>classify|regress|predict)", re.I
)
_STATUS = re.compile(_MODEL + _VERSION + r"(?P<metadata>/metadata)?", re.I)
_MAX_VERSION = 2**63 - 1
_MAX_DIGITS = 20  # Enough: numbers with 20 digits exceed `_MAX_VERSION`.
_ANY = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def application(
    service: Service,
    timeout_seconds: float,
    hosts: Collection[str] | None = None,
    keys: access.ApiKeys | None = None,
    health_without_key: bool = False,
    more_routes: Sequence[routing.Route] = (),
    aliases: Mapping[str, str] | None = None,
) -> applications.Starlette:
    """Returns the ASGI application.

    `AccessMiddleware` describes `hosts`, `keys` and `health_without_key`.
    `aliases` maps further paths to paths of this application.
    """
    api = _Api(service, timeout_seconds)
    return applications.Starlette(
        routes=[
            routing.Route("/v1/{path:path}", api.answer, methods=_ANY),
            routing.Route("/metrics", api.metrics),
            routing.Route("/monitoring/prometheus/metrics", api.metrics),
            routing.Route("/readyz", api.ready),
            routing.Route("/page/models.json", api.models),
            routing.Route("/", lambda _: responses.FileResponse(_INDEX)),
            *more_routes,
            routing.Mount("/page", staticfiles.StaticFiles(directory=_PAGE)),
        ],
        middleware=[
            middleware.Middleware(_aliased, aliases=aliases or {}),
            middleware.Middleware(
                access.AccessMiddleware,
                hosts=hosts,
                keys=keys,
                health_without_key=health_without_key,
            ),
        ],
    )


def _aliased(app: types.ASGIApp, aliases: Mapping[str, str]) -> types.ASGIApp:
    """Returns an application that also answers the paths in `aliases`."""

    async def answer(scope, receive, send):
        if path := aliases.get(scope["path"]):
            own = urllib.parse.unquote(path)
            scope = scope | {"path": own, "raw_path": path.encode()}
        await app(scope, receive, send)

    return answer


class _Api:
    """The handlers of REST requests."""

    def __init__(self, service: Service, timeout_seconds: float) -> None:
        self._service = service
        self._timeout_seconds = timeout_seconds

    async def metrics(self, request: requests.Request) -> responses.Response:
        metrics = self._service.metrics
        return responses.Response(
            metrics.page(), media_type=metrics.content_type
        )

    async def ready(self, request: requests.Request) -> responses.Response:
        is_ready = self._service.manager.is_ready()
        return responses.JSONResponse(
            {"ready": is_ready}, 200 if is_ready else 503
        )

    async def models(self, request: requests.Request) -> responses.Response:
        return responses.JSONResponse({"models": self._service.manager.names()})

    async def answer(self, request: requests.Request) -> responses.Response:
        """Answers all requests under /v1."""
        path = request.scope["raw_path"].decode("latin-1")
        pattern = {"POST": _CALL, "GET": _STATUS}.get(request.method)
        match = pattern and pattern.fullmatch(path)
        try:
            if request.method == "GET" and _NO_MODEL.fullmatch(path):
                raise errors.invalid("Missing model name in request.")
            if match is None:
                raise errors.invalid(
                    "Malformed request: "
                    f"{request.method} {errors.shortened(path)}"
                )
            if request.method == "POST":
                body = await self._call(request, match)
            else:
                body = await self._status(match)
        except errors.RequestError as error:
            return _json({"error": error.message}, error.http_status)
        if isinstance(body, bytes) and len(body) > bodies.LARGE_BYTES:
            return _LargeAnswer(body, self._service.bodies)
        return _json(body)

    async def _call(self, request: requests.Request, match: re.Match) -> bytes:
        method = match["method"].lower()
        async with (
            self._service.counted(method.capitalize()) as counted,
            asyncio.timeout(self._timeout_seconds),
        ):
            body = await self._body(request, counted.reserve)
            with self._service.manager.use(**_model(match)) as servable:
                counted.servable = servable
                return await _while_connected(
                    request, self._answer(body, counted, method)
                )

    async def _answer(
        self, body: bytes, counted: services.Request, method: str
    ) -> bytes:
        size = len(body)
        limits = self._service.limits
        document = await self._service.parse(size, _parse, body, limits)
        del body
        call = await self._service.parse(
            size, _MAKE_CALL[method], document, counted.servable, limits
        )
        del document
        return await self._service.answer(counted, call)

    async def _body(
        self, request: requests.Request, reserve: Callable[[int], None]
    ) -> bytes:
        """Returns the unpacked body of a request."""
        limits = self._service.limits
        body = await self._service.bodies.read(request, reserve)
        if request.headers.get("content-encoding", "").lower() != "gzip":
            return body
        size = bodies.LARGE_BYTES + 1
        if len(body) < size:
            text = bodies.gunzip(body, bodies.LARGE_BYTES)
            size = len(text)
        if size > bodies.LARGE_BYTES:
            text = await self._service.parse(
                size, bodies.gunzip, body, limits.max_unpacked_bytes
            )
            bodies.check_unpacked(len(text), limits)
            reserve(len(text))
        return text

    async def _status(self, match: re.Match) -> dict:
        if not match["metadata"]:
            async with self._service.counted("GetModelStatus"):
                return _to_json(self._service.status(**_model(match)))
        async with self._service.counted("GetModelMetadata") as counted:
            with self._service.manager.use(**_model(match)) as servable:
                counted.servable = servable
                return _metadata(servable)


def _parse(body: bytes, limits: ServeLimits) -> dict:
    bodies.check_json(body, limits)
    document = json_values.parse(body)
    for name in ("instances", "examples"):
        if isinstance(document.get(name), list):
            bodies.check_rows(len(document[name]), limits)
    return document


def _predict(
    document: dict, servable: Servable, limits: ServeLimits
) -> calls.Call:
    """Returns a call for `predict` that responds with JSON as bytes."""
    name = json_values.signature_name(document) or DEFAULT_SIGNATURE
    if name not in servable.signatures:
        raise errors.invalid(
            f'Serving signature name: "{errors.shortened(name)}" not found '
            "in signature def"
        )
    signature = servable.signatures[name]
    inputs, by_rows = json_values.predict_inputs(document, signature)
    signature.check(inputs)
    write = functools.partial(json_values.write_predictions, by_rows=by_rows)
    return calls.Call(signature, inputs, tuple(signature.outputs), write)


def _of_examples(
    request_class: type,
    make: Callable[..., calls.Call],
    write: Callable[[Any], bytes],
    document: dict,
    servable: Servable,
    limits: ServeLimits,
) -> calls.Call:
    """Returns a call for Examples that responds with JSON as bytes."""
    name = json_values.signature_name(document)
    request = request_class(input=json_values.read_examples(document))
    request.model_spec.signature_name = name
    call = make(request, servable, limits)
    return dataclasses.replace(
        call, respond=lambda outputs: write(call.respond(outputs).result)
    )


_MAKE_CALL = {
    "predict": _predict,
    "classify": functools.partial(
        _of_examples,
        classification_pb2.ClassificationRequest,
        calls.classify,
        json_values.write_classifications,
    ),
    "regress": functools.partial(
        _of_examples,
        regression_pb2.RegressionRequest,
        calls.regress,
        json_values.write_regressions,
    ),
}


def _metadata(servable: Servable) -> dict:
    """Returns the metadata in TensorFlow Serving's JSON format."""
    response = services.metadata(servable)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    response.metadata["signature_def"].Unpack(signatures)
    return {
        "model_spec": _to_json(response.model_spec),
        "metadata": {"signature_def": _to_json(signatures)},
    }


async def _while_connected(
    request: requests.Request, work: Coroutine[Any, Any, bytes]
) -> bytes:
    """Returns the result of a coroutine; cancels it if the client is gone."""

    async def wait_until_gone():
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working = asyncio.create_task(work)
    gone = asyncio.create_task(wait_until_gone())
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise errors.cancelled("The client has gone away.")
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
        # Break the cycle of error and frame, to free the request's data.
        del working, gone


def _model(match: re.Match) -> dict:
    """Returns the model and version in a path, for `ModelManager.use`."""
    version = match["version"]
    label = match["label"]
    if version is not None:
        # Cut long numbers: Python refuses to convert thousands of digits.
        number = int(version.lstrip("0")[:_MAX_DIGITS] or "0")
        if number > _MAX_VERSION:
            raise errors.invalid(
                f"Failed to convert version: {errors.shortened(version)} to "
                "numeric."
            )
        version = number
    return {
        "name": urllib.parse.unquote(match["name"]),
        "version": version,
        "label": None if label is None else urllib.parse.unquote(label),
    }


def _to_json(message) -> dict:
    return json_format.MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )


def _json(body, status: int = 200) -> responses.Response:
    if not isinstance(body, bytes):
        body = json_values.dump(body)
    return responses.Response(body, status, media_type="application/json")


class _LargeAnswer(responses.Response):
    """A JSON answer that is sent in parts, with its memory reserved meanwhile.

    For a slow client, an answer sent as a whole would outlive its reservation.
    """

    media_type = "application/json"

    def __init__(self, body: bytes, memory: bodies.Bodies) -> None:
        super().__init__(body)
        self._memory = memory

    async def __call__(
        self, scope: types.Scope, receive: types.Receive, send: types.Send
    ) -> None:
        with self._memory.room() as reserve:
            try:
                reserve(len(self.body))
            except errors.RequestError as error:
                refusal = _json({"error": error.message}, error.http_status)
                await refusal(scope, receive, send)
                return
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            for first in range(0, len(self.body), bodies.LARGE_BYTES):
                end = first + bodies.LARGE_BYTES
                await send(
                    {
                        "type": "http.response.body",
                        "body": self.body[first:end],
                        "more_body": end < len(self.body),
                    }
                )

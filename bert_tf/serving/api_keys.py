"""API keys: the file, and the refusals of REST and gRPC without a key."""

import base64
import binascii
import hashlib
import hmac
import os
import re
import threading
from collections.abc import Awaitable
from collections.abc import Callable

import grpc
from absl import logging
from starlette import datastructures
from starlette import responses
from starlette import types

from bert_tf.errors import UserError

_KEY = re.compile(r"[!-~]{16,512}")
_REFUSAL = (
    "Send one of the server's API keys as the header \"authorization: Bearer "
    'KEY" (--api_key_file).'
)
# Answered without a key under --health_without_key.
_HEALTH_PATH = re.compile(
    "/readyz|/metrics|/monitoring/prometheus/metrics|"
    r"/v1/models/[^/:]+(/(versions|labels)/[^/:]+)?"
)
_HEALTH_METHOD = "/tensorflow.serving.ModelService/GetModelStatus"


class ApiKeys:
    """The keys in a file, which is read again when it changes.

    Args:
      path: A text file with one key a line; empty lines and lines that begin
        with # are skipped.

    Raises:
      UserError: If the file cannot be read, or has no key or a bad one.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp = _stamp(path)
        self._digests = _read(path)

    def allows(self, authorization: str | None) -> bool:
        """Returns True for an Authorization header with one of the keys.

        Programs send `Bearer KEY`; browsers ask for a password, and send it
        with any user name as `Basic`.
        """
        digest = _digest(_key(authorization or ""))
        # All are compared, and each in constant time.
        matches = [hmac.compare_digest(digest, x) for x in self._current()]
        return any(matches)

    def _current(self) -> list[bytes]:
        stamp = _stamp(self._path)
        with self._lock:
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._digests = _read(self._path)
                    logging.info("Read %s again.", self._path)
                except UserError as error:
                    logging.error("%s The keys before stay valid.", error)
            return self._digests


def _stamp(path: str) -> tuple[int, ...] | None:
    """Returns what changes with a file; None if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read(path: str) -> list[bytes]:
    try:
        with open(path, encoding="ascii") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--api_key_file={path} is not a text file of keys: {error}."
        ) from error
    keys = []
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        if not _KEY.fullmatch(line):  # Not shown, as logs keep no secrets.
            raise UserError(
                f"--api_key_file={path}, line {number}: a key has 16 to 512 "
                "characters without spaces, as `openssl rand -hex 32` writes "
                f"it. Received: {len(line)} characters."
            )
        keys.append(line)
    if not keys:
        raise UserError(
            f"--api_key_file={path} has no key; write one a line, as `openssl "
            "rand -hex 32` makes them."
        )
    return [_digest(key) for key in keys]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _key(authorization: str) -> str:
    """Returns the key in an Authorization header, "" if there is none."""
    scheme, _, value = authorization.partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value
    if scheme.lower() == "basic":
        try:
            text = base64.b64decode(value, validate=True).decode("latin-1")
        except (binascii.Error, ValueError):
            return ""
        return text.partition(":")[2]
    return ""


class KeysMiddleware:
    """Answers REST requests without a key with 401.

    Args:
      keys: The keys; None answers everything.
      health_without_key: Whether health and metrics need no key.
    """

    def __init__(
        self,
        app: types.ASGIApp,
        keys: ApiKeys | None,
        health_without_key: bool,
    ) -> None:
        self._app = app
        self._keys = keys
        self._health_without_key = health_without_key

    async def __call__(
        self, scope: types.Scope, receive: types.Receive, send: types.Send
    ) -> None:
        app = self._app
        if self._keys is not None and not self._is_open(scope):
            headers = datastructures.Headers(scope=scope)
            if not self._keys.allows(headers.get("authorization")):
                app = responses.JSONResponse(
                    {"error": _REFUSAL},
                    401,
                    # Browsers then ask for the key, for the page.
                    {"WWW-Authenticate": 'Bearer, Basic realm="API key"'},
                )
        await app(scope, receive, send)

    def _is_open(self, scope: types.Scope) -> bool:
        return (
            self._health_without_key
            and scope["method"] in ("GET", "HEAD")
            and _HEALTH_PATH.fullmatch(scope["path"]) is not None
        )


class KeysInterceptor(grpc.aio.ServerInterceptor):
    """Answers gRPC calls without a key with UNAUTHENTICATED.

    Args: As for `KeysMiddleware`.
    """

    def __init__(self, keys: ApiKeys, health_without_key: bool) -> None:
        self._keys = keys
        self._health_without_key = health_without_key

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        is_open = (
            self._health_without_key
            and handler_call_details.method == _HEALTH_METHOD
        )
        metadata = dict(handler_call_details.invocation_metadata or ())
        if is_open or self._keys.allows(metadata.get("authorization")):
            return await continuation(handler_call_details)

        async def refuse(request: bytes, context: grpc.aio.ServicerContext):
            del request
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSAL)

        return grpc.unary_unary_rpc_method_handler(refuse)

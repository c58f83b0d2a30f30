"""Access to the server: host names and web pages, API keys, and TLS.

API keys never appear in logs or answers.
"""

import base64
import binascii
import dataclasses
import hashlib
import hmac
import ipaddress
import os
import re
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Collection
from typing import NoReturn

import grpc
from absl import logging
from starlette import datastructures
from starlette import responses
from starlette import types

from bert_tf.errors import UserError
from bert_tf.flags.serve import ServeAccess
from bert_tf.serving import model_config

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
# Error messages quote at most this many characters of a header.
_MAX_ECHO = 200

_KEY = re.compile(r"[!-~]{16,512}")
_REFUSAL = (
    "Send one of the server's API keys as the header \"authorization: Bearer "
    'KEY" (--api_key_file).'
)
# With --health_without_key, these REST paths and this gRPC method need no key.
_HEALTH_PATH = re.compile(
    "/readyz|/metrics|/monitoring/prometheus/metrics|"
    r"/v1/models/[^/:]+(/(versions|labels)/[^/:]+)?"
)
_HEALTH_METHOD = "/tensorflow.serving.ModelService/GetModelStatus"
# This policy lets the server's page contact only this server and run only its
# scripts. So HTML in users' texts cannot run scripts or send data elsewhere.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    # Keep browsers from treating users' texts in JSON or metrics as HTML.
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def allowed_hosts(host: str, more: str | None) -> frozenset[str] | None:
    """Returns the host names that requests may use; None means any.

    `host` is the address to listen on; `more` has further names, separated by
    commas (--allowed_hosts).
    """
    names = {x.strip().lower().strip("[]") for x in (more or "").split(",")}
    names.discard("")
    if _is_loopback(host):
        names |= {host.lower(), *_LOOPBACK_NAMES}
    return frozenset(names) or None


def _is_loopback(host: str) -> bool:
    try:
        address = socket.getaddrinfo(host, None)[0][4][0]
    except OSError:
        return False  # The server reports the error when it listens.
    return ipaddress.ip_address(address).is_loopback


@dataclasses.dataclass(eq=False)
class AccessMiddleware:
    """Refuses foreign hosts, foreign web pages, and requests without a key.

    Browsers let foreign web pages send requests to this server. If a page makes
    its own host name resolve to this machine, the header `Host` has that name,
    so the request is refused. The headers `Origin` and `Sec-Fetch-Site` reveal
    all other foreign pages. Their GET and HEAD requests are allowed, because
    browsers hide the answers from them. All responses get security headers.

    Args:
      hosts: The names that the header `Host` may have; None allows all names.
      keys: The API keys; None if requests need no key.
      health_without_key: True if health and metrics need no key.
    """

    app: types.ASGIApp
    hosts: Collection[str] | None
    keys: "ApiKeys | None"
    health_without_key: bool

    async def __call__(
        self, scope: types.Scope, receive: types.Receive, send: types.Send
    ) -> None:
        async def send_with_headers(message: types.Message) -> None:
            if message["type"] == "http.response.start":
                datastructures.MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        app = self._refusal(scope, datastructures.Headers(scope=scope))
        await (app or self.app)(scope, receive, send_with_headers)

    def _refusal(
        self, scope: types.Scope, headers: datastructures.Headers
    ) -> types.ASGIApp | None:
        """Returns the response if the request is refused, else None."""
        is_reading = scope["method"] in ("GET", "HEAD")
        hosts = headers.getlist("host")
        if self.hosts is not None and not (
            hosts and all(_name(x) in self.hosts for x in hosts)
        ):
            message = (
                f"The host {_shown(hosts)} is not one of this server's names; "
                "add it to --allowed_hosts."
            )
            return responses.JSONResponse({"error": message}, 403)
        if not is_reading and _is_foreign(headers):
            message = (
                f"A web page of {_shown(headers.getlist('origin'))} may not "
                "use this server; pages of the server itself may."
            )
            return responses.JSONResponse({"error": message}, 403)
        is_open = self.keys is None or (
            self.health_without_key
            and is_reading
            and _HEALTH_PATH.fullmatch(scope["path"])
        )
        if is_open or self.keys.allows(*headers.getlist("authorization")):
            return None
        return responses.JSONResponse(
            {"error": _REFUSAL},
            401,
            # This header makes browsers ask users for the key.
            {"WWW-Authenticate": 'Bearer, Basic realm="API key"'},
        )


def _name(host: str) -> str | None:
    """Returns the name or address in a Host header, without its port."""
    try:
        return urllib.parse.urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _is_foreign(headers: datastructures.Headers) -> bool:
    """Returns True for a request that a page of another origin has sent."""
    if headers.get("sec-fetch-site", "").lower() == "cross-site":
        return True
    hosts = {host.lower() for host in headers.getlist("host")}
    # Ignore the scheme of the origin: a proxy may turn https into http.
    return any(
        {origin.lower().partition("://")[2]} != hosts
        for origin in headers.getlist("origin")
    )


def _shown(values: list[str]) -> str:
    return repr(", ".join(values)[:_MAX_ECHO])


class ApiKeys:
    """The API keys in a file, read again whenever the file changes.

    Args:
      path: A text file with one key a line; empty lines and lines that begin
        with # are skipped.

    Raises:
      UserError: If the file is unreadable, has no key or has an invalid key.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp = _stamp(path)
        self._digests = _read(path)

    def allows(self, *authorizations: str) -> bool:
        """Returns True for exactly one Authorization header, with a valid key.

        Programs send `Bearer KEY`. Browsers send the key as a `Basic` password.
        Two Authorization headers are refused, as a proxy may check only one.
        """
        is_one = len(authorizations) == 1
        digest = _digest(_key(*authorizations) if is_one else "")
        # Compare with all keys, so that the response time reveals no key.
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
    """Returns a file's identity, size and change time; None if missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns


def _read(path: str) -> list[bytes]:
    try:
        lines = [x.strip() for x in _bytes(path).decode("ascii").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--api_key_file={path} is not a text file of keys: {error}."
        ) from error
    keys = []
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        if not _KEY.fullmatch(line):  # The error must not show the key.
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


class KeysInterceptor(grpc.aio.ServerInterceptor):
    """Refuses gRPC calls without a valid key, with the code UNAUTHENTICATED.

    `AccessMiddleware` describes the arguments.
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
        metadata = handler_call_details.invocation_metadata or ()
        values = [value for key, value in metadata if key == "authorization"]
        if is_open or self._keys.allows(*values):
            return await continuation(handler_call_details)

        async def refuse(_, context: grpc.aio.ServicerContext):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSAL)

        # Refuse at once: a unary handler would first wait for the message.
        return grpc.stream_unary_rpc_method_handler(refuse)


def read_tls(
    config: ServeAccess,
) -> tuple[ssl.SSLContext | None, grpc.ServerCredentials | None]:
    """Returns the TLS settings of REST and gRPC; None for a port without TLS.

    Raises:
      UserError: If a file cannot be read, or key and certificate do not match.
    """
    context = credentials = None
    if config.tls_cert:
        context = _context(config)
        ca = config.tls_client_ca
        credentials = grpc.ssl_server_credentials(
            [(_bytes(config.tls_key), _bytes(config.tls_cert))],
            _bytes(ca) if ca else None,
            require_client_auth=ca is not None,
        )
    if config.ssl_config_file:
        credentials = _credentials_of(config.ssl_config_file)
    if credentials:
        try:  # gRPC checks the credentials only when it adds a port.
            grpc.server(None).add_secure_port("localhost:0", credentials)
        except RuntimeError as error:
            raise UserError(
                "gRPC cannot use the key and the certificates of "
                f"{config.ssl_config_file or config.tls_cert}: they must be "
                "the contents of PEM files, the key without a password, in "
                "SSLConfig with \\n between lines."
            ) from error
    return context, credentials


def _context(config: ServeAccess) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        _require_regular(config.tls_cert, config.tls_key)
        # Without `password`, OpenSSL would wait for input in the terminal.
        context.load_cert_chain(
            config.tls_cert, config.tls_key, password=_refuse_password
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"--tls_cert={config.tls_cert} and --tls_key={config.tls_key} are "
            "not PEM certificates, the server's own first, and its key: "
            f"{_reason(error)}."
        ) from error
    if config.tls_client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            _require_regular(config.tls_client_ca)
            context.load_verify_locations(config.tls_client_ca)
        except OSError as error:
            raise UserError(
                f"--tls_client_ca={config.tls_client_ca} has no PEM "
                f"certificates: {_reason(error)}."
            ) from error
    return context


def _refuse_password() -> NoReturn:
    raise ValueError(
        "the key has a password, which a server cannot type; store it without"
    )


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return str(reason or error).rstrip(".")


def _require_regular(*paths: str) -> None:
    for path in paths:
        if not os.path.isfile(path):  # Reading a pipe would wait forever.
            raise OSError(f"{path} is missing, or not a regular file")


def _bytes(path: str) -> bytes:
    _require_regular(path)
    with open(path, "rb") as file:
        return file.read()


def _credentials_of(path: str) -> grpc.ServerCredentials:
    """Returns the credentials in a text file with an `SSLConfig` proto."""
    config = model_config.new_message(
        "SSLConfig",
        server_key="string",
        server_cert="string",
        custom_ca="string",
        client_verify="bool",
    )
    model_config.read_into(config, path, "--ssl_config_file")
    if config.client_verify and not config.custom_ca:
        raise UserError(
            f"--ssl_config_file={path}: client_verify needs custom_ca, the "
            "authorities of the clients' certificates."
        )
    return grpc.ssl_server_credentials(
        [(config.server_key.encode(), config.server_cert.encode())],
        config.custom_ca.encode() or None,
        require_client_auth=config.client_verify,
    )

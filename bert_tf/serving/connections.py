"""Limits of connections: number, time, header size and open files."""

import asyncio
import contextlib
import dataclasses
import errno
import resource
import ssl
from asyncio import sslproto
from collections.abc import Callable

from absl import logging
from uvicorn.protocols.http import httptools_impl

from bert_tf.flags.serve import ServeConfig
from bert_tf.serving import errors

# Number of open files reserved for models, logs and the event loop.
_RESERVED_FILES = 128
_MAX_CONNECTIONS = 4096
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOG_SECONDS = 60
# Maximum running calls per gRPC connection; clients delay further calls.
_MAX_STREAMS = 100
# Maximum HTTP requests in one connection that wait behind an earlier request.
_MAX_PIPELINED = 32
# Bytes allowed for a request's method and version, and for blank lines.
_REQUEST_LINE = 1024
# Bytes of a TLS buffer. With asyncio's 256 KiB, 4096 clients would take 1 GiB.
_TLS_BUFFER = 1 << 14


class Limits:
    """Limits of connections; times are in seconds.

    Attributes:
      flags: The limits of headers and URLs.
      count: Maximum number of open connections of a port.
      header: Maximum time until a request's header is complete.
      idle: Maximum time between an answer and the next request.
      body: Maximum time for a client to send a body, or to read an answer.
    """

    def __init__(self, config: ServeConfig, body: float) -> None:
        self.flags = config
        self.count = max_connections(config.max_connections)
        self.header = config.rest_api_header_timeout_in_ms / 1000
        self.idle = config.idle_timeout_in_ms / 1000
        self.body = body


def max_connections(flag: int | None) -> int:
    """Returns the maximum number of connections of one port.

    Raises the soft limit of open files to the hard limit. The result leaves
    room for the connections of both ports and for other files.

    Args:
      flag: The value of --max_connections, or None for the default.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            logging.warning("The limit of open files stays %d: %s", soft, error)
    count = flag or _MAX_CONNECTIONS
    if soft != resource.RLIM_INFINITY:
        count = min(count, max(soft - _RESERVED_FILES, soft // 2) // 2)
    return max(count, 1)


def grpc_options(limits: Limits) -> dict[str, int]:
    """Returns gRPC's options for the limits."""
    header_ms = int(limits.header * 1000)
    return {
        # Set both limits to one value. Otherwise gRPC would refuse headers with
        # a size between the two limits at random.
        "grpc.max_metadata_size": limits.flags.max_header_bytes,
        "grpc.absolute_max_metadata_size": limits.flags.max_header_bytes,
        "grpc.max_allowed_incoming_connections": limits.count,
        "grpc.server_handshake_timeout_ms": header_ms,
        # Until a client confirms the limits, it may send 16 MB: set a timeout.
        "grpc.http2.settings_timeout": header_ms,
        "grpc.max_connection_idle_ms": int(limits.idle * 1000),
        # Ping clients, so gRPC disconnects clients that read no data.
        "grpc.keepalive_time_ms": header_ms,
        "grpc.keepalive_timeout_ms": 3 * header_ms,
        "grpc.max_concurrent_streams": _MAX_STREAMS,
        # Enlarge the queue, as one client could fill the default and block all.
        "grpc.server.max_pending_requests": 2000,
        "grpc.server.max_pending_requests_hard_limit": 4000,
        # No bandwidth probe: it would raise gRPC's limit of 64 kB per call.
        "grpc.http2.bdp_probe": 0,
    }


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict) -> None:
    """Logs errors of the event loop; "out of files" at most once a minute."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in _OUT_OF_FILES:
        logging.log_every_n_seconds(
            logging.ERROR,
            "A connection could not be accepted: %s. Lower --max_connections "
            "or raise the limit of open files (ulimit -n).",
            _LOG_SECONDS,
            error.strerror,
        )
    else:
        loop.default_exception_handler(context)


def protocol(
    limits: Limits, context: ssl.SSLContext | None = None
) -> Callable[..., asyncio.Protocol]:
    """Returns a function that makes uvicorn's connections, with our limits."""
    # Idle connections, longest idle first. The first is closed to make room.
    waiting = {}
    plain = type(
        "Protocol", (_Protocol,), {"limits": limits, "waiting": waiting}
    )
    if context is None:
        return plain
    sslproto.SSLProtocol.max_size = _TLS_BUFFER
    handshakes = {}
    return lambda **arguments: _Handshake(
        plain(**arguments), context, limits, handshakes
    )


def _answer(status: str, message: str) -> bytes:
    """Returns an error response that ends its connection."""
    return (
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
        f'connection: close\r\n\r\n{{"error": "{message}"}}\n'
    ).encode()


@dataclasses.dataclass(eq=False)
class _Handshake(asyncio.Protocol):
    """A connection during its TLS handshake of up to `limits.header` seconds.

    asyncio's own TLS server would not count connections during a handshake, and
    would allow a minute for the handshake.

    Attributes:
      handshakes: All handshakes in progress, the oldest first.
      early: Data that arrives before `protocol` takes over the connection.
    """

    protocol: "_Protocol"
    context: ssl.SSLContext
    limits: Limits
    handshakes: dict["_Handshake", None]
    early: list[bytes] = dataclasses.field(default_factory=list)

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        count = len(self.handshakes) + len(self.protocol.connections)
        if self.handshakes and count >= self.limits.count:
            oldest = next(iter(self.handshakes))
            del self.handshakes[oldest]
            oldest._transport.abort()
        self.handshakes[self] = None
        self._task = asyncio.get_running_loop().create_task(self._agree())

    def data_received(self, data: bytes) -> None:
        self.early.append(data)

    async def _agree(self) -> None:
        try:
            transport = await asyncio.get_running_loop().start_tls(
                self._transport,
                self,
                self.context,
                server_side=True,
                ssl_handshake_timeout=self.limits.header,
            )
        except OSError:  # TLS has sent the client an error already.
            self._transport.abort()
            return
        finally:
            self.handshakes.pop(self, None)
        if transport is None or transport.is_closing():
            return  # The client is gone already.
        transport.set_protocol(self.protocol)
        self.protocol.connection_made(transport)
        for data in self.early:
            self.protocol.data_received(data)


class _Protocol(httptools_impl.HttpToolsProtocol):
    """A connection that ends when a header is too large or arrives too slowly.

    uvicorn itself ends only connections that are idle after an answer.
    """

    limits: Limits
    waiting: dict["_Protocol", None]
    # The response to a refused request. If set, further data is ignored.
    _refusal: bytes | None = None
    _header_bytes = 0
    # Bytes received since the last complete header or body part. If this number
    # exceeds the limits of header and URL, the request is refused.
    _overhead = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        # Timers that limit receiving ("reading") and sending ("writing").
        self._timers = {}
        is_full = len(self.connections) > self.limits.count
        if is_full and self.waiting:
            oldest = next(iter(self.waiting))
            del self.waiting[oldest]
            oldest.transport.abort()
        elif is_full:
            logging.log_every_n_seconds(
                logging.WARNING,
                "All %d connections are in use; others are refused.",
                _LOG_SECONDS,
                self.limits.count,
            )
            transport.write(
                _answer(
                    "503 Service Unavailable",
                    "All connections are in use (--max_connections).",
                )
            )
            transport.close()
            return
        self.waiting[self] = None
        self._limit(self.limits.header)

    def connection_lost(self, exc: Exception | None) -> None:
        self.waiting.pop(self, None)
        self._stop_timer()
        self._stop_timer("writing")
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Limits the time of an answer that the client does not read."""
        super().pause_writing()
        if "writing" not in self._timers:
            self._limit_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.cycle is None or self.cycle.response_complete:
            self._stop_timer("writing")

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return  # Ignore the rest of a refused request.
        self._overhead += len(data)
        super().data_received(data)
        flags = self.limits.flags
        if self._refusal is None and self._overhead > (
            flags.max_header_bytes + flags.max_url_bytes + _REQUEST_LINE
        ):
            with contextlib.suppress(errors.TooLargeError):
                self._check_header(self._overhead)
            self.send_400_response("")
        if "reading" not in self._timers and self in self.waiting:
            self._limit(self.limits.header)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MAX_PIPELINED:
            # Parsing thousands of requests at once would block the event loop.
            message = f"A connection has at most {_MAX_PIPELINED} requests."
            self._refusal = _answer("429 Too Many Requests", message)
            raise errors.OverloadError(message)  # Stops the parser.
        super().on_message_begin()
        self._header_bytes = 0
        if "reading" not in self._timers:
            self._limit(self.limits.header)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        status = "414 URI Too Long"
        self._check(len(self.url), "max_url_bytes", "The URL", status)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._header_bytes += len(name) + len(value) + len(": \r\n")
        self._check_header(self._header_bytes)

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Answers a request that is not HTTP or is too large."""
        if self._refusal is None:
            super().send_400_response(msg)
            return
        self.transport.write(self._refusal)
        is_answering = self.cycle and not self.cycle.response_complete
        if is_answering or not self.transport.can_write_eof():
            self.transport.close()
            return
        # `close` would reset the connection, and the answer would be lost.
        self.transport.write_eof()
        self._limit(self.limits.header)

    def on_headers_complete(self) -> None:
        self._overhead = 0
        self.waiting.pop(self, None)
        self._limit(self.limits.body)
        if not self.url.startswith(b"/"):
            # Add the URL's host as a `Host` header, so that it is checked, too.
            host = self.url.partition(b"//")[2].partition(b"/")[0]
            self.headers.append((b"host", host))
        super().on_headers_complete()
        self.headers = []  # Otherwise trailers could add request headers.

    def on_message_complete(self) -> None:
        self._overhead = 0
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_timer("writing")
        if self.flow.write_paused or self.transport.is_closing():
            self._limit_writing()
        if self.timeout_keep_alive_task and not self.transport.is_closing():
            self.waiting.pop(self, None)
            self.waiting[self] = None

    def timeout_keep_alive_handler(self) -> None:
        # Abort: `close` would wait for the client to read its answers.
        self.transport.abort()

    def _check_header(self, size: int) -> None:
        status = "431 Request Header Fields Too Large"
        subject = "The header of the request"
        self._check(size, "max_header_bytes", subject, status)

    def _check(self, size: int, flag: str, subject: str, status: str) -> None:
        try:
            errors.check_limit(size, self.limits.flags, flag, subject)
        except errors.TooLargeError as error:
            self._refusal = _answer(status, error.message)
            raise  # Stops the parser.

    def _limit(self, seconds: float) -> None:
        self._stop_timer()
        self._timers["reading"] = self.loop.call_later(seconds, self._end)

    def _limit_writing(self) -> None:
        self._timers["writing"] = self.loop.call_later(
            self.limits.body, self.transport.abort
        )

    def _stop_timer(self, name: str = "reading") -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()

    def _end(self) -> None:
        self._stop_timer()
        if self.pipeline:
            # While requests wait, the server reads nothing. So the client is
            # not late: restart the timer instead of closing the connection.
            self._limit(self.limits.body)
        else:
            self.transport.abort()

"""The model server: REST and gRPC ports, startup and shutdown."""

import asyncio
import contextlib
import errno
import gc
import logging as python_logging
import os
import select
import signal
import socket
import threading
from concurrent import futures

import grpc
import uvicorn
from absl import logging

from bert_tf import keras_backend
from bert_tf.errors import UserError
from bert_tf.flags.serve import ServeConfig
from bert_tf.serving import access
from bert_tf.serving import batching
from bert_tf.serving import connections
from bert_tf.serving import grpc_services
from bert_tf.serving import model_config
from bert_tf.serving import rest
from bert_tf.serving import search
from bert_tf.serving.litert import LitertEngine
from bert_tf.serving.saved_model import SavedModelEngine
from bert_tf.serving.service import Service

# Maps a value of --engine to the class of the engine.
_ENGINES = {"savedmodel": SavedModelEngine, "litert": LitertEngine}
# Seconds that clients get, beyond --rest_api_timeout_in_ms, to send a body or
# to read an answer.
_GRACE_SECONDS = 5
# Maximum number of connections that wait to be accepted. A larger number could
# fill the log: asyncio logs each accept that fails for lack of descriptors.
_BACKLOG = 128


def run(config: ServeConfig) -> None:
    """Runs the server, run/serve.py, until SIGTERM or SIGINT.

    Raises:
      UserError: If flags, files or models are invalid.
    """
    keras_backend.require_tensorflow()
    stopped = threading.Event()
    watch_signals(
        stopped, config.rest_api_timeout_in_ms / 1000 + 2 * _GRACE_SECONDS
    )
    server = ModelServer(config)
    # Garbage collection would delay requests: exempt the objects made so far.
    gc.collect()
    gc.freeze()
    server.start()
    while not stopped.wait(1):
        server.check()
    logging.info("Answering queued requests, then stopping.")
    server.stop()
    logging.flush()
    # A normal exit would crash in native code if a version is still loading.
    os._exit(0)


class ModelServer:
    """A server in this process.

    Raises:
      UserError: If flags or files are invalid.
    """

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._models = model_config.of_flags(config)
        self._batching = _batching(config)
        self._ssl_context, self._credentials = access.read_tls(config)
        self._keys = None
        if config.api_key_file:
            self._keys = access.ApiKeys(config.api_key_file)
        self._limits = connections.Limits(
            config, config.rest_api_timeout_in_ms / 1000 + _GRACE_SECONDS
        )
        self._service = None
        self._search = None
        self._loop = None
        self._listener = futures.ThreadPoolExecutor(1, "listener")
        self._started = threading.Event()

    def start(self) -> None:
        """Loads the models, then listens.

        Raises:
          UserError: If a model cannot be served or a port is taken.
        """
        config = self._config
        with contextlib.ExitStack() as stack:
            # Bind before the models are loaded, so that a taken port fails at
            # once. Listen only when the models are loaded.
            rest_socket = self._bind("rest_api_port", config.rest_api_port)
            if rest_socket:
                stack.callback(rest_socket.close)
            grpc_socket = self._bind("port", config.port)
            self._service = Service(
                _ENGINES[config.engine](
                    config.tensorflow_intra_op_parallelism,
                    config.tensorflow_inter_op_parallelism,
                ),
                self._batching,
                config.enable_model_warmup,
                config,
            )
            stack.callback(self._service.stop)
            # A search has embeddings of one version, so load no new version.
            is_polled = not config.search_file
            self._service.manager.start(
                self._models, is_polled * config.file_system_poll_wait_seconds
            )
            if config.search_file:
                name = self._models[0].name
                self._search = search.Search(config, self._service, name)
            if grpc_socket:
                grpc_socket.close()  # gRPC opens its own socket.
            self._listening = self._listener.submit(
                asyncio.run, self._listen(rest_socket)
            )
            self._listening.add_done_callback(lambda _: self._started.set())
            self._started.wait()
            self.check()
            stack.pop_all()
        for model in self._models:
            logging.info("Serving %s%s.", model.name, self._addresses(model))
        if self._search:
            logging.info("The page to search is %s/search.", self._rest_url)

    def check(self) -> None:
        """Raises the exception that ended the listening thread, if any."""
        if self._listening.done():
            self._listening.result()

    def stop(self) -> None:
        """Refuses new requests, answers queued requests and ends."""
        self._service.drain()
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._listener.shutdown()
        self._service.stop()

    async def _listen(self, rest_socket: socket.socket | None) -> None:
        config = self._config
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(connections.on_loop_error)
        self._stopping = asyncio.Event()
        if self._search:
            await self._search.fill()
        grpc_server = None
        if config.port:
            grpc_server = self._grpc_server()
            await grpc_server.start()
        http_task = None
        if rest_socket:
            http_server = self._http_server()
            http_task = asyncio.create_task(
                http_server.serve(sockets=[rest_socket])
            )
            while not http_server.started and not http_task.done():
                await asyncio.sleep(0.01)
            if http_task.done():
                try:
                    http_task.result()
                except OSError as error:
                    address = _address(config.host, config.rest_api_port)
                    raise _taken("rest_api_port", address) from error
        self._started.set()
        await self._stopping.wait()
        ends = []
        if http_task:
            http_server.should_exit = True
            ends.append(http_task)
        if grpc_server:
            ends.append(grpc_server.stop(self._limits.body))
        await asyncio.gather(*ends)

    def _grpc_server(self) -> grpc.aio.Server:
        config = self._config
        address = _address(config.host, config.port)
        interceptors = []
        if self._keys is not None:
            interceptors = [
                access.KeysInterceptor(self._keys, config.health_without_key)
            ]
        # An ExecuteBatchError means that a client is gone: log no traceback.
        python_logging.getLogger("grpc._cython.cygrpc").addFilter(
            lambda record: "ExecuteBatchError" not in str(record.exc_info)
        )
        try:
            return grpc_services.server(
                self._service,
                address,
                connections.grpc_options(self._limits),
                self._limits.body,
                config.allow_reload,
                interceptors,
                self._credentials,
            )
        except RuntimeError as error:
            raise _taken("port", address) from error

    def _http_server(self) -> uvicorn.Server:
        config = self._config
        return uvicorn.Server(
            uvicorn.Config(
                rest.application(
                    self._service,
                    config.rest_api_timeout_in_ms / 1000,
                    access.allowed_hosts(config.host, config.allowed_hosts),
                    self._keys,
                    config.health_without_key,
                    self._search.routes if self._search else (),
                    config.routes(self._models[0].name if self._models else ""),
                ),
                http=connections.protocol(self._limits, self._ssl_context),
                ws="none",
                lifespan="off",
                loop="none",
                log_config=None,
                # Log errors only: warnings about requests could fill the disk.
                log_level="error",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=int(self._limits.body),
                timeout_keep_alive=self._limits.idle,
                backlog=_BACKLOG,
            )
        )

    def _bind(self, flag: str, port: int) -> socket.socket | None:
        """Returns a socket at a port, not listening; None for port 0."""
        if not port:
            return None
        host = self._config.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Pass IPPROTO_TCP, or else asyncio does not turn off Nagle's algorithm.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, port))
        except OSError as error:
            bound.close()
            if error.errno == errno.EADDRINUSE:
                raise _taken(flag, _address(host, port)) from error
            raise UserError(
                f"Cannot listen at --host={host} --{flag}={port}: "
                f"{error.strerror}."
            ) from error
        return bound

    @property
    def _rest_url(self) -> str:
        scheme = "https" if self._ssl_context else "http"
        config = self._config
        return f"{scheme}://{_address(config.host, config.rest_api_port)}"

    def _addresses(self, model: model_config.ModelConfig) -> str:
        config = self._config
        text = ""
        if config.rest_api_port:
            text += f" at {self._rest_url}/v1/models/{model.name}"
        if config.port:
            text += f" and gRPC {_address(config.host, config.port)}"
        return text


def _batching(config: ServeConfig) -> batching.BatchingOptions:
    if not config.enable_batching:
        return batching.without_merging()
    if config.batching_parameters_file:
        return batching.read_options(config.batching_parameters_file)
    return batching.BatchingOptions(**config.batching())


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _taken(flag: str, address: str) -> UserError:
    return UserError(
        f"Another program listens at {address}; choose another --{flag}."
    )


def watch_signals(stopped: threading.Event, grace_seconds: float) -> None:
    """Sets `stopped` at the first signal; a second ends the process at once.

    `grace_seconds` after the first signal, the process ends in any case. A
    thread reads the signals from a pipe, because Python runs no signal handlers
    while the main thread waits in TensorFlow. SIGHUP is only logged.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    threading.Thread(
        target=_wait_for_signal,
        args=(reader, stopped, grace_seconds),
        name="signals",
        daemon=True,
    ).start()


def _wait_for_signal(
    reader: int, stopped: threading.Event, grace_seconds: float
) -> None:
    _wait_for_end(reader, None)
    stopped.set()
    is_second = _wait_for_end(reader, grace_seconds)
    logging.error(
        "Ending at once: %s.",
        "a second signal came"
        if is_second
        else f"stopping took more than {grace_seconds:.0f} seconds",
    )
    logging.flush()
    os._exit(128 + signal.SIGTERM)


def _wait_for_end(reader: int, seconds: float | None) -> bool:
    """Waits for any signal except SIGHUP; returns False after `seconds`."""
    while select.select([reader], [], [], seconds)[0]:
        if os.read(reader, 1)[0] != signal.SIGHUP:
            return True
        logging.warning("SIGHUP is ignored; changed API keys are read anyway.")
    return False

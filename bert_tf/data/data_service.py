"""Input pipeline on other machines: tf.data service in a fixed order.

A tf.data service with several data workers alternates between them in an
unpredictable order. So each reading machine is a service of its own with one
data worker (run/data_service.py). It processes every n-th batch and cuts it
into the shares of all trainers. All trainers read the same batches, each its
share ("coordinated reads"), from one service after the other. Each share has a
number, which is checked.
"""

import dataclasses
import signal
import socket
import threading
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from bert_tf.errors import UserError
from bert_tf.flags.data import DataServiceConfig

_service = tf.data.experimental.service
_PROTOCOL = "grpc://"
_OUT_OF_ORDER = "The data service returned a batch out of order:"
# Message of a dispatcher for unknown clients.
_FORGOTTEN = "Unknown iteration client id"
_SECONDS_TO_ANSWER = 10

# Maps the number of a batch <int64>[], its first row <int64>[] and serialized
# examples <string>[rows] to features.
Parse = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class DataService:
    """The data services of a run, as seen by one trainer.

    Attributes:
      addresses: "grpc://host:port" of each service.
      token: Text unique to this run and restart, equal for all trainers.
      trainer: Number of this trainer.
      num_trainers: Number of trainers.
      rows_per_trainer: Rows of a batch for each trainer; the last trainers may
        get fewer. None, for a single trainer, means all rows.
    """

    addresses: tuple[str, ...]
    token: str
    trainer: int = 0
    num_trainers: int = 1
    rows_per_trainer: int | None = None

    @classmethod
    def find(cls, addresses: str, **attributes) -> "DataService":
        """Returns the services of --tf_data_service if they answer.

        Raises:
          UserError: If an address is invalid or does not answer.
        """
        names = tuple(name.strip() for name in addresses.split(","))
        if len(set(names)) < len(names):
            raise UserError(
                "--tf_data_service must name different machines. Received: "
                f"{addresses!r}."
            )
        for name in names:
            _require_answer(name)
        return cls(names, **attributes)

    def rows(self, batch_size: int) -> tuple[int, int]:
        """Returns the first row and the number of rows for this trainer."""
        each = self.rows_per_trainer or batch_size
        first = min(self.trainer * each, batch_size)
        return first, min(each, batch_size - first)

    def read(
        self, batches: tf.data.Dataset, batch_size: int, parse: Parse
    ) -> tf.data.Dataset:
        """Cuts and parses batches in the services.

        `batches` is an endless dataset of the number <int64>[] and the
        serialized examples <string>[batch_size] of each batch.

        Returns:
          The result of `parse` for the rows of this trainer, in order.
        """
        size = len(self.addresses)
        parts = [
            self._read_one(
                address,
                self._split(batches.shard(size, index), batch_size, parse),
            )
            for index, address in enumerate(self.addresses)
        ]
        turns = tf.data.Dataset.range(size).repeat()
        numbered = tf.data.Dataset.choose_from_datasets(parts, turns)

        def check(expected, share):
            number, features = share
            check = tf.debugging.Assert(
                number == expected, [_OUT_OF_ORDER, number, expected]
            )
            with tf.control_dependencies([check]):
                return {name: tf.identity(x) for name, x in features.items()}

        return numbered.enumerate().map(check)

    def _split(
        self, batches: tf.data.Dataset, batch_size: int, parse: Parse
    ) -> tf.data.Dataset:
        """Cuts each batch into the shares of all trainers."""
        each = self.rows_per_trainer or batch_size

        def cut(number, serialized):
            def take(trainer):
                first = tf.minimum(trainer * each, batch_size)
                return number, first, serialized[first : first + each]

            return tf.data.Dataset.range(self.num_trainers).map(take)

        shares = batches.flat_map(cut).map(
            lambda number, *rest: (number, parse(number, *rest)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        # Coordinated reads require an endless dataset.
        endless = tf.data.experimental.assert_cardinality(
            tf.data.INFINITE_CARDINALITY
        )
        return shares.prefetch(tf.data.AUTOTUNE).apply(endless)

    def _read_one(
        self, address: str, shares: tf.data.Dataset
    ) -> tf.data.Dataset:
        """Returns this trainer's shares from one service."""
        # All trainers use the same id. Without it, the service would treat
        # their datasets as different, because the names of functions differ.
        dataset_id = _service.register_dataset(
            address, shares, dataset_id=self.token
        )
        own = _service.from_dataset_id(
            _service.ShardingPolicy.OFF,
            address,
            dataset_id,
            element_spec=shares.element_spec,
            job_name=self.token,
            consumer_index=self.trainer,
            num_consumers=self.num_trainers,
        )
        return own.prefetch(1)


def _require_answer(address: str) -> None:
    """Raises `UserError` if no server listens; TensorFlow would wait."""
    host, _, port = address.removeprefix(_PROTOCOL).rpartition(":")
    if not address.startswith(_PROTOCOL) or not host or not port.isdigit():
        raise UserError(
            "--tf_data_service must be grpc://host:port, or several of them "
            f"separated by commas. Received: {address!r}."
        )
    try:
        socket.create_connection((host, int(port)), _SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise UserError(
            f"No data service answers at {address} ({error}); start "
            "run/data_service.py there."
        ) from error


def explain(error: tf.errors.OpError) -> UserError | None:
    """Returns a `UserError` if a data service caused the error."""
    if _FORGOTTEN in str(error):
        return UserError(
            "A data service of --tf_data_service was restarted and does not "
            "know this run; rerun the same command to resume from the last "
            "checkpoint."
        )
    if _OUT_OF_ORDER not in str(error):
        return None
    return UserError(
        "A data service of --tf_data_service has several data workers, which "
        "return batches out of order; start run/data_service.py on each "
        "reading machine, and list all of them."
    )


def serve(config: DataServiceConfig) -> None:
    """Runs a service with one data worker until SIGTERM or Ctrl-C."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    servers = start(config)
    stopped.wait()
    del servers  # Stops them.


def start(
    config: DataServiceConfig,
) -> tuple[_service.DispatchServer, _service.WorkerServer]:
    """Starts a service with one data worker.

    It stops when the returned servers are garbage-collected.

    Raises:
      UserError: If it cannot start.
    """
    worker_port = config.worker_port or config.port + 1
    host = config.host or socket.gethostname()
    for flag, port in (("port", config.port), ("worker_port", worker_port)):
        _require_free(flag, port)
    try:
        dispatcher = _service.DispatchServer(
            _service.DispatcherConfig(port=config.port)
        )
        worker = _service.WorkerServer(
            _service.WorkerConfig(
                dispatcher_address=f"localhost:{config.port}",
                port=worker_port,
                worker_address=f"{host}:{worker_port}",
            )
        )
    except (RuntimeError, tf.errors.OpError) as error:
        raise UserError(
            f"The data service cannot start at --port={config.port} and "
            f"--worker_port={worker_port} ({error}); use free ports."
        ) from error
    logging.info(
        "Serving --tf_data_service=%s%s:%d; data is also served from port %d.",
        _PROTOCOL,
        host,
        config.port,
        worker_port,
    )
    return dispatcher, worker


def _require_free(flag: str, port: int) -> None:
    """Raises `UserError` if a port is in use; TensorFlow would share it."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise UserError(
            f"--{flag}={port} is not available ({error}); use another one. A "
            "data service needs two ports, --port and --worker_port, which is "
            "the next one by default."
        ) from error

"""Input made by other machines: tf.data service, in the same order as here.

A tf.data service with several data workers takes turns between them in an order
that nobody can tell beforehand. So each machine that reads is a service of its
own, with one data worker (run/data_service.py), and takes every n-th batch,
which it cuts into the shares of all trainers. All trainers read the same
batches, each its share ("coordinated reads"), from one service after the other.
Each share carries its number, so that order is not a matter of trust.
"""

import dataclasses
import socket
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from bert_tf.errors import UserError
from bert_tf.flags.data import DataServiceConfig

_service = tf.data.experimental.service
_PROTOCOL = "grpc://"
_OUT_OF_ORDER = "The data service gave another batch than the next one:"
# What a dispatcher says to whom it does not know.
_FORGOTTEN = "Unknown iteration client id"
_SECONDS_TO_ANSWER = 10

# From the number of a batch <int64>[], its first row <int64>[] and serialized
# examples <string>[rows] from there on to features.
Parse = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class DataService:
    """Machines that read, as one trainer sees them.

    Attributes:
      addresses: "grpc://host:port" of each.
      token: Text that no other run or restart has, the same for all trainers.
      trainer: Number of this trainer.
      num_trainers: How many there are.
      rows_per_trainer: Rows of a batch for each trainer, the last ones of which
        may get fewer; None, for one trainer, means all.
    """

    addresses: tuple[str, ...]
    token: str
    trainer: int = 0
    num_trainers: int = 1
    rows_per_trainer: int | None = None

    @classmethod
    def find(cls, addresses: str, **attributes) -> "DataService":
        """Returns the services of --tf_data_service, if they answer.

        Args:
          addresses: As the flag has them, separated by commas.
          **attributes: The others.

        Raises:
          UserError: If one is none, or does not answer.
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
        """Returns the first row of a batch for this trainer, and how many."""
        each = self.rows_per_trainer or batch_size
        first = min(self.trainer * each, batch_size)
        return first, min(each, batch_size - first)

    def read(
        self, batches: tf.data.Dataset, batch_size: int, parse: Parse
    ) -> tf.data.Dataset:
        """Has batches cut and parsed by the services.

        Args:
          batches: Number <int64>[] and serialized examples <string>[B] of each
            batch, without an end.
          batch_size: B.
          parse: What to do with the examples of a trainer.

        Returns:
          What `parse` returns for the rows of this trainer, in order.
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
        """Cuts batches into shares: of each those of all trainers in turn."""
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
        # Only of an endless dataset can trainers read the same batches.
        endless = tf.data.experimental.assert_cardinality(
            tf.data.INFINITE_CARDINALITY
        )
        return shares.prefetch(tf.data.AUTOTUNE).apply(endless)

    def _read_one(
        self, address: str, shares: tf.data.Dataset
    ) -> tf.data.Dataset:
        """Returns this trainer's shares from one service."""
        # All trainers give the same name, since their graphs differ in names
        # of functions, by which the service would tell them apart.
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
    """Raises `UserError` unless somebody listens; TensorFlow would wait."""
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
    """Returns the error to raise if a service was behind one."""
    if _FORGOTTEN in str(error):
        return UserError(
            "A data service of --tf_data_service was started anew meanwhile "
            "and does not know this run; start the run again, and it goes on "
            "from its last checkpoint."
        )
    if _OUT_OF_ORDER not in str(error):
        return None
    return UserError(
        "A data service of --tf_data_service has several data workers, whose "
        "order is not that of the run; start run/data_service.py on each "
        "machine that reads, and name all of them."
    )


def serve(config: DataServiceConfig) -> None:
    """Runs a service with one data worker until it is ended from outside.

    Raises:
      UserError: If it cannot start.
    """
    servers = start(config)
    for server in servers:
        server.join()


def start(
    config: DataServiceConfig,
) -> tuple[_service.DispatchServer, _service.WorkerServer]:
    """Starts a service with one data worker; it ends when nobody holds it.

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
            f"--worker_port={worker_port} ({error}); give ports that are free."
        ) from error
    logging.info(
        "Serving --tf_data_service=%s%s:%d; batches are fetched from port %d, "
        "too.",
        _PROTOCOL,
        host,
        config.port,
        worker_port,
    )
    return dispatcher, worker


def _require_free(flag: str, port: int) -> None:
    """Raises `UserError` if anybody listens; TensorFlow would share a port."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise UserError(
            f"--{flag}={port} cannot be listened at ({error}); give another "
            "one. A data service needs two ports, --port and --worker_port, by "
            "default the next one."
        ) from error

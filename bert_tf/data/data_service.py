"""Input made by other machines: tf.data service, in an order that is checked.

A dispatcher and data workers (run/data_service.py) make the batches of a run.
Batch after batch is dealt out to the data workers in turn, each of which cuts
its batches into the shares of all trainers. A trainer reads its shares in
rounds, one from each data worker. What the service promises is that a round
goes to all trainers alike, not in which order the data workers take turns, so
each share carries its number: a trainer reads as many as there are data
workers, sorts them, and checks that they are the next ones.
"""

import dataclasses

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.run_config import DataServiceConfig

_service = tf.data.experimental.service
_OUT_OF_ORDER = "The data workers gave other batches than the next ones:"


@dataclasses.dataclass(frozen=True)
class DataService:
    """A data service, as one trainer sees it.

    Attributes:
      address: "grpc://host:port" of the dispatcher.
      num_data_workers: Data workers that the dispatcher knows.
      token: Text that no other run or restart has, the same for all trainers.
      trainer: Number of this trainer.
      num_trainers: How many there are.
      rows_per_trainer: Rows of a batch for each trainer, the last ones of which
        may get fewer; None, for one trainer, means all.
    """

    address: str
    num_data_workers: int
    token: str
    trainer: int = 0
    num_trainers: int = 1
    rows_per_trainer: int | None = None

    def rows(self, batch_size: int) -> tuple[int, int]:
        """Returns the first row of a batch for this trainer, and how many."""
        each = self.rows_per_trainer or batch_size
        first = min(self.trainer * each, batch_size)
        return first, min(each, batch_size - first)

    def split(
        self, batches: tf.data.Dataset, batch_size: int
    ) -> tf.data.Dataset:
        """Cuts batches into shares; to be done by the data workers.

        Args:
          batches: Number <int64>[] and serialized examples <string>[B] of each
            batch, without an end.
          batch_size: B.

        Returns:
          Number <int64>[], first row <int64>[] and examples <string>[rows] of
          each share: of a batch those of all trainers, one after the other.
        """
        each = self.rows_per_trainer or batch_size
        hint = tf.data.experimental.SHARD_HINT

        def cut(number, serialized):
            def take(trainer):
                first = tf.minimum(trainer * each, batch_size)
                return number, first, serialized[first : first + each]

            return tf.data.Dataset.range(self.num_trainers).map(take)

        # Whoever makes a share reads all batches, but parses only its own.
        return batches.shard(hint, hint).flat_map(cut)

    def read(self, shares: tf.data.Dataset) -> tf.data.Dataset:
        """Has shares made by the service; returns those of this trainer.

        Args:
          shares: Number <int64>[] and features of each share, made of what
            `split` gives.

        Returns:
          The features, in the order of their numbers, from 0 on.
        """
        # Only of an endless dataset may trainers read the same rounds.
        shares = shares.apply(
            tf.data.experimental.assert_cardinality(
                tf.data.INFINITE_CARDINALITY
            )
        )
        # All trainers give the same name, since their graphs differ in names
        # of functions, by which the service would tell them apart.
        dataset_id = _service.register_dataset(
            self.address, shares, dataset_id=self.token
        )
        own = _service.from_dataset_id(
            _service.ShardingPolicy.HINT,
            self.address,
            dataset_id,
            element_spec=shares.element_spec,
            job_name=self.token,
            consumer_index=self.trainer,
            num_consumers=self.num_trainers,
        )
        size = self.num_data_workers

        def sort(turn, rounds):
            numbers, features = rounds
            order = tf.argsort(numbers)
            numbers = tf.gather(numbers, order)
            expected = turn * size + tf.range(size, dtype=tf.int64)
            check = tf.debugging.Assert(
                tf.reduce_all(numbers == expected),
                [_OUT_OF_ORDER, numbers, expected],
            )
            with tf.control_dependencies([check]):
                return {
                    name: tf.gather(value, order)
                    for name, value in features.items()
                }

        turns = own.batch(size, drop_remainder=True).enumerate()
        return turns.map(sort).unbatch()


def explain(error: tf.errors.OpError, service: DataService) -> UserError | None:
    """Returns the error to raise if it was the order that was wrong."""
    if _OUT_OF_ORDER not in str(error):
        return None
    return UserError(
        f"The data service at {service.address} does not have "
        f"--tf_data_service_workers={service.num_data_workers} data workers; "
        "give their number, which is that of the dispatcher's "
        "--worker_addresses."
    )


def serve(config: DataServiceConfig) -> None:
    """Runs a dispatcher or a data worker until it is ended from outside.

    Raises:
      UserError: If it cannot start.
    """
    start(config).join()


def start(
    config: DataServiceConfig,
) -> _service.DispatchServer | _service.WorkerServer:
    """Starts a dispatcher or a data worker.

    Raises:
      UserError: If it cannot start.
    """
    try:
        if config.dispatcher is None:
            return _service.DispatchServer(
                _service.DispatcherConfig(
                    port=config.port,
                    worker_addresses=config.worker_address_list(),
                )
            )
        return _service.WorkerServer(
            _service.WorkerConfig(
                dispatcher_address=config.dispatcher,
                port=config.port,
                worker_address=config.worker_address,
            )
        )
    except tf.errors.OpError as error:
        raise UserError(
            f"The data service cannot start at --port={config.port}: "
            f"{error.message}."
        ) from error

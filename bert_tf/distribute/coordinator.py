"""Exchanges values between the workers of a run, and synchronizes them.

All workers must call the methods in the same order, or they wait forever. Only
`finishing` waits for no other worker. In a run of one process, no method waits.
"""

import contextlib
import json
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.distribute.cluster import Cluster
from bert_tf.errors import UserError

# Pad arrays to at least 2**10 values, so that most sums share one graph.
_MIN_SIZE_LOG2 = 10


class Coordinator:
    """The workers of a run, or this process if `cluster` is None.

    Attributes:
      is_finishing: True in the `with` block of `finishing`.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        cluster: Cluster | None = None,
    ) -> None:
        self._strategy = strategy
        self._cluster = cluster
        self.is_finishing = False

    @property
    def is_chief(self) -> bool:
        """True for the worker that writes the files of the run."""
        return self._cluster is None or self._cluster.is_chief

    @property
    def index(self) -> int:
        return 0 if self._cluster is None else self._cluster.index

    @property
    def num_workers(self) -> int:
        return 1 if self._cluster is None else self._cluster.num_workers

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """Marks the time in which this worker writes its last checkpoint.

        If other workers are lost in this time, `health.Watch` gives this worker
        ten minutes before it ends the process.
        """
        self.is_finishing = True
        try:
            yield
        finally:
            self.is_finishing = False

    def agree(
        self,
        values: Mapping[str, Any],
        description: str,
        remedy: str = "give all of them the same command and the same files",
    ) -> None:
        """Raises `UserError` if not all workers have the same JSON values.

        The message names a worker and the values that differ. `description` is
        a noun phrase for all values, and `remedy` is advice for the user.
        """
        if self._cluster is None:
            return
        exchanged = self._exchange(values)
        for index, received in enumerate(exchanged):
            difference = _difference(exchanged[0], received)
            if difference:
                raise UserError(
                    f"All workers must have the same {description}, but "
                    f"{self._cluster.name(index)} and the chief do not: "
                    f"{difference}; {remedy}."
                )

    def from_chief(self, value: Any) -> Any:
        """Returns the chief's JSON value on all workers."""
        if self._cluster is None:
            return value
        return self._exchange(value if self.is_chief else None)[0]

    def next_call(self, count: int, stop: bool) -> tuple[int, bool]:
        """Returns the chief's count, and whether any worker has to stop."""
        if self._cluster is None:
            return count, stop
        own = [count if self.is_chief else 0, stop]
        chiefs, stopping = self._add_up(np.array(own, np.float32))
        return int(chiefs), bool(stopping)

    def barrier(self, name: str) -> None:
        """Waits for all workers."""
        if self._cluster is None:
            return
        self._add_up(np.zeros(1, np.float32))
        logging.debug("All workers have reached: %s.", name)

    def _exchange(self, value: Any) -> list[Any]:
        """Returns the JSON values of all workers, on all workers."""
        # Send bytes as float32, which is exact and which any device can sum.
        own = np.frombuffer(json.dumps(value).encode(), np.uint8)
        lengths = np.zeros(self.num_workers, np.float32)
        lengths[self.index] = own.size
        lengths = self._add_up(lengths).astype(int)
        table = np.zeros([self.num_workers, max(lengths)], np.float32)
        table[self.index, : own.size] = own
        table = self._add_up(table).astype(np.uint8)
        return [
            json.loads(row[:length].tobytes())
            for row, length in zip(table, lengths, strict=True)
        ]

    def _add_up(self, values: np.ndarray) -> np.ndarray:
        """Returns <float32>[...], the sum of the workers' values."""
        # Each size needs its own graph, so round the size up to a power of two.
        size = 2 ** max(_MIN_SIZE_LOG2, (values.size - 1).bit_length())
        padded = np.zeros(size, np.float32)
        padded[: values.size] = values.ravel()
        total = self._reduce(tf.constant(padded)).numpy()
        return total[: values.size].reshape(values.shape)

    @tf.function(autograph=False)
    def _reduce(self, values: tf.Tensor) -> tf.Tensor:
        per_worker = self._strategy.num_replicas_in_sync // self.num_workers

        def own_values() -> tf.Tensor:
            # Add a worker's values only once, on the worker's first replica.
            context = tf.distribute.get_replica_context()
            replica = tf.convert_to_tensor(context.replica_id_in_sync_group)
            is_first = tf.equal(replica % per_worker, 0)
            return tf.where(is_first, values, tf.zeros_like(values))

        return self._strategy.reduce(
            tf.distribute.ReduceOp.SUM,
            self._strategy.run(own_values),
            axis=None,
        )


def _difference(chief: Mapping[str, Any], worker: Mapping[str, Any]) -> str:
    """Describes how a worker's values differ from the chief's; "" if equal."""
    shown = {
        name: [
            repr(values[name]) if name in values else "nothing"
            for values in (worker, chief)
        ]
        for name in {**chief, **worker}
    }
    return "; ".join(
        f"{name} is {own} there, and {on_chief} on the chief"
        for name, (own, on_chief) in shown.items()
        if own != on_chief
    )

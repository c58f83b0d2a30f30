"""What all workers of a run do together.

Every method but the properties is collective: each worker calls it, in the
same order, or all wait for ever. A run of one process does nothing there.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from bert_tf.cluster import Cluster


class Coordinator:
    """What all workers of a run do together.

    Args:
      strategy: The devices of all of them.
      cluster: The workers; None for a run of one process.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        cluster: Cluster | None = None,
    ) -> None:
        self._strategy = strategy
        self._cluster = cluster

    @property
    def is_chief(self) -> bool:
        """Whether this worker writes what all have computed."""
        return self._cluster is None or self._cluster.is_chief

    @property
    def index(self) -> int:
        """Which worker this one is."""
        return 0 if self._cluster is None else self._cluster.index

    @property
    def num_workers(self) -> int:
        """How many there are."""
        return 1 if self._cluster is None else self._cluster.num_workers

    def agree(self, values: Mapping[str, Any], what: str) -> None:
        """Makes sure that all workers have the same values.

        Args:
          values: Name to JSON value.
          what: What they are, for the message.

        Raises:
          UserError: If they differ, naming worker, name and both values.
        """

    def from_chief(self, value: Any) -> Any:
        """Returns the chief's value, JSON, on all workers."""
        return value

    def next_call(self, count: int, stop: bool) -> tuple[int, bool]:
        """Returns the chief's count, and whether anybody is to stop."""
        return count, stop

    def barrier(self, name: str) -> None:
        """Waits for all workers.

        Args:
          name: What they have come to, for the log.
        """

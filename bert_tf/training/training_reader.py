"""The batches of a pretraining run, and what to do where they cannot be read.

Shapes:
  B: examples of a step, all replicas and micro-batches.
"""

import secrets
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import tensorflow as tf

from bert_tf import distribution
from bert_tf.coordination import Coordinator
from bert_tf.data import data_service
from bert_tf.data.data_service import DataService
from bert_tf.data.input_pipeline import PretrainingInput
from bert_tf.devices import Devices
from bert_tf.distribution import StepPlan
from bert_tf.run_config import PretrainConfig
from bert_tf.training import loop as training_loop
from bert_tf.training import training_data

_Result = TypeVar("_Result")


class TrainingReader:
    """Reads the batches of a run, from any step on.

    Args:
      config: The flags.
      source: The records.
      computing: Who computes.
      plan: How a step is spread.
      vocab_size: How many pieces the model knows.
    """

    def __init__(
        self,
        config: PretrainConfig,
        source: PretrainingInput,
        computing: Devices,
        plan: StepPlan,
        vocab_size: int,
    ) -> None:
        self._config = config
        self._source = source
        self._computing = computing
        self._plan = plan
        self._vocab_size = vocab_size
        self._service: DataService | None = None

    def read_from(self, step: int) -> Iterator[dict[str, tf.Tensor]]:
        """Returns what `TrainingLoop.run` reads from a step on.

        Of several workers all must call this together.
        """
        first = step * self._source.batch_size
        self._service = self._join_service()

        def read_rows(first_row: int, num_rows: int) -> tf.data.Dataset:
            rows = (first_row, num_rows)
            return self._prepare(
                self._source.dataset(first, rows, self._service)
            )

        batches = read_rows
        is_alone = self._computing.coordinator.num_workers == 1
        if self._source.budget.most and not is_alone:
            # Then all parse the same records, find the same ones damaged at
            # the same step, and none waits for another one meanwhile.
            batches = self._prepare(self._source.dataset(first))
        return distribution.deal(self._computing.strategy, batches, self._plan)

    def read_batch(self, step: int) -> Mapping[str, np.ndarray]:
        """Returns the batch, [B, ...], that a step, from 0 on, trains on."""
        dataset = self._source.dataset(step * self._source.batch_size)
        return next(dataset.as_numpy_iterator())

    def explain(self, error: tf.errors.OpError) -> Exception | None:
        """Returns the error to raise if the way of reading is behind one."""
        if self._service is None:
            return None
        return data_service.explain(error)

    def _prepare(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        dataset = training_data.check_ids(dataset, self._vocab_size)
        return training_loop.add_dropout_seeds(dataset, self._config.seed)

    def _join_service(self) -> DataService | None:
        """Returns what makes the batches, if that is not this process."""
        config, coordinator = self._config, self._computing.coordinator
        if config.tf_data_service is None:
            return None
        replicas = self._plan.num_replicas // coordinator.num_workers
        return DataService.find(
            config.tf_data_service,
            # What the service made for an earlier start is of no use.
            token=coordinator.from_chief(secrets.token_hex(8)),
            trainer=coordinator.index,
            num_trainers=coordinator.num_workers,
            rows_per_trainer=self._plan.per_replica * replicas,
        )


def leave_out_damaged(
    action: Callable[[], _Result],
    source: PretrainingInput,
    coordinator: Coordinator,
    vocab_size: int,
    explain: Callable[[tf.errors.OpError], Exception | None] | None = None,
) -> _Result:
    """Does what reads from `source`, again after each repair of it.

    Args:
      action: Begins anew, where it came to, each time it is called.
      source: What it reads.
      coordinator: What all workers do together; they find the same damage.
      vocab_size: How many pieces the model knows.
      explain: Returns the error to raise for other reasons.

    Returns:
      What `action` returns.

    Raises:
      UserError: If a record cannot be read or used, and cannot be left out.
    """
    while True:
        try:
            return action()
        except tf.errors.OpError as error:
            if source.repair(error):
                _compare_repairs(source, coordinator)
                continue
            explanation = (
                training_data.explain_ids(error, vocab_size)
                or (explain and explain(error))
                or source.explain(error)
            )
            if explanation is None:
                raise
            raise explanation from error


def _compare_repairs(source: PretrainingInput, coordinator: Coordinator):
    """Makes sure that all workers have left out the same records."""
    coordinator.agree(
        {
            f"record {record.record} of {record.file}": record.reason
            for record in source.budget.left_out
        },
        "records, damaged ones included",
    )

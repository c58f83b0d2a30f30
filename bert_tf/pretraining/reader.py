"""Reads the batches of a pretraining run and handles damaged records.

Shapes:
  B: examples of a step, all replicas and micro-batches.
"""

import contextlib
import itertools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import tensorflow as tf

from bert_tf.data.input_pipeline import PretrainingInput
from bert_tf.distribute import batches as batches_lib
from bert_tf.distribute import health as worker_health
from bert_tf.distribute.batches import StepPlan
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.features import INPUT_MASK
from bert_tf.flags.pretrain import PretrainConfig
from bert_tf.pretraining import data as pretraining_input
from bert_tf.training import unpad as unpadding

# Errors that reading a damaged record raises.
_READ_ERRORS = (tf.errors.DataLossError, tf.errors.InvalidArgumentError)
# Batches to estimate the share of padding from.
_SAMPLED_BATCHES = 8
# How long the workers wait for each other at a damaged record, in seconds.
_TIMEOUT = 60.0

_Result = TypeVar("_Result")


class TrainingReader:
    """Reads the batches of a run, starting at any step."""

    def __init__(
        self,
        config: PretrainConfig,
        source: PretrainingInput,
        devices: Devices,
        vocab_size: int,
    ) -> None:
        self._config = config
        self._source = source
        self._devices = devices
        self._vocab_size = vocab_size

    def share_of_tokens(self, step: int) -> float:
        """Returns the share of tokens among the positions of some batches."""
        dataset = self._source.dataset(step * self._source.batch_size)
        dataset = dataset.take(_SAMPLED_BATCHES)
        masks = [batch[INPUT_MASK.name] for batch in dataset]
        return float(np.mean(masks))

    def read_from(
        self, step: int, plan: StepPlan, unpad: bool = False
    ) -> Iterator[dict[str, tf.Tensor]]:
        """Returns the batches from a step on, for `TrainingStep.run`.

        All workers must call this together.

        Args:
          step: The step, counted from 0.
          plan: How a batch is split.
          unpad: Whether to add the tokens, so that padding is not computed.
        """
        first = step * self._source.batch_size

        def read_rows(first_row: int, num_rows: int) -> tf.data.Dataset:
            rows = (first_row, num_rows)
            return self._prepare(self._source.dataset(first, rows))

        batches = read_rows
        is_single = self._devices.coordinator.num_workers == 1
        if self._source.budget.most and not is_single:
            # Then all workers parse the same records and detect the same
            # damage at the same step, so none waits for another one.
            batches = self._prepare(self._source.dataset(first))
        transform = None
        if unpad:
            longest = [self._config.max_seq_length]
            transform = unpadding.token_finder(plan, longest)
        return batches_lib.distribute_batches(
            self._devices.strategy, batches, plan, transform=transform
        )

    def read_batch(self, step: int) -> Mapping[str, np.ndarray]:
        """Returns the batch, [B, ...], of a step, counted from 0."""
        dataset = self._source.dataset(step * self._source.batch_size)
        return next(dataset.as_numpy_iterator())

    def _prepare(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        dataset = pretraining_input.check_ids(dataset, self._vocab_size)
        return batches_lib.add_dropout_seeds(dataset, self._config.seed)


def leave_out_damaged(
    name: str,
    action: Callable[[], _Result],
    source: PretrainingInput,
    devices: Devices,
    vocab_size: int,
) -> _Result:
    """Runs an action that reads records, and reruns it after each repair.

    The action continues where it stopped when it is called again; its name is
    unique within the process.

    Raises:
      UserError: If a record cannot be read or used, and cannot be left out, or
        if the workers do not have the same records.
    """
    require_same(source, devices)
    # Closed here, as a process that stops early does not run finalizers.
    with contextlib.closing(source):
        for attempt in itertools.count():
            try:
                return action()
            except tf.errors.OpError as error:
                if source.budget.most and isinstance(error, _READ_ERRORS):
                    _require_all(devices, f"{name} {attempt}", error)
                if source.repair(error):
                    require_same(source, devices)
                    continue
                explanation = pretraining_input.explain_ids(
                    error, vocab_size
                ) or source.explain(error)
                if explanation is None:
                    raise
                raise explanation from error


def _require_all(
    devices: Devices, place: str, error: tf.errors.OpError
) -> None:
    """Checks that all workers got the same error."""
    missing = worker_health.meet(devices.cluster, place, _TIMEOUT)
    if missing:
        names = " and ".join(map(devices.cluster.name, missing))
        reason = str(error).splitlines()[0]
        raise UserError(
            f"This worker cannot read a record that {names} can ({reason}); "
            "all must have the same records, so copy them to it again."
        ) from error


def require_same(source: PretrainingInput, devices: Devices) -> None:
    """Checks that all workers read, and have left out, the same records."""
    devices.coordinator.agree(
        {
            f"the number of records in {path}": int(count)
            for path, count in zip(
                source.record_files, source.record_counts, strict=True
            )
        }
        | {
            f"record {record.record} of {record.file}": record.reason
            for record in source.budget.left_out
        },
        "records, damaged ones included",
    )

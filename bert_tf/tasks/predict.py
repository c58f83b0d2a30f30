"""Computes what predictions are made of: the outputs of a model, row by row.

Shapes:
  N: rows of features.
  B: batch size.
  R: replicas.
  T: length of a batch.
"""

import collections
import dataclasses
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from bert_tf.data import length_buckets
from bert_tf.errors import NotFiniteError
from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.features import SEGMENT_IDS
from bert_tf.io import progress
from bert_tf.tasks.task import NOT_FINITE
from bert_tf.tasks.task import Features
from bert_tf.tasks.task import Task

# All else in a batch is for the loss.
MODEL_INPUTS = (INPUT_IDS.name, INPUT_MASK.name, SEGMENT_IDS.name)


@dataclasses.dataclass(frozen=True)
class Computed:
    """What a model makes of rows.

    Attributes:
      outputs: Name to N arrays, one a row; an axis of positions is as long as
        the row's batch was, so maybe longer than the row.
      loss: The weighted mean of `Task.losses` over all rows; None where they
        have no labels, or labels without any weight.
    """

    outputs: dict[str, list[np.ndarray]]
    loss: float | None


def allowed_lengths(
    lengths: np.ndarray, max_seq_length: int, num_length_buckets: int = 0
) -> tuple[int, ...]:
    """Returns the lengths that batches may have, rising.

    Args:
      lengths: <int64>[N], at most `max_seq_length`.
      max_seq_length: The greatest length.
      num_length_buckets: How many lengths at most, for devices that compile a
        program for each; 1 pads all to `max_seq_length`, as the original does;
        0 allows every multiple of 8.
    """
    if num_length_buckets == 0:
        return length_buckets.every_multiple(max_seq_length)
    return length_buckets.fewest_padding(
        lengths, max_seq_length, num_length_buckets
    )


class OutputComputer:
    """Computes the outputs of one model for any number of rows, any often.

    All calls share one compiled function, whatever the lengths are. Of several
    workers each is given all rows, computes its own, and gets all outputs.

    Args:
      model: The model, which lives where `strategy` says.
      task: What `losses` and `outputs` are taken of.
      batch_size: Rows computed at once on all replicas together; rounded up so
        that each replica gets as many.
      strategy: The devices; by default those that TensorFlow chooses.
    """

    def __init__(
        self,
        model: keras.Model,
        task: Task,
        batch_size: int,
        strategy: tf.distribute.Strategy | None = None,
    ) -> None:
        self._model = model
        self._task = task
        self._strategy = strategy or tf.distribute.get_strategy()
        self._replicas = self._strategy.num_replicas_in_sync
        self._batch_size = self._round_up(batch_size)
        # TPUs know static shapes only, and so need a program for each.
        self._is_static = isinstance(self._strategy, tf.distribute.TPUStrategy)
        self._functions: dict[tuple, Callable] = {}

    def compute(
        self,
        features: Features,
        lengths: Sequence[int],
        on_rows: Callable[[int], object] | None = None,
    ) -> Computed:
        """Returns the outputs of all rows, in order.

        Rows of like length share a batch, the longest come first, and the last
        batch is filled up with rows that are computed in vain: so batches
        differ in nothing but their lengths.

        Args:
          features: N rows.
          lengths: Those that batches may have, from `allowed_lengths`.
          on_rows: Called with the number of rows of each batch when it is
            done.

        Raises:
          UserError: If a row is longer than all of `lengths`.
          NotFiniteError: If an output is not finite.
        """
        if not len(features):
            # Nobody has computed anything that would have a name.
            return Computed(collections.defaultdict(list), None)
        size = min(self._batch_size, self._round_up(len(features)))
        rows: dict[str, list] = {}
        # In float64, as float32 loses small terms in long sums.
        sums = np.zeros([2])
        for planned in length_buckets.prediction_batches(
            features.lengths, size, lengths
        ):
            count = len(planned.indices)
            batch = features.batch(
                np.resize(planned.indices, size), planned.length
            )
            is_row = (np.arange(size) < count).astype(np.float32)
            outputs, loss_sums = self._run(batch, is_row)
            sums += loss_sums
            for name, values in outputs.items():
                if not np.isfinite(values).all():
                    raise NotFiniteError(NOT_FINITE)
                of_rows = rows.setdefault(name, [None] * len(features))
                for index, value in zip(planned.indices, values, strict=False):
                    of_rows[index] = value
            if on_rows is not None:
                on_rows(count)
        loss_sum, weight = sums.tolist()
        return Computed(rows, loss_sum / weight if weight else None)

    def _round_up(self, count: int) -> int:
        return -(-count // self._replicas) * self._replicas

    def _run(
        self, batch: Mapping[str, np.ndarray], is_row: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Computes one batch.

        Args:
          batch: What `Features.batch` returns.
          is_row: <float32>[B], 0 for what only fills it up.

        Returns:
          The outputs, [B, ...] each, and <float64>[2]: the sum of the losses
          and that of their weights.
        """
        tensors = {name: tf.constant(value) for name, value in batch.items()}
        outputs, sums = self._function(tensors)(tensors, tf.constant(is_row))
        return (
            {name: value.numpy() for name, value in outputs.items()},
            np.asarray(sums, np.float64),
        )

    def _function(self, tensors: Mapping[str, tf.Tensor]) -> Callable:
        """Returns the function for tensors of such names and dtypes."""
        specs = {
            name: tf.TensorSpec(
                x.shape if self._is_static else [None] * x.shape.rank, x.dtype
            )
            for name, x in tensors.items()
        }
        key = tuple(
            sorted((n, s.dtype, str(s.shape)) for n, s in specs.items())
        )
        if key not in self._functions:
            self._functions[key] = tf.function(
                self._compute,
                input_signature=[specs, tf.TensorSpec([None], tf.float32)],
                autograph=False,
            )
        return self._functions[key]

    def _compute(
        self, batch: Mapping[str, tf.Tensor], is_row: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Returns what `_run` does, in graph."""

        def compute_part():
            mine = {name: self._part(value) for name, value in batch.items()}
            outputs = self._model(
                {name: mine[name] for name in MODEL_INPUTS}, training=False
            )
            return self._task.outputs(outputs), self._loss_sums(
                outputs, mine, self._part(is_row)
            )

        outputs, sums = self._strategy.run(compute_part)
        # Each worker gets all of it, so that all decide alike.
        return (
            {
                name: self._strategy.gather(value, axis=0)
                for name, value in outputs.items()
            },
            self._strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None),
        )

    def _part(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the rows of this replica, [B / R, ...] of [B, ...]."""
        shape = tf.shape(tensor)
        parts = tf.reshape(
            tensor,
            tf.concat(
                [[self._replicas, shape[0] // self._replicas], shape[1:]], 0
            ),
        )
        context = tf.distribute.get_replica_context()
        return parts[context.replica_id_in_sync_group]

    def _loss_sums(
        self,
        outputs: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        is_row: tf.Tensor,
    ) -> tf.Tensor:
        """Returns <float32>[2]: the sum of the losses, that of the weights."""
        if set(batch) <= set(MODEL_INPUTS):
            return tf.zeros([2])
        losses = self._task.losses(outputs, batch)
        weights = self._task.loss_weights(batch)
        weights *= tf.reshape(is_row, [-1] + [1] * (weights.shape.rank - 1))
        return tf.stack(
            [tf.reduce_sum(losses * weights), tf.reduce_sum(weights)]
        )


def compute_outputs(
    model: keras.Model,
    task: Task,
    features: Features,
    batch_size: int,
    lengths: Sequence[int],
    strategy: tf.distribute.Strategy | None = None,
    description: str = "predicting",
) -> Computed:
    """Computes the outputs of all rows once, with a progress bar.

    Args:
      model: As for `OutputComputer`, like the next two.
      task: The task.
      batch_size: Rows computed at once.
      features: N rows.
      lengths: Those that batches may have, from `allowed_lengths`.
      strategy: The devices.
      description: What the progress bar says is being done.
    """
    computer = OutputComputer(model, task, batch_size, strategy)
    with progress.bar(len(features), description, "row") as bar:
        return computer.compute(features, lengths, bar.update)

"""Splits batches over workers, replicas and micro-batches; seeds dropout.

Each row of a batch is computed exactly once, on any number of replicas. If the
replicas cannot share a batch evenly, the last shares also get blank rows. All
features of a blank row are 0; losses ignore rows with an `input_mask` of 0.

Shapes:
  B: examples of a step, over all replicas and micro-batches.
  R: rows of a replica in a step, including blank rows.
"""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping

import tensorflow as tf

from bert_tf import stateless_random
from bert_tf.features import INPUT_MASK

# The id of dropout's random stream; no other random stream may use this id.
_DROPOUT_STREAM = 21


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """The split of a step's examples over replicas and micro-batches.

    For example, 2 replicas share 10 rows in micro-batches of 3: replica 0 gets
    rows 0-2, then 3-5; replica 1 gets rows 6-8, then row 9 and 2 blank rows.

    Attributes:
      batch_size: Examples of a step, B.
      num_replicas: Devices that share the batch, over all workers.
      max_micro_batch_size: Maximum rows of a micro-batch; 0 means all.
    """

    batch_size: int
    num_replicas: int = 1
    max_micro_batch_size: int = 0

    @property
    def num_micro_batches(self) -> int:
        """Number of micro-batches that a replica computes in a step."""
        share = _divide_up(self.batch_size, self.num_replicas)
        return _divide_up(share, self.max_micro_batch_size or share)

    @property
    def micro_batch_size(self) -> int:
        """Number of rows that a replica computes at once."""
        parts = self.num_replicas * self.num_micro_batches
        return _divide_up(self.batch_size, parts)

    @property
    def per_replica(self) -> int:
        """Number of rows that a replica computes in a step, R."""
        return self.micro_batch_size * self.num_micro_batches


def _divide_up(count: int, parts: int) -> int:
    return -(-count // parts)


# (first_row, num_rows) -> the dataset with these rows of each batch.
ReadRows = Callable[[int, int], tf.data.Dataset]


def distribute_batches(
    strategy: tf.distribute.Strategy,
    dataset: tf.data.Dataset | ReadRows,
    plan: StepPlan,
    finite: bool = False,
    transform: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]]
    | None = None,
) -> Iterator[dict[str, tf.Tensor]]:
    """Returns an iterator that gives each replica its rows of each batch.

    Args:
      strategy: The strategy of the run.
      dataset: Whole batches of `plan.batch_size` rows; or a function that
        returns only one worker's rows of each batch.
      plan: The split of a batch.
      finite: Whether the batches end, as in an evaluation.
      transform: Changes each replica's rows, [R, ...].
    """

    def for_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        replicas = context.num_replicas_in_sync // context.num_input_pipelines
        share = plan.per_replica * replicas
        first = min(share * context.input_pipeline_id, plan.batch_size)
        count = min(share, plan.batch_size - first)
        own = _own_rows(dataset, first, count, plan.batch_size)
        if count < share:
            own = own.map(
                lambda batch: {
                    name: fill_up(x, share) for name, x in batch.items()
                }
            )
        if plan.per_replica < share:
            own = own.rebatch(plan.per_replica, drop_remainder=True)
        if transform is not None:
            own = own.map(transform, num_parallel_calls=tf.data.AUTOTUNE)
        if not finite:
            # Declare the dataset infinite, or each step would check whether it
            # has ended.
            mark = tf.data.experimental.assert_cardinality
            own = own.apply(mark(tf.data.INFINITE_CARDINALITY))
        return untuned(own.prefetch(tf.data.AUTOTUNE))

    return iter(strategy.distribute_datasets_from_function(for_worker))


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset without TensorFlow's tuning thread.

    The thread may sleep for a minute, and the end of an iterator would have to
    wait until the thread ends.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _own_rows(dataset, first: int, count: int, batch_size: int):
    """Returns the dataset of some rows of each batch."""
    if callable(dataset):
        return dataset(first, count)
    if count == batch_size:
        return dataset
    rows = slice(first, first + count)
    return dataset.map(
        lambda batch: {name: x[rows] for name, x in batch.items()}
    )


def fill_up(value: tf.Tensor, num_rows: int) -> tf.Tensor:
    """Appends blank rows until there are `num_rows`."""
    missing = num_rows - tf.shape(value)[0]
    padded = tf.pad(value, [[0, missing]] + [[0, 0]] * (value.shape.rank - 1))
    return tf.ensure_shape(padded, [num_rows, *value.shape[1:]])


def example_weights(rows: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns <float32>[B], in graph: 0 where `input_mask` is blank, else 1."""
    mask = tf.convert_to_tensor(rows[INPUT_MASK.name])
    is_row = tf.reduce_any(mask > 0, axis=list(range(1, mask.shape.rank)))
    return tf.cast(is_row, tf.float32)


def add_dropout_seeds(dataset: tf.data.Dataset, seed: int) -> tf.data.Dataset:
    """Replaces `example_index` <int64>[B] by `dropout_seeds` <int32>[B].

    A seed depends only on the run's seed and the example's index in the stream,
    so dropout does not depend on replicas and micro-batches.
    """

    def add(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        batch = dict(batch)
        index = batch.pop("example_index")
        bits = stateless_random.random_bits(seed, _DROPOUT_STREAM, index)
        low = tf.bitwise.bitwise_and(bits, tf.constant(2**31 - 1, tf.uint64))
        return batch | {"dropout_seeds": tf.cast(low, tf.int32)}

    return dataset.map(add, num_parallel_calls=tf.data.AUTOTUNE)

"""Batch prediction: model outputs row by row, and predictions of examples.

Shapes:
  N: rows of features.
  B: batch size.
  R: replicas.
"""

import collections
import dataclasses
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.data import length_buckets
from bert_tf.errors import NotFiniteError
from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.features import SEGMENT_IDS
from bert_tf.modeling import layouts
from bert_tf.modeling.dropout import shape_of
from bert_tf.tasks.task import NOT_FINITE
from bert_tf.tasks.task import Features
from bert_tf.tasks.task import Task
from bert_tf.tasks.task import TensorMap
from bert_tf.text.tokenizer import BertTokenizer

# The model reads these tensors of a batch; only the loss reads others.
MODEL_INPUTS = (INPUT_IDS.name, INPUT_MASK.name, SEGMENT_IDS.name)
# Rows in a chunk: enough for batches of rows with similar lengths, but few
# enough to fit in memory.
EXAMPLES_PER_CHUNK = 4096


@dataclasses.dataclass(frozen=True)
class Computed:
    """Model outputs and the mean loss of a set of rows.

    Attributes:
      outputs: N arrays, one per row, for each output. If an array has a value
        per token, it also has values of the row's padding.
      loss: The weighted mean of `Task.losses` over all rows; None if there are
        no labels or all weights are 0.
    """

    outputs: dict[str, list[np.ndarray]]
    loss: float | None


def allowed_lengths(
    lengths: np.ndarray, max_seq_length: int, num_length_buckets: int = 0
) -> tuple[int, ...]:
    """Returns the lengths that batches may have, in ascending order.

    Devices that compile a program for each length need few lengths: at most
    `num_length_buckets`, chosen for rows of `lengths` <int64>[N]. With 1, the
    only length is `max_seq_length`, as in the original; 0 allows every multiple
    of 8 up to it.
    """
    if num_length_buckets == 0:
        return length_buckets.every_multiple(max_seq_length)
    return length_buckets.fewest_padding(
        lengths, max_seq_length, num_length_buckets
    )


class OutputComputer:
    """Computes a model's outputs for rows, in batches of similar lengths.

    Except on TPUs, one compiled function serves all lengths. Every worker
    receives all rows, computes a part of them, and returns all outputs. The
    model must be built under `strategy`, by default the current strategy.

    `batch_size` rows are computed at once on all replicas together; it is
    rounded up to a multiple of the number of replicas. If the attribute `unpad`
    is true, padding is skipped. Without `compiles`, batches run eagerly.
    """

    def __init__(
        self,
        model: keras.Model,
        task: Task,
        batch_size: int,
        strategy: tf.distribute.Strategy | None = None,
        unpad: bool = False,
        compiles: bool = True,
    ) -> None:
        self.unpad = unpad
        self._compiles = compiles
        self._model = model
        self._task = task
        self._strategy = strategy or tf.distribute.get_strategy()
        self._replicas = self._strategy.num_replicas_in_sync
        self._batch_size = self._round_up(batch_size)
        # TPUs need static shapes, so a program is compiled for each shape.
        self._is_static = isinstance(self._strategy, tf.distribute.TPUStrategy)
        self._functions: dict[tuple, Callable] = {}

    def compute(
        self,
        features: Features,
        lengths: Sequence[int],
        on_rows: Callable[[int], object] | None = None,
    ) -> Computed:
        """Returns the outputs of all rows, in order.

        With several `lengths`, rows of similar length share a batch, and the
        longest come first. Repeated rows fill up the last batch, so that all
        batches have the same size; their outputs are dropped. `on_rows` is
        called after each batch with its number of rows.

        Raises:
          UserError: If a row is longer than every length in `lengths`.
          NotFiniteError: If an output is not finite.
        """
        if not len(features):
            # Without a batch, output names are unknown: return [] for any name.
            return Computed(collections.defaultdict(list), None)
        size = min(self._batch_size, self._round_up(len(features)))
        rows: dict[str, list] = {}
        # Sum in float64, because float32 loses small terms in long sums.
        sums = np.zeros([2])
        for planned in length_buckets.prediction_batches(
            features.lengths, size, lengths
        ):
            count = len(planned.indices)
            batch = features.batch(
                np.resize(planned.indices, size), planned.length
            )
            is_row = (np.arange(size) < count).astype(np.float32)
            tensors = {name: tf.constant(x) for name, x in batch.items()}
            outputs, loss_sums = self._function(tensors)(
                tensors, tf.constant(is_row)
            )
            sums += loss_sums.numpy()
            for name, tensor in outputs.items():
                values = tensor.numpy()
                if not np.isfinite(values).all():
                    raise NotFiniteError(NOT_FINITE)
                row_values = rows.setdefault(name, [None] * len(features))
                for index, value in zip(planned.indices, values, strict=False):
                    row_values[index] = value
            if on_rows is not None:
                on_rows(count)
        loss_sum, weight = sums.tolist()
        return Computed(rows, loss_sum / weight if weight else None)

    def _round_up(self, count: int) -> int:
        return -(-count // self._replicas) * self._replicas

    def _function(self, tensors: TensorMap) -> Callable:
        """Returns the compiled function for the specs of these tensors."""
        if not self._compiles:
            return self._compute
        specs = {
            name: tf.TensorSpec(
                x.shape if self._is_static else [None] * x.shape.rank, x.dtype
            )
            for name, x in tensors.items()
        }
        key = (
            self.unpad,
            *sorted((n, s.dtype, str(s.shape)) for n, s in specs.items()),
        )
        if key not in self._functions:
            self._functions[key] = tf.function(
                self._compute,
                input_signature=[specs, tf.TensorSpec([None], tf.float32)],
                autograph=False,
            )
        return self._functions[key]

    def _compute(
        self, batch: TensorMap, is_row: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Returns outputs [B, ...], and the sums of losses and weights."""

        def compute_part():
            part = {name: self._part(value) for name, value in batch.items()}
            inputs = {name: part[name] for name in MODEL_INPUTS}
            if self.unpad:
                inputs |= self._find_tokens(inputs[INPUT_MASK.name])
            outputs = self._model(inputs, training=False)
            return self._task.select_outputs(outputs), self._loss_sums(
                outputs, part, self._part(is_row)
            )

        outputs, sums = self._strategy.run(compute_part)
        # Send all outputs to every worker, so all compute the same metrics.
        return (
            {
                name: self._strategy.gather(value, axis=0)
                for name, value in outputs.items()
            },
            self._strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None),
        )

    def _find_tokens(self, input_mask: tf.Tensor) -> dict[str, tf.Tensor]:
        if self._model.for_inference:
            return layouts.find_tokens(input_mask, for_inference=True)
        # A training model's layers are compiled for each number of tokens. So
        # round the number up to a multiple of `step`, to get few numbers.
        batch, *choices, _ = shape_of(input_mask)
        step = layouts.row_step([*choices, self._task.max_seq_length])
        return layouts.find_tokens_of_parts(input_mask, batch, step)

    def _part(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns this replica's rows, [B / R, ...] out of [B, ...]."""
        shape = tf.concat([[self._replicas, -1], tf.shape(tensor)[1:]], 0)
        parts = tf.reshape(tensor, shape)
        context = tf.distribute.get_replica_context()
        return parts[context.replica_id_in_sync_group]

    def _loss_sums(
        self,
        outputs: TensorMap,
        batch: TensorMap,
        is_row: tf.Tensor,
    ) -> tf.Tensor:
        """Returns <float32>[2]: sum of weighted losses, sum of weights."""
        if set(batch) <= set(MODEL_INPUTS):
            return tf.zeros([2])
        losses = self._task.losses(outputs, batch)
        weights = self._task.loss_weights(batch)
        weights *= tf.reshape(is_row, [-1] + [1] * (weights.shape.rank - 1))
        return tf.stack(
            [tf.reduce_sum(losses * weights), tf.reduce_sum(weights)]
        )


class Predictor:
    """Predicts examples with a fine-tuned model, its tokenizer and its task.

    The arguments are as for `OutputComputer` and `allowed_lengths`. The batch
    lengths are chosen for the first examples and reused for all later ones.
    """

    def __init__(
        self,
        model: keras.Model,
        task: Task,
        tokenizer: BertTokenizer,
        batch_size: int = 32,
        num_length_buckets: int = 0,
        strategy: tf.distribute.Strategy | None = None,
        unpad: bool = False,
        compiles: bool = True,
    ) -> None:
        self.task = task
        self._tokenizer = tokenizer
        self._num_length_buckets = num_length_buckets
        self._lengths: tuple[int, ...] | None = None
        self._computer = OutputComputer(
            model, task, batch_size, strategy, unpad, compiles
        )

    def predict(
        self,
        examples: Sequence[Any],
        on_examples: Callable[[int], object] | None = None,
    ) -> list[Any]:
        """Returns the task's prediction for each example.

        `on_examples` is called repeatedly with the number of examples finished
        since the last call, so the numbers add up to `len(examples)`.
        """
        if not examples:
            return []
        features = self.task.featurize(examples, self._tokenizer)
        rows_done = reported = 0

        def report(rows: int) -> None:
            nonlocal rows_done, reported
            rows_done += rows
            done = len(examples) * rows_done // len(features)
            if on_examples is not None and done > reported:
                on_examples(done - reported)
            reported = done

        lengths = self._lengths_for(features)
        outputs = self._computer.compute(features, lengths, report).outputs
        if on_examples is not None and not len(features):
            # Without rows, `compute` reports no progress, so report it here.
            on_examples(len(examples))
        return self.task.predict(examples, features, outputs, self._tokenizer)

    def choose_lengths(self, examples: Sequence[Any]) -> None:
        """Sets the batch lengths as if these examples were predicted."""
        if self._num_length_buckets and self._lengths is None:
            self._lengths_for(self.task.featurize(examples, self._tokenizer))

    def _lengths_for(self, features: Features) -> tuple[int, ...]:
        if self._lengths is None and len(features):
            self._lengths = allowed_lengths(
                features.lengths,
                self.task.max_seq_length,
                self._num_length_buckets,
            )
        return self._lengths or ()

    def describe(
        self,
        examples: Sequence[Any],
        on_examples: Callable[[int], object] | None = None,
    ) -> list[dict[str, Any]]:
        """Predicts examples; returns the JSON objects written for users."""
        return [
            self.task.prediction_to_json(example, predicted)
            for example, predicted in zip(
                examples, self.predict(examples, on_examples), strict=True
            )
        ]


def chunks(task: Task, examples: Iterable[Any]) -> Iterator[list[Any]]:
    """Splits examples into chunks that can be predicted one by one.

    A chunk has about `EXAMPLES_PER_CHUNK` rows, but more if examples must share
    a chunk (`Task.must_share_chunk`).
    """
    chunk: list[Any] = []
    rows = 0
    for example in examples:
        is_full = rows >= EXAMPLES_PER_CHUNK
        if is_full and not task.must_share_chunk(chunk[-1], example):
            yield chunk
            chunk, rows = [], 0
        chunk.append(example)
        rows += task.num_rows(example)
    if chunk:
        yield chunk

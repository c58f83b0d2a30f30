"""Training batches for fine-tuning, starting at any step.

Shapes:
  B: batch size.
  T: length of a batch.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.data import length_buckets
from bert_tf.distribute import batches as batches_lib
from bert_tf.errors import UserError
from bert_tf.features import INPUT_MASK
from bert_tf.flags.finetune import TrialConfig
from bert_tf.tasks.task import Features
from bert_tf.tasks.task import Task

# Batches to estimate the mean length of examples from.
_SAMPLED_BATCHES = 32


class FinetuneInput:
    """The training batches of a trial.

    Args:
      lengths: The lengths that batches may have, ascending.
      most_lengths: The maximum number of lengths to use where a program is
        compiled for each; 0 means all. The examples of a batch do not depend
        on it.
    """

    def __init__(
        self,
        features: Features,
        batch_size: int,
        seed: int,
        num_steps: int,
        lengths: Sequence[int],
        most_lengths: int = 0,
    ) -> None:
        self._features = features
        self._batch_size = batch_size
        self._seed = seed
        self._has_one_length = len(lengths) == 1
        self._plan = length_buckets.training_batches(
            features.lengths, batch_size, seed, num_steps, lengths
        )
        if most_lengths:
            self._plan = _with_few_lengths(self._plan, lengths, most_lengths)

    def read(
        self, step: int, rows: slice = slice(None)
    ) -> Mapping[str, np.ndarray]:
        """Returns the batch of a step, counted from 0, or some of its rows.

        It holds the features of `Features.batch` and `example_index`
        <int64>[B], the number of each example in the stream.
        """
        # A pipeline reads ahead of the last step.
        planned = self._plan[step % len(self._plan)]
        batch = self._features.batch(planned.indices[rows], planned.length)
        first = step * self._batch_size
        index = np.arange(first, first + self._batch_size, dtype=np.int64)
        return batch | {"example_index": index[rows]}

    def tokens_per_example(self) -> float:
        """Returns the mean number of tokens per example, for the log.

        The mean is taken over some batches and counts all choices of an
        example.
        """
        steps = np.linspace(0, len(self._plan) - 1, _SAMPLED_BATCHES, dtype=int)
        tokens = [self.read(step)[INPUT_MASK.name].sum() for step in steps]
        return float(np.mean(tokens) / self._batch_size)

    def share_of_tokens(self) -> float:
        """Returns the share of tokens among the positions of some batches."""
        steps = np.linspace(0, len(self._plan) - 1, _SAMPLED_BATCHES, dtype=int)
        masks = [self.read(step)[INPUT_MASK.name] for step in steps]
        return float(sum(x.sum() for x in masks) / sum(x.size for x in masks))

    def row_shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """Returns the row shapes of each batch length, by feature name."""
        examples = {batch.length: batch.indices[:1] for batch in self._plan}
        rows = [
            self._features.batch(examples[length], length)
            for length in sorted(examples)
        ]
        return [{name: x.shape[1:] for name, x in row.items()} for row in rows]

    def dataset(
        self, step: int, first_row: int = 0, num_rows: int | None = None
    ) -> tf.data.Dataset:
        """Returns endless batches with `dropout_seeds`."""
        end = self._batch_size if num_rows is None else first_row + num_rows
        rows = slice(first_row, end)

        def generate() -> Iterator[Mapping[str, np.ndarray]]:
            for number in itertools.count(step):
                yield self.read(number, rows)

        dataset = tf.data.Dataset.from_generator(
            generate,
            output_signature={
                name: tf.TensorSpec(self._shape(value), value.dtype)
                for name, value in self.read(step, rows).items()
            },
        )
        return batches_lib.add_dropout_seeds(dataset, self._seed)

    def _shape(self, value: np.ndarray) -> list[int | None]:
        if self._has_one_length:
            return list(value.shape)
        return [value.shape[0], *[None] * (value.ndim - 1)]


def _with_few_lengths(
    plan: Sequence[length_buckets.Batch],
    lengths: Sequence[int],
    most_lengths: int,
) -> list[length_buckets.Batch]:
    """Returns the same batches, padded to a few of the lengths."""
    few = length_buckets.fewest_padding(
        np.array([batch.length for batch in plan]), lengths[-1], most_lengths
    )
    padded = [few[np.searchsorted(few, batch.length)] for batch in plan]
    return [
        dataclasses.replace(batch, length=int(length))
        for batch, length in zip(plan, padded, strict=True)
    ]


def rows_per_step(
    task: Task, batch_size: int, num_examples: int, num_rows: int
) -> int:
    """Returns the rows of a step."""
    rows = task.rows_per_step(batch_size, num_examples, num_rows)
    if rows == batch_size:
        return rows
    logging.info(
        "A step takes %d rows, which hold about --train_batch_size=%d "
        "examples.",
        rows,
        batch_size,
    )
    return rows


def count_steps(
    num_rows: int, batch_size: int, trial_config: TrialConfig
) -> int:
    """Returns the steps of a trial (run_classifier.py:843-845)."""
    steps = int(num_rows / batch_size * trial_config.num_train_epochs)
    if not steps:
        raise UserError(
            f"{num_rows} rows, "
            f"--train_batch_size={trial_config.train_batch_size} and "
            f"--num_train_epochs={trial_config.num_train_epochs:g} make less "
            "than one step; set a smaller batch or more epochs."
        )
    return steps

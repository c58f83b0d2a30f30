"""The batches that fine-tuning trains on, from any step on.

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

from bert_tf.data import length_buckets
from bert_tf.features import INPUT_MASK
from bert_tf.tasks.task import Features
from bert_tf.training import loop as training_loop

# Enough to know how long examples are.
_SAMPLED_BATCHES = 32


class FinetuneInput:
    """Deals features out as the batches of a run.

    Args:
      features: The training data.
      batch_size: B.
      seed: The run's seed.
      num_steps: Steps of the run.
      lengths: The lengths that batches may have, rising.
      most_lengths: How many of them to use at most, where a program is
        compiled for each; 0 means all. Which examples make a batch does not
        depend on it.
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

    def read(self, step: int) -> Mapping[str, np.ndarray]:
        """Returns the batch of a step, counted from 0.

        It has what `Features.batch` returns and `example_index` <int64>[B],
        the number of each example in the stream.
        """
        # A pipeline reads ahead of the last step.
        planned = self._plan[step % len(self._plan)]
        batch = self._features.batch(planned.indices, planned.length)
        first = step * self._batch_size
        index = np.arange(first, first + self._batch_size, dtype=np.int64)
        return batch | {"example_index": index}

    def pieces_per_example(self) -> float:
        """Returns how many pieces an example has, all of its choices counted.

        It is a mean over some batches, for the log.
        """
        steps = np.linspace(0, len(self._plan) - 1, _SAMPLED_BATCHES, dtype=int)
        pieces = [self.read(step)[INPUT_MASK.name].sum() for step in steps]
        return float(np.mean(pieces) / self._batch_size)

    def row_shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """Returns the shapes of the rows of batches, for each length of them.

        They are those of the features that `dataset` has, by name.
        """
        examples = {batch.length: batch.indices[:1] for batch in self._plan}
        rows = [
            self._features.batch(examples[length], length)
            for length in sorted(examples)
        ]
        return [{name: x.shape[1:] for name, x in row.items()} for row in rows]

    def dataset(self, step: int) -> tf.data.Dataset:
        """Returns endless batches with `dropout_seeds`, from a step on."""

        def generate() -> Iterator[Mapping[str, np.ndarray]]:
            for number in itertools.count(step):
                yield self.read(number)

        dataset = tf.data.Dataset.from_generator(
            generate,
            output_signature={
                name: tf.TensorSpec(self._shape(value), value.dtype)
                for name, value in self.read(step).items()
            },
        )
        return training_loop.add_dropout_seeds(dataset, self._seed)

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

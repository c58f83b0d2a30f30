"""The batches that fine-tuning trains on, from any step on.

Shapes:
  B: batch size.
  T: length of a batch.
"""

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
    """

    def __init__(
        self,
        features: Features,
        batch_size: int,
        seed: int,
        num_steps: int,
        lengths: Sequence[int],
    ) -> None:
        self._features = features
        self._batch_size = batch_size
        self._seed = seed
        self._has_one_length = len(lengths) == 1
        self._plan = length_buckets.training_batches(
            features.lengths, batch_size, seed, num_steps, lengths
        )

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

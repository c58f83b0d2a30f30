"""Predicts examples with a fine-tuned model: tokenizer, model and task."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks.task import Features
from bert_tf.tasks.task import Task
from bert_tf.text.tokenizer import BertTokenizer

# So many examples are featurized and computed at a time, fewer if they make
# more rows: enough for batches of like length, and few enough for any memory.
EXAMPLES_PER_CHUNK = 4096


class Predictor:
    """Predicts any number of examples, any often.

    Args:
      model: The model, which lives where `strategy` says.
      task: What it was trained for.
      tokenizer: The one that it was trained with.
      batch_size: Rows computed at once.
      num_length_buckets: As for `prediction.allowed_lengths`; where lengths
        are chosen, the first examples choose them.
      strategy: The devices; by default those that TensorFlow chooses.
    """

    def __init__(
        self,
        model: keras.Model,
        task: Task,
        tokenizer: BertTokenizer,
        batch_size: int = 32,
        num_length_buckets: int = 0,
        strategy: tf.distribute.Strategy | None = None,
    ) -> None:
        self.task = task
        self._tokenizer = tokenizer
        self._num_length_buckets = num_length_buckets
        self._lengths: tuple[int, ...] | None = None
        self._computer = task_prediction.OutputComputer(
            model, task, batch_size, strategy
        )

    def predict(
        self,
        examples: Sequence[Any],
        on_examples: Callable[[int], object] | None = None,
    ) -> list[Any]:
        """Returns what the task makes of each example.

        Args:
          examples: The examples, of the task's own form.
          on_examples: Called again and again with how many more are done, all
            of them together as many as there are examples.
        """
        if not examples:
            return []
        features = self.task.featurize(examples, self._tokenizer)
        progress = _Share(len(examples), len(features), on_examples)
        outputs = self._compute(features, progress.update)
        predictions = self.task.predict(
            examples, features, outputs, self._tokenizer
        )
        progress.finish()
        return predictions

    def _compute(
        self, features: Features, on_rows: Callable[[int], object]
    ) -> dict[str, list[np.ndarray]]:
        # Of texts without words no row may be left.
        if not len(features):
            return {}
        lengths = self._lengths_for(features)
        return self._computer.compute(features, lengths, on_rows).outputs

    def choose_lengths(self, examples: Sequence[Any]) -> None:
        """Chooses lengths as predicting these examples would have done."""
        if self._num_length_buckets and self._lengths is None:
            features = self.task.featurize(examples, self._tokenizer)
            if len(features):
                self._lengths_for(features)

    def _lengths_for(self, features: Features) -> tuple[int, ...]:
        if self._lengths is None:
            self._lengths = task_prediction.allowed_lengths(
                features.lengths,
                self.task.max_seq_length,
                self._num_length_buckets,
            )
        return self._lengths

    def describe(
        self,
        examples: Sequence[Any],
        on_examples: Callable[[int], object] | None = None,
    ) -> list[dict[str, Any]]:
        """Returns the predictions as the JSON objects that users get."""
        return [
            self.task.describe(example, predicted)
            for example, predicted in zip(
                examples, self.predict(examples, on_examples), strict=True
            )
        ]


class _Share:
    """Counts examples by the rows that they were made to."""

    def __init__(
        self,
        num_examples: int,
        num_rows: int,
        on_examples: Callable[[int], object] | None,
    ) -> None:
        self._num_examples = num_examples
        self._num_rows = num_rows
        self._on_examples = on_examples
        self._rows_done = 0
        self._told = 0

    def update(self, rows: int) -> None:
        self._rows_done += rows
        self._tell(self._num_examples * self._rows_done // self._num_rows)

    def finish(self) -> None:
        self._tell(self._num_examples)

    def _tell(self, done: int) -> None:
        if self._on_examples is not None and done > self._told:
            self._on_examples(done - self._told)
        self._told = done


def chunks(
    task: Task, examples: Iterable[Any], size: int | None = None
) -> Iterator[list[Any]]:
    """Cuts examples into lists that can be predicted one after the other.

    Args:
      task: Says which examples must not be parted, and how large they are.
      examples: The examples.
      size: How many rows make a list, more where examples must not be parted;
        by default `EXAMPLES_PER_CHUNK`.
    """
    size = size or EXAMPLES_PER_CHUNK
    chunk: list[Any] = []
    rows = 0
    for example in examples:
        if rows >= size and not task.must_share_chunk(chunk[-1], example):
            yield chunk
            chunk, rows = [], 0
        chunk.append(example)
        rows += task.num_rows(example)
    if chunk:
        yield chunk

"""Reference outputs for verifying an export, computed by the library.

They are independent of the graph of an export: texts go through the model as in
`load_model(path).predict`, or in the script of the task.

Shapes:
  B: number of rows.
  R: rows of the model.
  T: row length.
  P: tokens per text.
"""

import abc
import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.export.artifact import Artifact
from bert_tf.export.verify import texts as test_texts
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks import registry
from bert_tf.tasks.predict import Predictor
from bert_tf.tasks.task import Task
from bert_tf.text import packing
from bert_tf.text.tokenizer import BertTokenizer

# A string for each input, or a list of strings for inputs with another axis.
Row = Mapping[str, Any]
_BATCH_SIZE = 16
# Rows of mixed lengths per call.
_ROWS_PER_CALL = 8


@dataclasses.dataclass(frozen=True)
class ReferenceOutputs:
    """The outputs that an export must return for some rows.

    Attributes:
      values: By output: numbers, or bytes in arrays of objects, each [B, ...].
      doubtful: By output: <bool>[B], the rows that may differ, as a decision
        depends on less than the tolerance.
    """

    values: Mapping[str, np.ndarray]
    doubtful: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


class Reference(abc.ABC):
    """Computes the reference outputs of one kind of export.

    Args:
      stored: The stored model.
      model: The model, in float32.
      artifact: The description of the export.
      inputs: The names of its input strings.
      tolerance: The largest allowed difference of numbers.
    """

    def __init__(
        self,
        stored: StoredModel,
        model: keras.Model,
        artifact: Artifact,
        inputs: Sequence[str],
        tolerance: float,
    ) -> None:
        self.stored = stored
        self.model = model
        self.artifact = artifact
        self.inputs = tuple(inputs)
        self.tolerance = tolerance
        self.tokenizer: BertTokenizer = stored.build_tokenizer()

    # Whether the library accepts bytes that are not UTF-8.
    takes_invalid_bytes = True

    def method_values(
        self, expected: ReferenceOutputs
    ) -> dict[str, np.ndarray]:
        """Returns the reference outputs of TensorFlow Serving's other methods.

        Args:
          expected: The reference outputs of serving_default.

        Returns:
          `classes` and `scores` [B, C], or `outputs` [B].
        """
        if "score" in expected.values:
            return {"outputs": expected.values["score"]}
        scores = expected.values["probabilities"]
        names = strings(list(self.class_names(scores.shape[1])))
        return {"classes": np.tile(names, (len(scores), 1)), "scores": scores}

    def class_names(self, count: int) -> Sequence[str]:
        """Returns the names of `count` classes."""
        raise NotImplementedError(f"{type(self).__name__} has no classes.")

    @abc.abstractmethod
    def batches(self) -> list[list[Row]]:
        """Returns the rows of each call."""

    @abc.abstractmethod
    def expect(self, rows: Sequence[Row]) -> ReferenceOutputs:
        """Returns the reference outputs for strings."""

    @abc.abstractmethod
    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> ReferenceOutputs:
        """Returns the reference outputs for ids, <int32>[R, T] each."""

    def expect_tokens(self, column: Sequence[str]) -> ReferenceOutputs:
        """Returns the tokens of texts and their offsets.

        Args:
          column: The texts.

        Returns:
          `input_ids` <int32>[B, P], padded with [PAD]; `tokens` <string>[B,
          P], padded with ""; `starts` and `ends` <int32>[B, P], bytes of the
          text, padded with -1.
        """
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(list(column))
        values = {
            "input_ids": ids.to_tensor(self.tokenizer.vocabulary.pad_id),
            "tokens": self.tokenizer.tokens(ids).to_tensor(""),
            "starts": starts.to_tensor(-1),
            "ends": ends.to_tensor(-1),
        }
        return ReferenceOutputs({name: x.numpy() for name, x in values.items()})

    def expect_attention(self, rows: Sequence[Row]) -> ReferenceOutputs:
        """Returns `tokens` [B, T] and `attention` [B, layers, heads, T, T]."""
        packed = self.pack_beginnings(rows)
        longest = packed["input_ids"].shape[1]
        bucket = min(b for b in self.artifact.buckets if b >= longest)
        packed = pad(packed, bucket)
        names = strings(list(self.tokenizer.vocabulary.tokens))
        probabilities = self.compute(packed)["attention_probs"]
        return ReferenceOutputs(
            {
                "tokens": np.where(
                    packed["input_mask"] > 0, names[packed["input_ids"]], b""
                ),
                "attention": np.stack([x.numpy() for x in probabilities], 1),
            }
        )

    def pack(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Returns the model's inputs for strings, <int32>[R, T] each."""
        return self.pack_beginnings(rows)

    def pack_beginnings(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Returns one truncated row per text or pair, <int32>[B, T] each."""
        columns = [
            self.tokenizer.tokenize([row[name] for row in rows])
            for name in self.inputs
        ]
        packed = packing.pack(
            columns[0],
            columns[1] if len(columns) > 1 else None,
            self.artifact.max_seq_length,
            self.tokenizer.vocabulary,
        )
        return {name: x.numpy() for name, x in cut(packed).items()}

    def compute(self, packed: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Returns the outputs of the model."""
        return self.model(
            {name: tf.constant(x) for name, x in packed.items()},
            training=False,
        )

    def lengths(self) -> list[int]:
        """Returns token counts just below and just above each bucket."""
        special = 1 + len(self.inputs)
        lengths = {
            length
            for bucket in self.artifact.buckets
            for length in (bucket - special, bucket - special + 1)
        }
        return sorted(length for length in lengths if length > 0)

    def batches_of_texts(self) -> list[list[Row]]:
        """Returns rows of texts or pairs, alone and in batches."""
        by_length = test_texts.of_length(self.tokenizer, self.lengths())
        alone = [self._rows([text]) for text in by_length]
        mixed = _parts(self._rows([*test_texts.TEXTS, *by_length]))
        return alone + mixed

    def _rows(self, column: Sequence[str]) -> list[Row]:
        """Returns rows of texts, for two inputs paired with other texts.

        Either text of a pair may be the longer one, or empty.
        """
        if len(self.inputs) == 1:
            return [{self.inputs[0]: text} for text in column]
        others = test_texts.of_length(
            self.tokenizer, self._other_lengths(column), 1
        )
        others = [
            test_texts.TEXTS[number % len(test_texts.TEXTS)]
            if number % 2
            else other
            for number, other in enumerate(others, len(column))
        ]
        return [
            dict(zip(self.inputs, pair, strict=True))
            for pair in zip(column, others, strict=True)
        ]

    def _other_lengths(self, column: Sequence[str]) -> list[int]:
        longest = self.artifact.max_seq_length
        return [1 + (7 * number) % longest for number in range(len(column))]


class TaskReference(Reference):
    """Computes the reference outputs of a model for a task.

    Args:
      *args: As for `Reference`.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        task = registry.from_stored(self.stored)
        fields = {field.name for field in dataclasses.fields(task)}
        settings = {
            name: value
            for name, value in self.artifact.settings.items()
            if name in fields
        }
        self.task: Task = dataclasses.replace(
            task, max_seq_length=self.artifact.max_seq_length, **settings
        )
        self._predictor = Predictor(
            self.model, self.task, self.tokenizer, _BATCH_SIZE
        )

    @abc.abstractmethod
    def example(self, row: Row) -> Any:
        """Converts a row to an example of the task."""

    def predict(self, rows: Sequence[Row]) -> list[Any]:
        """Returns the task's own predictions."""
        return self._predictor.predict([self.example(row) for row in rows])

    def describe(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Returns the JSON values that run/predict.py writes."""
        return self._predictor.describe([self.example(row) for row in rows])

    def pack(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        examples = [self.example(row) for row in rows]
        features = self.task.featurize(examples, self.tokenizer)
        batch = features.batch(
            np.arange(len(features)), int(features.lengths.max())
        )
        return {name: batch[name] for name in task_prediction.MODEL_INPUTS}


def cut(packed: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Drops the columns that are padding in all rows."""
    longest = tf.reduce_max(tf.reduce_sum(packed["input_mask"], -1))
    return {name: x[..., :longest] for name, x in packed.items()}


def pad(packed: Mapping[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
    """Pads the model's inputs to a length."""
    missing = length - packed["input_ids"].shape[-1]
    return {
        name: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
        for name, x in packed.items()
    }


def strings(values: Any, shape: Sequence[int] = (-1,)) -> np.ndarray:
    """Returns texts as an array of bytes, padded with b"".

    Args:
      values: A list of texts, or a list of lists of any lengths.
      shape: The shape of the result; -1 as for numpy.
    """
    if values and isinstance(values[0], list | tuple):
        width = max(map(len, values))
        values = [
            text
            for row in values
            for text in [*row, *[""] * (width - len(row))]
        ]
        shape = (-1, width) if width else (len(values), 0)
    array = np.empty(len(values), object)
    array[:] = [value.encode("utf-8") for value in values]
    return array.reshape(shape)


def padded(values: Sequence[Sequence[int]], padding: int) -> np.ndarray:
    """Pads rows of unequal lengths to <int32>[B, longest]."""
    array = np.full((len(values), max(map(len, values))), padding, np.int32)
    for row, numbers in zip(array, values, strict=True):
        row[: len(numbers)] = numbers
    return array


def is_close_call(probabilities: np.ndarray, tolerance: float) -> np.ndarray:
    """Returns where the two best of the last axis are almost equal, <bool>."""
    if probabilities.shape[-1] < 2:
        return np.zeros(probabilities.shape[:-1], bool)
    best = np.sort(probabilities, -1)[..., -2:]
    return best[..., 1] - best[..., 0] < 2 * tolerance


def _parts(rows: Sequence[Row]) -> list[list[Row]]:
    return [
        list(rows[first : first + _ROWS_PER_CALL])
        for first in range(0, len(rows), _ROWS_PER_CALL)
    ]

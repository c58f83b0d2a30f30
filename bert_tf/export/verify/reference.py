"""Reference outputs for verifying an export, computed by the library.

Strings go through the task, as in `load_model(path).predict`, and the JSON
values that it describes its predictions with become the outputs of the same
names. Rows of ids go through the model alone.

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

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.export import serving_module
from bert_tf.export.artifact import Artifact
from bert_tf.export.heads import registry as heads
from bert_tf.export.verify import texts as test_texts
from bert_tf.export.verify.texts import Row
from bert_tf.inference import load
from bert_tf.tasks import registry as tasks
from bert_tf.tasks.predict import MODEL_INPUTS
from bert_tf.tasks.predict import Predictor
from bert_tf.tasks.task import Task
from bert_tf.text import packing

_BATCH_SIZE = 16
# Rows of mixed lengths per call.
_ROWS_PER_CALL = 8
# The minimum probability of an assigned label in multi-label problems.
_THRESHOLD = 0.5
# The JSON values of predictions that exports return, with their padding, which
# has their type and stands for null, too.
_PADDING: Mapping[str, str | int | float] = {
    "answer": "",
    "start": -1,
    "end": -1,
    "label": "",
    "labels": "",
    "index": -1,
    "probabilities": 0.0,
    "score": 0.0,
    "no_answer_score": 0.0,
    "words": "",
    "tags": "",
    "starts": -1,
    "ends": -1,
}


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
      stored: The stored model, which is computed in float32.
      artifact: The description of the export.
      tolerance: The largest allowed difference of numbers.
    """

    # Whether the library accepts bytes that are not UTF-8.
    takes_invalid_bytes = True
    # The names of classes; by default their numbers.
    labels: Sequence[str] | None = None

    def __init__(
        self, stored: StoredModel, artifact: Artifact, tolerance: float
    ) -> None:
        self.artifact = artifact
        self.tolerance = tolerance
        self.head = heads.restore(artifact, stored)
        self.inputs = self.head.inputs
        self.tokenizer = self.head.tokenizer
        self.model = load.build_model(
            stored,
            heads.ENTRIES[artifact.head].model_kind,
            return_all_layers=True,
            return_attention_probs=True,
        )

    def batches(self) -> list[list[Row]]:
        """Returns the rows of each call: texts or pairs, alone and mixed."""
        by_length = test_texts.of_length(self.tokenizer, self.lengths())
        rows = self._rows([*test_texts.TEXTS, *by_length])
        return [self._rows([text]) for text in by_length] + [
            rows[first : first + _ROWS_PER_CALL]
            for first in range(0, len(rows), _ROWS_PER_CALL)
        ]

    def expect(self, rows: Sequence[Row]) -> ReferenceOutputs:
        """Returns the reference outputs for strings, by default truncated."""
        tokens = [
            self.tokenizer.tokenize([row[name] for row in rows])
            for name in self.inputs
        ]
        packed = packing.pack(
            tokens[0],
            tokens[1] if len(tokens) > 1 else None,
            self.artifact.max_seq_length,
            self.tokenizer.vocabulary,
        )
        return self.expect_ids(_cut(packed))

    @abc.abstractmethod
    def expect_ids(self, packed: Mapping[str, np.ndarray]) -> ReferenceOutputs:
        """Returns the reference outputs for ids, <int32>[R, T] each."""

    def expect_tokens(self, column: Sequence[str]) -> ReferenceOutputs:
        """Returns the tokens of texts; see `serving_module.tokenize`."""
        values = serving_module.tokenize(self.head, tf.constant(column))
        return ReferenceOutputs({name: x.numpy() for name, x in values.items()})

    def expect_attention(self, rows: Sequence[Row]) -> ReferenceOutputs:
        """Returns `tokens` [B, T] and `attention` [B, layers, heads, T, T]."""
        packed = self.head.attention_rows(_tensors(rows))
        tokens = self.tokenizer.tokens(packed["input_ids"])
        tokens = tf.where(packed["input_mask"] > 0, tokens, "").numpy()
        layers = [x.numpy() for x in self.compute(packed)["attention_probs"]]
        # The export lacks the layers above that of embeddings.
        last = self.artifact.settings.get("layer", -1) % len(layers)
        attention = np.stack(layers[: last + 1], 1)
        return ReferenceOutputs({"tokens": tokens, "attention": attention})

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
        names = self.labels or [str(n) for n in range(scores.shape[1])]
        return {
            "classes": test_texts.to_array([names] * len(scores), ""),
            "scores": scores,
        }

    def pack(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Returns the model's inputs for strings, <int32>[R, T] each."""
        return _cut(self.head.pack(_tensors(rows)).inputs)

    def compute(self, packed: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the outputs of the model."""
        return self.model(
            {name: tf.convert_to_tensor(x) for name, x in packed.items()},
            training=False,
        )

    def lengths(self) -> list[int]:
        """Returns token counts just below and just above each bucket."""
        special_tokens = 1 + len(self.inputs)
        lengths = {
            length
            for bucket in self.artifact.buckets
            for length in (bucket - special_tokens, bucket - special_tokens + 1)
        }
        return sorted(length for length in lengths if length > 0)

    def _rows(self, column: Sequence[str]) -> list[Row]:
        """Returns rows of texts, for two inputs paired with other texts.

        Either text of a pair may be the longer one, or empty.
        """
        if len(self.inputs) == 1:
            return [{self.inputs[0]: text} for text in column]
        longest = self.artifact.max_seq_length
        lengths = [1 + (7 * number) % longest for number in range(len(column))]
        others = [
            test_texts.TEXTS[number % len(test_texts.TEXTS)]
            if number % 2
            else other
            for number, other in enumerate(
                test_texts.of_length(self.tokenizer, lengths, 1), len(column)
            )
        ]
        return [
            dict(zip(self.inputs, pair, strict=True))
            for pair in zip(column, others, strict=True)
        ]

    def decide(self, values: Mapping[str, np.ndarray]) -> ReferenceOutputs:
        """Adds to outputs which of their decisions are doubtful."""
        doubtful = {}
        for name in {"label", "index"} & set(values):
            doubtful[name] = is_close_call(
                values["probabilities"], self.tolerance
            )
        if "labels" in values:
            distance = np.abs(values["probabilities"] - _THRESHOLD).min(-1)
            doubtful["labels"] = distance < 2 * self.tolerance
        return ReferenceOutputs(values, doubtful)


class TaskReference(Reference):
    """Computes the reference outputs of a model for a task."""

    def __init__(self, stored: StoredModel, artifact: Artifact, *args) -> None:
        super().__init__(stored, artifact, *args)
        task = tasks.from_stored(stored)
        fields = {field.name for field in dataclasses.fields(task)}
        settings = {x: v for x, v in artifact.settings.items() if x in fields}
        self.task: Task = dataclasses.replace(
            task, max_seq_length=artifact.max_seq_length, **settings
        )
        self._predictor = Predictor(
            self.model, self.task, self.tokenizer, _BATCH_SIZE
        )

    @abc.abstractmethod
    def example(self, row: Row) -> Any:
        """Converts a row to an example of the task."""

    def describe(self, row: Row, prediction: Any) -> dict[str, Any]:
        """Returns the JSON values of a prediction that are in `_PADDING`."""
        return self.task.prediction_to_json(self.example(row), prediction)

    def expect(self, rows: Sequence[Row]) -> ReferenceOutputs:
        predictions = self._predictor.predict([self.example(x) for x in rows])
        described = map(self.describe, rows, predictions)
        return self.doubt(to_outputs(list(described)), rows, predictions)

    def doubt(
        self,
        values: Mapping[str, np.ndarray],
        rows: Sequence[Row],
        predictions: Sequence[Any],
    ) -> ReferenceOutputs:
        """Adds to outputs for rows which decisions are doubtful."""
        del rows, predictions
        return self.decide(values)


def to_outputs(described: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Converts the JSON values of predictions to outputs, by `_PADDING`."""
    outputs = {}
    for name, padding in _PADDING.items():
        if name in described[0]:
            column = [
                list(x[name].values()) if isinstance(x[name], dict) else x[name]
                for x in described
            ]
            outputs[name] = test_texts.to_array(column, padding)
    return outputs


def pad(packed: Mapping[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
    """Pads the model's inputs to a length."""
    missing = length - packed["input_ids"].shape[-1]
    return {
        name: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
        for name, x in packed.items()
    }


def is_close_call(probabilities: np.ndarray, tolerance: float) -> np.ndarray:
    """Returns where the two best of the last axis are almost equal, <bool>."""
    if probabilities.shape[-1] < 2:
        return np.zeros(probabilities.shape[:-1], bool)
    best = np.sort(probabilities, -1)[..., -2:]
    return best[..., 1] - best[..., 0] < 2 * tolerance


def _cut(packed: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
    """Returns the model's inputs without the padding that all rows share."""
    longest = tf.reduce_max(tf.reduce_sum(packed["input_mask"], -1))
    return {x: packed[x][..., :longest].numpy() for x in MODEL_INPUTS}


def _tensors(rows: Sequence[Row]) -> dict[str, tf.Tensor]:
    inputs = test_texts.to_inputs(rows)
    return {name: tf.constant(x, tf.string) for name, x in inputs.items()}

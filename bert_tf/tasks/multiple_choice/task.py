"""The multiple-choice task: the choice that best fits a context, as in SWAG.

Section 4.4 of the paper: each choice, packed with its context, gets a score,
and a softmax over the choices converts scores to probabilities.

Shapes:
  N: number of examples.
  B: batch size.
  C: the maximum number of choices.
  T: number of tokens in a padded row.
"""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging
from sklearn import metrics as sklearn_metrics

from bert_tf.features import INPUT_IDS
from bert_tf.features import INPUT_MASK
from bert_tf.tasks import metrics
from bert_tf.tasks import packed_rows
from bert_tf.tasks import result_tables
from bert_tf.tasks import task
from bert_tf.tasks.classification import labels as label_values
from bert_tf.tasks.multiple_choice import examples as multiple_choice_examples
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceExample
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceFiles
from bert_tf.tasks.packed_rows import LABEL_IDS
from bert_tf.tasks.packed_rows import PackedRows
from bert_tf.tasks.task import TensorMap
from bert_tf.text.tokenizer import BertTokenizer

_LOGITS = "logits"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MultipleChoiceFeatures(PackedRows):
    """Packed contexts with choices, example by example.

    Attributes:
      example_splits: <int64>[N + 1], the bounds of the examples' rows.
    """

    example_splits: np.ndarray

    def __len__(self) -> int:
        return len(self.example_splits) - 1

    @property
    def lengths(self) -> np.ndarray:
        """<int64>[N], tokens of the longest choice with its context."""
        return np.maximum.reduceat(super().lengths, self.example_splits[:-1])

    def inputs(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns inputs [B, C, T].

        Missing choices have only padding, so `input_mask` is 0 even at [CLS].
        """
        first = self.example_splits[indices][:, np.newaxis]
        count = self.example_splits[indices + 1][:, np.newaxis] - first
        # All batches get the same number of choices, so shapes can be static.
        position = np.arange(np.diff(self.example_splits).max())
        is_there = position < count  # [B, C]
        inputs = {}
        rows = super().inputs((first + position)[is_there], length)
        for name, values in rows.items():
            padding = self.pad_id if name == INPUT_IDS.name else 0
            inputs[name] = np.full([*is_there.shape, length], padding, np.int32)
            inputs[name][is_there] = values
        return inputs


def convert_examples_to_features(
    examples: Sequence[MultipleChoiceExample],
    tokenizer: BertTokenizer,
    max_seq_length: int,
) -> MultipleChoiceFeatures:
    """Tokenizes, truncates and packs the context with each of its choices.

    Section 4.4 of the paper: [CLS] context [SEP] choice [SEP]; without a
    context [CLS] choice [SEP]. A context and its choice are truncated like a
    pair of texts. Either all examples must have labels, or none.

    Raises:
      UserError: If `max_seq_length` leaves no room for a token.
    """
    texts_a, texts_b = [], []
    for context, choices in ((x.context, x.choices) for x in examples):
        texts_a += choices if context is None else [context] * len(choices)
        texts_b += [None] * len(choices) if context is None else choices
    if not any(texts_b):
        texts_b = None
    rows = packed_rows.pack_texts(texts_a, texts_b, tokenizer, max_seq_length)
    targets = {}
    if examples and examples[0].label is not None:
        labels = [example.label for example in examples]
        targets[LABEL_IDS] = np.array(labels, np.int32)
    counts = [len(example.choices) for example in examples]
    return MultipleChoiceFeatures(
        **vars(rows)
        | {
            "examples": None,
            "targets": targets,
            "example_splits": np.cumsum([0, *counts]),
        }
    )


class Prediction(NamedTuple):
    """The probabilities of an example's choices.

    Attributes:
      probabilities: <float32>[number of choices], in the order of the choices.
    """

    probabilities: np.ndarray

    @property
    def index(self) -> int:
        """The index of the most probable choice."""
        return int(np.argmax(self.probabilities))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoiceTask(MultipleChoiceFiles, task.Task):
    """Selects one of an example's choices; the number of choices may vary.

    Attributes:
      head: "linear" or "bilstm".
      head_dropout_prob: Dropout between encoder and head.
    """

    head: str = "linear"
    head_dropout_prob: float = 0.1

    @property
    def metric(self) -> str:
        return metrics.ACCURACY

    def featurize(
        self,
        examples: Sequence[MultipleChoiceExample],
        tokenizer: BertTokenizer,
        is_training: bool = False,
    ) -> MultipleChoiceFeatures:
        """Converts examples to rows, and logs how many were truncated."""
        features = convert_examples_to_features(
            examples, tokenizer, self.max_seq_length
        )
        if features.num_truncated:
            logging.warning(
                "%d of %d choices have, with their context, more than "
                "--max_seq_length=%d tokens and were truncated.",
                features.num_truncated,
                features.example_splits[-1],
                self.max_seq_length,
            )
        return features

    def model_arguments(self) -> dict[str, Any]:
        return {"head": self.head, "head_dropout_prob": self.head_dropout_prob}

    def losses(self, outputs: TensorMap, batch: TensorMap) -> tf.Tensor:
        """Returns <float32>[B], cross entropies; missing choices are masked."""
        return tf.nn.sparse_softmax_cross_entropy_with_logits(
            batch[LABEL_IDS], _mask_missing(outputs, batch, tf.float32.min)
        )

    def soft_targets(
        self, outputs: TensorMap, batch: TensorMap
    ) -> tuple[task.SoftTargets, ...]:
        """Returns the logits, <float32>[B, C]."""
        logits = _mask_missing(outputs, batch, task.NO_LOGIT)
        return (task.SoftTargets(logits, "choice"),)

    def predict(
        self,
        examples: Sequence[MultipleChoiceExample],
        features: MultipleChoiceFeatures,
        outputs: Mapping[str, Sequence[np.ndarray]],
        tokenizer: BertTokenizer,
    ) -> list[Prediction]:
        """Returns the probabilities of each example's choices."""
        del features, tokenizer  # `outputs` has one row per example.
        logits = tf.constant(np.stack(outputs[_LOGITS]), tf.float64)
        counts = [len(example.choices) for example in examples]
        is_there = tf.sequence_mask(counts, logits.shape[1])
        decoded = self.decode({_LOGITS: logits}, is_there)
        probs = decoded["probabilities"].numpy().astype(np.float32)
        return [
            Prediction(row[:count])
            for row, count in zip(probs, counts, strict=True)
        ]

    def decode(
        self,
        outputs: TensorMap,
        is_there: tf.Tensor | None = None,
    ) -> dict[str, tf.Tensor]:
        """Returns `index` <int32>[B] and `probabilities` <float>[B, C].

        `is_there` <bool>[B, C] is False for missing choices, which get
        probability 0; None if no choice is missing.
        """
        logits = outputs[_LOGITS]
        if is_there is not None:
            # Do not mask all choices of a row: the softmax would be uniform.
            is_there |= ~tf.reduce_any(is_there, -1, keepdims=True)
            logits = tf.where(is_there, logits, logits.dtype.min)
        probs = tf.nn.softmax(logits)
        # An empty batch may have no choices, but argmax needs at least one.
        missing = tf.cast(tf.shape(probs)[1] == 0, tf.int32)
        padded = tf.pad(probs, [[0, 0], [0, missing]])
        return {
            "index": tf.argmax(padded, -1, output_type=tf.int32),
            "probabilities": probs,
        }

    def prediction_to_json(
        self, example: MultipleChoiceExample, prediction: Prediction
    ) -> dict[str, Any]:
        """Returns the most probable choice and all choices' probabilities.

        Choices have the indices and the order of the file, before any shuffle.
        """
        values = prediction.probabilities.tolist()
        indices = self._indices(example)
        order = sorted(range(len(values)), key=indices.__getitem__)
        return {
            "label": example.names[prediction.index],
            "index": indices[prediction.index],
            "probability": values[prediction.index],
            "probabilities": {example.names[i]: values[i] for i in order},
        }

    def _indices(self, example: MultipleChoiceExample) -> list[int]:
        """Returns each choice's index in its row of the file."""
        columns = self.columns.choices
        if len(columns) > 1 and set(example.names) <= set(columns):
            return [columns.index(name) for name in example.names]
        return list(range(len(example.names)))

    def score(
        self,
        examples: Sequence[MultipleChoiceExample],
        predictions: Sequence[Prediction],
    ) -> dict[str, float]:
        return metrics.compute_metrics(
            (metrics.ACCURACY,),
            np.array([example.label for example in examples]),
            np.array([prediction.index for prediction in predictions]),
        )

    def write_report(
        self,
        output_dir: str,
        split: str,
        examples: Sequence[MultipleChoiceExample],
        predictions: Sequence[Prediction],
    ) -> None:
        """Writes the confusion matrix, as plot and text."""
        if not self.is_labeled(examples):
            return
        most = max(len(one.names) for one in examples)
        names = self.columns.choices[:most]
        if len(self.columns.choices) == 1:
            names = tuple(map(str, range(most)))
        pairs = []
        for one, predicted in zip(examples, predictions, strict=True):
            indices = self._indices(one)
            pairs.append((indices[one.label], indices[predicted.index]))
        counts = sklearn_metrics.confusion_matrix(
            *np.array(pairs).T, labels=range(most)
        )
        path = self.report_path(output_dir, split, "confusion_matrix")
        result_tables.write_confusion_matrix(path, names, counts)

    def example_to_json(self, example: MultipleChoiceExample) -> dict[str, Any]:
        order = np.argsort(self._indices(example)).tolist()
        values = {
            "context": example.context,
            "choices": [example.choices[index] for index in order],
        }
        if example.label is not None:
            values["gold_label"] = example.names[example.label]
        return values

    def example_from_row(self, row: Any) -> MultipleChoiceExample:
        return multiple_choice_examples.parse_row(row, self.columns)

    def add_label(
        self, example: MultipleChoiceExample, label: Any
    ) -> MultipleChoiceExample:
        """Returns the example with the index of its correct choice."""
        # `label` is a name or an index; choices in a list are named by index.
        name = label_values.parse_label(label, example.names, "single_label")
        return dataclasses.replace(example, label=example.names.index(name))

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "max_seq_length": self.max_seq_length,
            "columns": dataclasses.asdict(self.columns),
            "head": self.head,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "MultipleChoiceTask":
        return cls(
            **MultipleChoiceFiles.stored(values),
            max_seq_length=values.get("max_seq_length", 128),
            head=values.get("head", "linear"),
        )


def _mask_missing(
    outputs: TensorMap,
    batch: TensorMap,
    masked: float,
) -> tf.Tensor:
    """Returns the logits <float32>[B, C], `masked` for missing choices."""
    is_choice = batch[INPUT_MASK.name][:, :, 0] > 0  # [B, C]: mask of [CLS].
    return tf.where(is_choice, outputs[_LOGITS], masked)

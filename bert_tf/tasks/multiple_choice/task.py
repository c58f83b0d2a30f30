"""The multiple-choice task: the choice that best fits a context, as in SWAG.

Section 4.4 of the paper: each choice, packed with its context, gets a score,
and a softmax over the choices converts scores to probabilities.

Shapes:
  B: batch size.
  C: the maximum number of choices.
"""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.features import INPUT_MASK
from bert_tf.tasks import metrics
from bert_tf.tasks import packed_rows
from bert_tf.tasks import result_tables
from bert_tf.tasks import task
from bert_tf.tasks.classification import labels as label_values
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceExample
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceFiles
from bert_tf.tasks.packed_rows import LABEL_IDS
from bert_tf.tasks.packed_rows import GroupedRows
from bert_tf.tasks.task import TensorMap
from bert_tf.text.tokenizer import BertTokenizer

_LOGITS = "logits"


# The probabilities of an example's choices, <float32>[number of choices].
Prediction = np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoiceTask(MultipleChoiceFiles, task.Task):
    """Selects one of an example's choices; the number of choices may vary.

    Attributes:
      head: "linear" or "bilstm".
      head_dropout_prob: Dropout between encoder and head.
    """

    head: str = "linear"
    head_dropout_prob: float = 0.1

    metric = metrics.ACCURACY

    def featurize(
        self,
        examples: Sequence[MultipleChoiceExample],
        tokenizer: BertTokenizer,
        is_training: bool = False,
    ) -> GroupedRows:
        """Packs the context with each of its choices; logs truncated choices.

        A row is [CLS] context [SEP] choice [SEP] (section 4.4 of the paper), or
        [CLS] choice [SEP] without a context. A context and its choice are
        truncated like a pair of texts. All examples have labels, or none.
        """
        texts_a, texts_b = [], []
        for context, choices in ((x.context, x.choices) for x in examples):
            texts_a += choices if context is None else [context] * len(choices)
            texts_b += [None] * len(choices) if context is None else choices
        rows = packed_rows.pack_texts(
            texts_a, texts_b, tokenizer, self.max_seq_length
        )
        task.warn_of_truncated(
            rows.num_truncated,
            f"{len(texts_a)} choices have, with their context,",
            f"max_seq_length={self.max_seq_length}",
        )
        counts = np.array([[len(example.choices)] for example in examples])
        position = np.arange(counts.max())
        groups = np.where(
            position < counts,
            np.cumsum(counts)[:, None] - counts + position,
            -1,
        )
        targets = {}
        if examples[0].label is not None:
            labels = [example.label for example in examples]
            targets[LABEL_IDS] = np.array(labels, np.int32)
        return GroupedRows(rows, groups, targets)

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
        features: GroupedRows,
        outputs: Mapping[str, Sequence[np.ndarray]],
        tokenizer: BertTokenizer,
    ) -> list[Prediction]:
        """Returns the probabilities of each example's choices."""
        logits = tf.constant(np.stack(outputs[_LOGITS]), tf.float64)
        counts = [len(example.choices) for example in examples]
        is_there = tf.sequence_mask(counts, logits.shape[1])
        decoded = self.decode({_LOGITS: logits}, is_there)
        probs = decoded["probabilities"].numpy().astype(np.float32)
        return [row[:count] for row, count in zip(probs, counts, strict=True)]

    def decode(
        self, outputs: TensorMap, is_there: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Returns `index` <int32>[B] and `probabilities` <float>[B, C].

        `is_there` <bool>[B, C] is False for missing choices, which get
        probability 0; None if no choice is missing.
        """
        logits = outputs[_LOGITS]
        if is_there is not None:
            # If all choices of a row are missing, mask none of them: otherwise
            # all would get the same probability, whatever their logits.
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

        Indices and order of the choices are as in the file, before `read`
        shuffled them.
        """
        values, best = prediction.tolist(), int(np.argmax(prediction))
        indices = self._indices(example)
        order = sorted(range(len(values)), key=indices.__getitem__)
        return {
            "label": example.names[best],
            "index": indices[best],
            "probability": values[best],
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
            np.array([np.argmax(prediction) for prediction in predictions]),
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
        counts = np.zeros([most, most], np.int64)
        for one, predicted in zip(examples, predictions, strict=True):
            indices = self._indices(one)
            counts[indices[one.label], indices[np.argmax(predicted)]] += 1
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


def _mask_missing(
    outputs: TensorMap, batch: TensorMap, masked: float
) -> tf.Tensor:
    """Returns the logits <float32>[B, C], `masked` for missing choices."""
    is_choice = batch[INPUT_MASK.name][:, :, 0] > 0  # [B, C]: mask of [CLS].
    return tf.where(is_choice, outputs[_LOGITS], masked)

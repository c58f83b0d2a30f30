"""The classification and regression task, for texts and pairs of texts.

Shapes:
  N: number of rows; in `convert_labels`, number of examples.
  B: batch size.
  L: number of labels; 1 for regression.
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Self

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.tasks import confidence
from bert_tf.tasks import metrics
from bert_tf.tasks import packed_rows
from bert_tf.tasks import result_tables
from bert_tf.tasks import task
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification import glue_tasks
from bert_tf.tasks.classification import labels as label_values
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.classification.labels import ProblemType
from bert_tf.tasks.classification.task_files import ClassificationFiles
from bert_tf.tasks.confidence import OUTSIDE
from bert_tf.tasks.packed_rows import LABEL_IDS
from bert_tf.tasks.packed_rows import PackedRows
from bert_tf.tasks.task import TensorMap
from bert_tf.tasks.task_files import TEST
from bert_tf.text.tokenizer import BertTokenizer

# The `form` of the `SoftTargets` of each problem type.
_FORMS = {
    "single_label": "choice",
    "multi_label": "yes_or_no",
    "regression": "score",
}


def convert_examples_to_features(
    examples: Sequence[InputExample],
    tokenizer: BertTokenizer,
    max_seq_length: int,
    labels: Sequence[str] | None = None,
    problem_type: ProblemType = "single_label",
    doc_stride: int | None = None,
) -> PackedRows:
    """Tokenizes, truncates and packs examples as the original does.

    Source: convert_single_example (run_classifier.py:377-453 of the original).

    Either all examples must have labels, or none. The label ids are indices in
    `labels`. `packed_rows.pack_texts` describes `max_seq_length`, `doc_stride`
    and errors. All windows of a text get the text's label.
    """
    rows = packed_rows.pack_texts(
        [example.text_a for example in examples],
        [example.text_b for example in examples],
        tokenizer,
        max_seq_length,
        doc_stride,
    )
    label_ids = convert_labels(examples, labels, problem_type)
    is_single = problem_type == "single_label"
    if label_ids is None or (is_single and OUTSIDE in label_ids):
        return rows  # There are no targets, so no loss is computed.
    targets = {LABEL_IDS: label_ids[rows.examples]}
    return dataclasses.replace(rows, targets=targets)


def convert_labels(
    examples: Sequence[InputExample],
    labels: Sequence[str] | None,
    problem_type: ProblemType,
) -> np.ndarray | None:
    """Returns the `label_ids` of examples by problem type; None without labels.

    Single labels are <int32>[N], `OUTSIDE` if unknown. Multiple labels are
    <float32>[N, L], 1 for each label of an example. Scores are <float32>[N].
    """
    values = [example.label for example in examples]
    if not values or values[0] is None:
        return None
    if problem_type == "regression":
        return np.array(values, np.float32)
    ids = {label: index for index, label in enumerate(labels)}
    if problem_type == "single_label":
        # `reject_label` has no id, so texts with this label get `OUTSIDE`.
        return np.array([ids.get(x, OUTSIDE) for x in values], np.int32)
    label_ids = np.zeros([len(values), len(ids)], np.float32)
    for row, names in zip(label_ids, values, strict=True):
        row[[ids[name] for name in names]] = 1.0
    return label_ids


# A text's label probabilities <float32>[L], or its score <float32>[1].
Prediction = np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationTask(ClassificationFiles, task.Task):
    """Predicts one label, any number of labels, or a score for each text.

    Attributes:
      metric_names: Keys of `metrics.METRICS`; the first selects the best model.
      doc_stride: The tokens between the starts of windows of a long text; if
        None, long texts are truncated.
      head: "linear" or "bilstm".
      head_dropout_prob: Dropout between encoder and head.
      pooling: How token vectors are combined into one vector for the head, as
        in `EmbeddingsTask`; if None, the head gets the pooler's vector.
      normalize: Whether the combined vector is scaled to an L2 norm of 1.
    """

    metric_names: tuple[str, ...]
    doc_stride: int | None = None
    head: str = "linear"
    head_dropout_prob: float = 0.1
    pooling: str | None = None
    normalize: bool = False

    @property
    def metric(self) -> str:
        return self.metric_names[0]

    @property
    def more_is_better(self) -> bool:
        """True unless `metric` measures an error."""
        return self.metric not in metrics.LESS_IS_BETTER

    @property
    def is_pair(self) -> bool:
        if self.official is not None:
            return self.official.is_pair
        return self.columns is not None and len(self.columns.texts) > 1

    @property
    def method(self) -> str:
        return "regress" if self.labels is None else "classify"

    def featurize(
        self,
        examples: Sequence[InputExample],
        tokenizer: BertTokenizer,
        is_training: bool = False,
    ) -> PackedRows:
        """Converts examples to rows, one per example or per window."""
        features = convert_examples_to_features(
            examples,
            tokenizer,
            self.max_seq_length,
            self.labels,
            self.problem_type,
            self.doc_stride,
        )
        num_windowed = np.sum(np.bincount(features.examples) > 1)
        if num_windowed:
            logging.info(
                "%d of %d texts have more than --max_seq_length=%d tokens and "
                "are read in windows: %d rows in all.",
                num_windowed,
                len(examples),
                self.max_seq_length,
                len(features),
            )
        is_cut = self.doc_stride is not None
        task.warn_of_truncated(
            features.num_truncated,
            f"{len(examples)} texts have",
            f"max_seq_length={self.max_seq_length}",
            ": both texts of a pair have more than half of them" * is_cut,
        )
        return features

    def model_arguments(self) -> dict[str, Any]:
        return {
            "labels": self.labels,
            "num_labels": 1 if self.labels is None else len(self.labels),
            "head": self.head,
            "head_dropout_prob": self.head_dropout_prob,
            "pooling": self.pooling,
            "normalize": self.normalize,
        }

    def losses(self, outputs: TensorMap, batch: TensorMap) -> tf.Tensor:
        """Returns <float32>[B]: cross entropy, or squared error.

        The multi-label loss is the mean binary cross entropy of the labels.

        Source: run_classifier.py:612-619 of the original. The paper names no
        loss for STS-B, so this project has chosen the squared error.
        """
        logits, label_ids = outputs["logits"], batch[LABEL_IDS]
        if self.problem_type == "regression":
            return tf.square(logits[:, 0] - label_ids)
        if self.problem_type == "multi_label":
            entropies = tf.nn.sigmoid_cross_entropy_with_logits(
                label_ids, logits
            )
            return tf.reduce_mean(entropies, axis=-1)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(label_ids, logits)

    def loss_weights(self, batch: TensorMap) -> tf.Tensor:
        """Returns <float32>[B], the class weight of each example's label."""
        if self.class_weights is None:
            return super().loss_weights(batch)
        return tf.gather(tf.constant(self.class_weights), batch[LABEL_IDS])

    def soft_targets(
        self, outputs: TensorMap, batch: TensorMap
    ) -> tuple[task.SoftTargets, ...]:
        """Returns the logits, <float32>[B, L]."""
        return (task.SoftTargets(outputs["logits"], _FORMS[self.problem_type]),)

    def predict(
        self,
        examples: Sequence[InputExample],
        features: PackedRows,
        outputs: Mapping[str, Sequence[np.ndarray]],
        tokenizer: BertTokenizer,
    ) -> list[Prediction]:
        """Returns the mean probabilities or score of each example's windows."""
        logits = tf.constant(np.stack(outputs["logits"]), tf.float64)
        decoded = self.decode({"logits": logits}, features.examples)
        if self.problem_type == "regression":
            values = decoded["score"][:, tf.newaxis]
        else:
            values = decoded["probabilities"]
        return list(values.numpy().astype(np.float32))

    def decode(
        self, outputs: TensorMap, texts: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Returns the predictions of texts by output name, eagerly or in graph.

        From `logits` <float>[N, L], returns `score` <float>[texts]; or
        `probabilities` <float>[texts, L] with `label` <string>[texts] or
        `labels` <string>[texts, L], sorted by id and padded with "". Scores and
        probabilities are means over the rows of a text, see `Task.decode`.
        """
        values = outputs["logits"]
        if self.temperature is not None:
            values /= self.temperature
        if self.problem_type == "multi_label":
            values = tf.sigmoid(values)
        elif self.problem_type == "single_label":
            values = tf.nn.softmax(values)
        if texts is not None:
            values = tf.math.segment_mean(values, texts)
        if self.problem_type == "regression":
            return {"score": values[:, 0]}
        if self.problem_type == "multi_label":
            named = {"labels": self._assigned_labels(values)}
        else:
            best = tf.argmax(values, -1, output_type=tf.int32)
            names = [*self.labels]
            if self.reject_below is not None:
                is_sure = tf.reduce_max(values, -1) >= self.reject_below
                best = tf.where(is_sure, best, len(names))
                names.append(self.reject_label)
            named = {"label": tf.gather(tf.constant(names), best)}
        return named | {"probabilities": values}

    def _assigned_labels(self, probs: tf.Tensor) -> tf.Tensor:
        """Returns <string>[texts, L]: the assigned labels, padded with ""."""
        count = len(self.labels)
        is_assigned = probs >= tf.cast(self.assigned_from, probs.dtype)
        # Sort by label id, but put the labels that are not assigned last.
        key = tf.range(count) + tf.where(is_assigned, 0, count)
        order = tf.argsort(key, -1)
        number = tf.where(
            tf.gather(is_assigned, order, batch_dims=1), order, count
        )
        return tf.gather(tf.constant([*self.labels, ""]), number)

    def prediction_to_json(
        self, example: InputExample, prediction: Prediction
    ) -> dict[str, Any]:
        """Returns `score`, or `label` or `labels` with all probabilities."""
        values = prediction.tolist()
        if self.problem_type == "regression":
            return {"score": values[0]}
        probabilities = dict(zip(self.labels, values, strict=True))
        if self.problem_type == "multi_label":
            assigned = np.flatnonzero(prediction >= self.assigned_from)
            labels = [self.labels[index] for index in assigned]
            return {"labels": labels, "probabilities": probabilities}
        return {
            "label": self.label(prediction),
            "probability": max(values),
            "probabilities": probabilities,
        }

    def label(self, prediction: Prediction) -> str:
        """Returns the best label; `reject_label` if it is too improbable."""
        if prediction.max() < np.float32(self.reject_below or 0.0):
            return self.reject_label
        return self.labels[int(np.argmax(prediction))]

    @property
    def assigned_from(self) -> np.ndarray:
        """<float32>[L] or [], the lowest probability that assigns a label."""
        chosen = self.thresholds
        return np.float32(confidence.THRESHOLD if chosen is None else chosen)

    def select_threshold(
        self,
        examples: Sequence[InputExample],
        predict: Callable[..., Sequence[Prediction]],
    ) -> "ClassificationTask":
        """Returns the task with temperature and thresholds fitted to examples.

        The examples must not be training data, of which the model is too sure.
        """
        label_ids = convert_labels(examples, self.labels, self.problem_type)
        task, is_multi = self, self.problem_type == "multi_label"

        def values(**changes):
            return np.stack(predict(dataclasses.replace(task, **changes)))

        if self.calibrates:
            found = set(np.nonzero(label_ids)[1] if is_multi else label_ids)
            missing = [x for i, x in enumerate(self.labels) if i not in found]
            if missing:
                logging.log_first_n(
                    logging.WARNING,
                    "The dev set has no text of %s: other labels calibrate "
                    "their probabilities.",
                    1,
                    label_values.name_some(missing),
                )
            divisor = confidence.fit_temperature(
                lambda x: values(temperature=x), label_ids
            )
            task = dataclasses.replace(task, temperature=divisor)
        if self.calibrates and is_multi:
            chosen = confidence.fit_thresholds(values(), label_ids)
            task = dataclasses.replace(task, thresholds=chosen)
        if self.reject_precision is not None:
            threshold = confidence.fit_rejection(
                *self._answers(label_ids, values()), self.reject_precision
            )
            task = dataclasses.replace(task, reject_below=threshold)
        return task

    def _answers(
        self, label_ids: np.ndarray, predictions: Sequence[Prediction]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the probabilities of answers, and whether they are correct.

        A text's answer is its most probable label. In multi-label tasks, each
        label has a yes-no answer; 0.2 for a label is "no" with probability 0.8.
        """
        values = np.stack(predictions)
        if self.problem_type == "single_label":
            return values.max(-1), values.argmax(-1) == label_ids
        is_right = (values >= 0.5) == (label_ids > 0)
        return np.maximum(values, 1 - values).ravel(), is_right.ravel()

    def score(
        self,
        examples: Sequence[InputExample],
        predictions: Sequence[Prediction],
    ) -> dict[str, float]:
        label_ids = convert_labels(examples, self.labels, self.problem_type)
        predicted = self.predicted_ids(predictions)
        if self.official is not None and self.labels is not None:
            # GLUE's F1 takes id 1 as the positive class, so use GLUE's order.
            ids = np.array([self.official.labels.index(x) for x in self.labels])
            label_ids, predicted = ids[label_ids], ids[predicted]
        if self.official is not None or self.labels is None:
            return metrics.compute_metrics(
                self.metric_names, label_ids, predicted
            )
        stated, is_right = self._answers(label_ids, predictions)
        scores = {}
        if self.reject_below is not None:
            right = is_right[stated >= np.float32(self.reject_below)]
            scores["coverage"] = len(right) / len(stated)
            precision = right.sum() / max(len(right), 1)
            scores["answer_precision"] = float(precision)
        if self.reject_label is not None:
            arrays = label_ids, predicted, stated, is_right
            known = np.flatnonzero(label_ids != OUTSIDE)
            label_ids, predicted, stated, is_right = (x[known] for x in arrays)
            if not len(known):
                return scores
        error = confidence.calibration_error(stated, is_right)
        scores["expected_calibration_error"] = error
        names = self.metric_names
        return metrics.compute_metrics(names, label_ids, predicted) | scores

    def predicted_ids(self, predictions: Sequence[Prediction]) -> np.ndarray:
        """Returns predictions in the form of `label_ids`."""
        values = np.stack(predictions)
        if self.problem_type == "regression":
            return values[:, 0]
        if self.problem_type == "multi_label":
            return (values >= self.assigned_from).astype(np.float32)
        return np.argmax(values, axis=-1).astype(np.int32)

    def write_report(
        self,
        output_dir: str,
        split: str,
        examples: Sequence[InputExample],
        predictions: Sequence[Prediction],
    ) -> None:
        """Writes the original's test_results.tsv, plots and tables.

        test_results.tsv is for the first test set; other test sets have names
        such as test_mismatched_results.tsv. A line has an example's
        probabilities, separated by tabs (run_classifier.py:952-968).

        If examples have labels, also writes a plot (.png) and a table (.txt),
        named confusion_matrix for single labels, label_scores for multi-label
        problems and score_scatter for regression. Except for regression, also
        writes calibration.png and .txt.
        """
        if split.split("_")[0] == TEST:
            is_first = split == self.splits(TEST)[0]
            name = TEST if is_first else split
            # As in the original, each <float32> is written with Python's `str`.
            lines = ("\t".join(map(str, x)) + "\n" for x in predictions)
            files.write_text(
                os.path.join(output_dir, f"{name}_results.tsv"), "".join(lines)
            )
        if not self.is_labeled(examples):
            return
        label_ids = convert_labels(examples, self.labels, self.problem_type)
        predicted = self.predicted_ids(predictions)
        path = functools.partial(self.report_path, output_dir, split)
        if self.problem_type == "regression":
            result_tables.write_score_scatter(
                path("score_scatter"), label_ids, predicted
            )
            return
        is_known = label_ids.ravel() != OUTSIDE
        if self.problem_type == "multi_label":
            rows = result_tables.label_score_rows(
                self.labels, label_ids, predicted
            )
            result_tables.write_scores(path("label_scores"), "label", rows)
        else:
            counts = np.zeros([len(self.labels)] * 2, np.int64)
            np.add.at(counts, (label_ids[is_known], predicted[is_known]), 1)
            result_tables.write_confusion_matrix(
                path("confusion_matrix"), self.labels, counts
            )
        if is_known.any():
            result_tables.write_calibration(
                path("calibration"),
                *self._answers(label_ids, predictions),
                is_known,
            )

    def example_to_json(self, example: InputExample) -> dict[str, Any]:
        return classification_examples.to_json(example)

    @property
    def text_choices(self) -> Sequence[tuple[str, ...]]:
        """The possible columns of texts in a row that is a mapping."""
        if self.official is not None:
            return self.official.texts
        return [columns.texts for columns in self.column_choices]

    def example_from_row(self, row: Any) -> InputExample:
        return classification_examples.parse_row(
            row, self.text_choices, may_be_empty=True
        )

    def add_label(self, example: InputExample, label: Any) -> InputExample:
        classification_examples.require_text(example)
        if self.problem_type != "multi_label" and np.shape(label) == (1,):
            (label,) = label
        label = label_values.parse_label(label, self.labels, self.problem_type)
        return dataclasses.replace(example, label=label)

    def num_rows(self, example: InputExample) -> int:
        """Estimates the number of the text's windows by the number of words."""
        if self.doc_stride is None:
            return 1
        texts = (example.text_a, example.text_b or "")
        return 1 + sum(len(text.split()) for text in texts) // self.doc_stride

    def is_compatible_with(self, stored: Mapping[str, Any]) -> bool:
        """Returns True unless the tasks are official and not alike."""
        return glue_tasks.are_alike(self.name, stored.get("name"))

    def to_json(self) -> dict[str, Any]:
        has_languages = self.official and self.official.has_languages
        pooled = {"pooling": self.pooling, "normalize": self.normalize}
        return {
            "name": self.name,
            "max_seq_length": self.max_seq_length,
            "labels": None if self.labels is None else list(self.labels),
            "problem_type": self.problem_type,
            "metrics": list(self.metric_names),
            "columns": self.columns and dataclasses.asdict(self.columns),
            "label_separator": self.label_separator,
            "class_weights": self.class_weights and list(self.class_weights),
            "doc_stride": self.doc_stride,
            **({"language": self.language} if has_languages else {}),
            "head": self.head,
            **(pooled if self.pooling else {}),
            **self.confidence(),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        arguments = cls.stored(values)
        problem_type = arguments.get("problem_type", "single_label")
        if arguments["labels"] is None and problem_type != "regression":
            raise UserError(
                "The model does not have the names of its labels; add them to "
                'its task.json: "labels": [...].'
            )
        names = values.get("metrics", metrics.METRICS_OF_PROBLEM[problem_type])
        if not names or not set(names) <= set(metrics.METRICS):
            raise UserError(
                "The metrics in task.json must be some of "
                f"{', '.join(metrics.METRICS)}. Received: {list(names)!r}."
            )
        return cls(**arguments, metric_names=tuple(names))

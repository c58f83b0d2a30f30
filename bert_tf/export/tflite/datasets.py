"""The evaluation and calibration sets: --eval_file and --representative_file.

Shapes:
  N: rows of features; an example with windows has several.
  B: rows of a call.
  T: tokens per row.
"""

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from scipy import special

from bert_tf.data import length_buckets
from bert_tf.errors import UserError
from bert_tf.export.tflite.build import Build
from bert_tf.export.tflite.quantize import Samples
from bert_tf.features import INPUT_IDS
from bert_tf.inference.lite_model import LiteModel
from bert_tf.io import files
from bert_tf.io import progress
from bert_tf.io import tables
from bert_tf.tasks import packed_rows
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks import registry
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification.examples import USUAL_COLUMNS
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.task import DEV
from bert_tf.tasks.task import Features
from bert_tf.tasks.task import Task
from bert_tf.text.tokenizer import BertTokenizer

_EVAL_FLAG = "--eval_file"
_CALIBRATION_FLAG = "--representative_file"
# More rows change the scales little.
MAX_CALIBRATION_ROWS = 256
# Rows per call of files with any number of rows.
_BATCH_SIZE = 16
_LABEL_COLUMN = "label"
_TEXT_PAIR = "text_pair"
# Keeps logarithms of probabilities finite.
_LEAST = float(np.finfo(np.float32).tiny)
# Heads with a fine-tuning task.
_KINDS = frozenset(task.kind for task in registry.TASKS.values())


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The scores and decisions for all examples.

    Attributes:
      scores: The task's metrics by name.
      decisions: The prediction for each example without its probabilities: a
        label, an answer, tags.
    """

    scores: Mapping[str, float]
    decisions: Sequence[Any]

    def agreement(self, other: "Evaluation") -> float | None:
        """Returns the share of examples with equal decisions.

        None if there are no decisions, as in regression.
        """
        if not any(self.decisions):
            return None
        pairs = zip(self.decisions, other.decisions, strict=True)
        return float(np.mean([ours == theirs for ours, theirs in pairs]))


@dataclasses.dataclass(frozen=True, eq=False)
class EvalSet:
    """Labeled examples and their N rows of features."""

    path: str
    task: Task
    tokenizer: BertTokenizer
    examples: Sequence[Any]
    features: Features

    def evaluate(
        self, outputs: Mapping[str, Sequence[np.ndarray]]
    ) -> Evaluation:
        """Scores an array per row for each name of `Task.select_outputs`."""
        predictions = self.task.predict(
            self.examples, self.features, outputs, self.tokenizer
        )
        decisions = [
            _without_numbers(self.task.prediction_to_json(example, predicted))
            for example, predicted in zip(
                self.examples, predictions, strict=True
            )
        ]
        return Evaluation(
            self.task.score(self.examples, predictions), decisions
        )

    def evaluate_model(self, model: keras.Model) -> Evaluation:
        """Scores a Keras model."""
        computed = task_prediction.compute_outputs(
            model,
            self.task,
            self.features,
            _BATCH_SIZE,
            self._lengths(),
            description="scoring the model",
        )
        return self.evaluate(computed.outputs)

    def compute_outputs(self, model: LiteModel) -> dict[str, list[np.ndarray]]:
        """Computes the outputs of a .tflite file for `evaluate`."""
        outputs: dict[str, list] = {}
        count = len(self.features)
        with progress.bar(count, "scoring the file", "row") as bar:
            for indices, inputs in self._calls(model):
                answer = model.run(inputs)
                computed = self.task.select_outputs(
                    _as_of_model(self.task, answer)
                )
                for name, values in computed.items():
                    of_rows = outputs.setdefault(name, [None] * count)
                    # The remaining rows of the call are padding.
                    for index, value in zip(
                        indices, np.asarray(values), strict=False
                    ):
                        of_rows[index] = value
                bar.update(len(indices))
        return outputs

    def _calls(
        self, model: LiteModel
    ) -> Iterator[tuple[np.ndarray, Mapping[str, np.ndarray]]]:
        """Yields the indices of at most B rows, and inputs [B, ...] by name."""
        _, shape = next(iter(model.inputs.values()))
        count = len(self.features)
        size = shape[0] if shape[0] > 0 else min(_BATCH_SIZE, count)
        if INPUT_IDS.name not in model.inputs:
            texts = {
                "text": [example.text_a for example in self.examples],
                _TEXT_PAIR: [example.text_b for example in self.examples],
            }
            for start in range(0, count, size):
                indices = np.arange(start, min(start + size, count))
                rows = np.resize(indices, size)
                yield (
                    indices,
                    {
                        name: np.array(
                            [texts[name][i].encode() for i in rows], object
                        )
                        for name in model.inputs
                    },
                )
            return
        lengths = (shape[-1],) if shape[-1] > 0 else self._lengths()
        for planned in length_buckets.prediction_batches(
            self.features.lengths, size, lengths
        ):
            rows = np.resize(planned.indices, size)
            yield (
                planned.indices,
                _model_inputs(self.features, rows, planned.length),
            )

    def _lengths(self) -> tuple[int, ...]:
        return task_prediction.allowed_lengths(
            self.features.lengths, self.task.max_seq_length
        )


def _model_inputs(
    features: Features, rows: np.ndarray, length: int
) -> dict[str, np.ndarray]:
    batch = features.batch(rows, length)
    return {name: batch[name] for name in task_prediction.MODEL_INPUTS}


def _without_numbers(value: Any) -> Any:
    """Removes the floats from a JSON value."""
    if isinstance(value, Mapping):
        parts = {key: _without_numbers(part) for key, part in value.items()}
        return {key: part for key, part in parts.items() if part is not None}
    if isinstance(value, list):
        return [_without_numbers(part) for part in value]
    return None if isinstance(value, float) else value


def _as_of_model(
    task: Task, answer: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """Recovers the outputs of the model from the answer of a serving head.

    Logits are recovered up to a constant for each row.
    """
    if any(name.endswith("logits") for name in answer):
        return answer
    if "score" in answer:
        return {"logits": answer["score"][..., np.newaxis]}
    probabilities = np.asarray(answer["probabilities"], np.float64)
    if (
        isinstance(task, ClassificationTask)
        and task.problem_type == "multi_label"
    ):
        logits = special.logit(np.clip(probabilities, _LEAST, 1 - 2**-53))
    else:
        logits = np.log(np.maximum(probabilities, _LEAST))
    return {"logits": logits}


def read_eval_set(build: Build) -> EvalSet | None:
    """Reads --eval_file; returns None without the flag.

    Raises:
      UserError: If the file is not of the model's task or has no labels, or
        the model has no task.
    """
    path = build.config.eval_file
    if path is None:
        return None
    files.require_file(path, _EVAL_FLAG)
    task = task_of(build, _EVAL_FLAG)
    if build.config.input == "text" and not isinstance(
        task, ClassificationTask
    ):
        raise UserError(
            "--eval_file with --input=text is for classification. Received: a "
            f"model of kind={task.kind!r}; score a file with --input=ids, "
            "which computes the same outputs."
        )
    task = dataclasses.replace(_with_columns(task, path), files={DEV: path})
    examples = task.read(DEV)
    if not examples or not task.is_labeled(examples):
        raise UserError(
            "--eval_file must have labeled examples. Received: "
            f"{path}, which has {'no labels' if examples else 'no rows'}."
        )
    tokenizer = build.stored.build_tokenizer()
    return EvalSet(
        path, task, tokenizer, examples, task.featurize(examples, tokenizer)
    )


def task_of(build: Build, flag: str) -> Task:
    """Returns the task of a model, with the row length of the file.

    Raises:
      UserError: If the head has no task, which the flag needs.
    """
    if build.name not in _KINDS:
        raise UserError(
            f"{flag} is for models that were fine-tuned for a task. Received: "
            f"the head {build.name} of {build.stored.path}, which has no "
            "labels; drop the flag."
        )
    task = registry.from_stored(build.stored)
    task = dataclasses.replace(task, max_seq_length=build.head.max_seq_length)
    # Files that take strings do not cut windows.
    if build.config.input == "text" and isinstance(task, ClassificationTask):
        task = dataclasses.replace(task, doc_stride=None)
    return task


def _with_columns(task: Task, path: str) -> Task:
    """Returns the task with default names for columns that it does not name."""
    if isinstance(task, MultipleChoiceTask):
        label = task.columns.label or _LABEL_COLUMN
        return dataclasses.replace(
            task, columns=dataclasses.replace(task.columns, label=label)
        )
    if not isinstance(task, ClassificationTask) or task.official is not None:
        return task
    columns = task.columns
    if columns is None:
        names = set(tables.read_table(path).columns)
        columns = next(
            (c for c in USUAL_COLUMNS if set(c.texts) <= names),
            USUAL_COLUMNS[-1],
        )
    labels = columns.labels or (_LABEL_COLUMN,)
    return dataclasses.replace(
        task, columns=dataclasses.replace(columns, labels=labels)
    )


def read_calibration_set(build: Build) -> Samples:
    """Reads --representative_file as the model's task reads its inputs.

    Returns:
      A function that yields the inputs of the model for rows sampled evenly
      from the file: single rows of their own length, or batches of the fixed
      size and length of the .tflite file.

    Raises:
      UserError: If the file is empty, or of another task.
    """
    path = build.config.representative_file
    files.require_file(path, _CALIBRATION_FLAG)
    features = _featurize(build, path)
    count = len(features)
    if not count:
        raise UserError(
            f"{_CALIBRATION_FLAG} must have rows with words, for calibration. "
            f"Received: {path}, which has none."
        )
    chosen = np.unique(
        np.linspace(0, count - 1, min(count, MAX_CALIBRATION_ROWS)).astype(
            np.int64
        )
    )

    def samples() -> Iterator[Mapping[str, np.ndarray]]:
        size = build.batch_size or 1
        for start in range(0, len(chosen), size):
            rows = np.resize(chosen[start : start + size], size)
            length = build.seq_length or int(features.lengths[rows].max())
            yield _model_inputs(features, rows, length)

    return samples


def _featurize(build: Build, path: str) -> Features:
    is_pair = _TEXT_PAIR in build.head.inputs
    if build.name in _KINDS:
        task = task_of(build, _CALIBRATION_FLAG)
        examples = list(task.read_inputs(path))
        if isinstance(task, ClassificationTask) and any(
            (example.text_b is not None) != is_pair for example in examples
        ):
            raise UserError(
                f"{_CALIBRATION_FLAG} must have "
                f"{'pairs of' if is_pair else 'single'} texts, as the model's "
                f"task. Received: {path}, which has "
                f"{'single texts' if is_pair else 'pairs'}; change the file or "
                "--pair."
            )
        return task.featurize(examples, build.stored.build_tokenizer())
    # Heads without a task read texts or pairs of texts.
    columns = Columns("text", _TEXT_PAIR if is_pair else None)
    examples = list(classification_examples.read_texts(path, (columns,)))
    return packed_rows.pack_texts(
        [example.text_a for example in examples],
        [example.text_b for example in examples] if is_pair else None,
        build.head.tokenizer,
        build.head.max_seq_length,
    )

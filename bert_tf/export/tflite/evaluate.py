"""Scores and times a .tflite file on --eval_file; reads rows to calibrate it.

Shapes:
  N: rows of features; an example with windows has several rows.
  B: rows of a call.
"""

import dataclasses
import os
import time
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf.errors import UserError
from bert_tf.export.tflite.build import Build
from bert_tf.export.tflite.convert import Samples
from bert_tf.features import INPUT_IDS
from bert_tf.flags.export import QUANTIZATIONS
from bert_tf.flags.export import TfliteConfig
from bert_tf.inference.lite_model import LiteModel
from bert_tf.io import files
from bert_tf.io import progress
from bert_tf.io import tables
from bert_tf.serving.servable import Arrays
from bert_tf.tasks import registry
from bert_tf.tasks import result_tables
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.predict import MODEL_INPUTS
from bert_tf.tasks.predict import Predictor
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.task import Features
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_files import DEV
from bert_tf.text.tokenizer import BertTokenizer

_EVAL_FLAG = "--eval_file"
_CALIBRATION_FLAG = "--representative_file"
# Maximum rows to calibrate with; more would hardly change the int8 scales.
MAX_CALIBRATION_ROWS = 256
_LABEL_COLUMN = "label"
_TEXT_PAIR = "text_pair"
# The heads that have a fine-tuning task.
_KINDS = frozenset(task.kind for task in registry.TASKS.values())
# Rows per call of the Keras model. A .tflite file gets the same number, unless
# its batch size is fixed.
_BATCH_SIZE = 16
_TIMED_ROWS = 32
# Round row lengths up to multiples of this: each new length allocates memory.
_STEP = 8
# Kinds of tasks whose official metric is in percent, not between 0 and 1.
_IN_POINTS = (SquadTask.kind,)


@dataclasses.dataclass(frozen=True, eq=False)
class EvalSet:
    """Labeled examples and their N rows of features."""

    path: str
    task: Task
    tokenizer: BertTokenizer
    examples: Sequence[Any]
    features: Features


@dataclasses.dataclass(frozen=True)
class Scores:
    """The score of a file and the score of its model.

    Attributes:
      metric: The name of the task's main metric.
      score: The score of the file, in percent if more is better, else in the
        metric's own unit.
      model_score: The score of the model, in the same unit.
      drop: The points by which the file scores below the model, negative if
        above. If lower scores are better, `drop` is the increase in percent.
      milliseconds: The median time of a row with one thread; rows have their
        own lengths, or the fixed length of the file.
    """

    eval_file: str
    num_examples: int
    metric: str
    score: float
    model_score: float
    drop: float
    milliseconds: float

    def table(self, config: TfliteConfig, num_bytes: int) -> str:
        """Returns the scores, the size and the latency as text."""
        return result_tables.aligned(
            [
                ["", "MB", self.metric, "ms per row"],
                ["model", "", f"{self.model_score:.2f}", ""],
                [
                    config.quantization,
                    f"{num_bytes / 1e6:.1f}",
                    f"{self.score:.2f}",
                    f"{self.milliseconds:.2f}",
                ],
            ]
        )

    def require(self, config: TfliteConfig) -> None:
        """Checks that the file is accurate enough to be published.

        Raises:
          UserError: If `drop` exceeds --max_drop, or a score is NaN.
        """
        if self.drop <= config.max_drop:
            return
        number = QUANTIZATIONS.index(config.quantization)
        advice = (
            f"try --quantization={QUANTIZATIONS[number - 1]}"
            if number
            else "the model's outputs are ambiguous, or its weights are damaged"
        )
        raise UserError(
            f"The {self.metric} of the .tflite file must be at most --max_drop="
            f"{config.max_drop:g} points (of an error, percent) worse than the "
            f"model's, {self.model_score:.2f} on {self.eval_file}. Received: "
            f"{self.score:.2f} with --quantization={config.quantization}, "
            f"{self.drop:.2f} worse; {advice}."
        )


def evaluate(content: bytes, build: Build, rows: EvalSet) -> Scores:
    """Scores a file and its model, and times the file."""
    takes_text = build.takes_text
    task, metric = rows.task, rows.task.metric
    predictor = Predictor(build.model, task, rows.tokenizer, _BATCH_SIZE)
    file = LiteModel(content, os.cpu_count() or 1, takes_text)
    model_score, score = (
        task.score(rows.examples, predictions)[metric]
        for predictions in (
            predictor.predict(rows.examples),
            predict(file, rows),
        )
    )
    if task.more_is_better:
        points = 1.0 if task.kind in _IN_POINTS else 100.0
        score, model_score = points * score, points * model_score
        drop = model_score - score
    else:
        smallest = float(np.finfo(np.float32).tiny)
        drop = 100.0 * (score - model_score) / max(model_score, smallest)
    return Scores(
        rows.path,
        len(rows.examples),
        metric,
        score,
        model_score,
        drop,
        _milliseconds(LiteModel(content, 1, takes_text), rows),
    )


def predict(file: LiteModel, rows: EvalSet) -> list[Any]:
    """Returns the prediction of the task for each example."""
    task, features = rows.task, rows.features
    outputs = compute_outputs(file, rows)
    if not _is_classification(task):
        return task.predict(rows.examples, features, outputs, rows.tokenizer)
    values = np.stack(outputs.get("probabilities") or outputs["score"])
    # Average over the windows of each example, which are consecutive rows.
    _, firsts, counts = np.unique(
        features.examples, return_index=True, return_counts=True
    )
    sums = np.add.reduceat(values.reshape(len(features), -1), firsts)
    return list(sums / counts[:, np.newaxis])


def compute_outputs(
    file: LiteModel, rows: EvalSet
) -> dict[str, list[np.ndarray]]:
    """Returns a list with one array per row for each output, by name.

    The names match `Task.select_outputs`; for classification and tasks with a
    `variant`, they match the file.
    """
    outputs: dict[str, list] = {}
    task, count = rows.task, len(rows.features)
    size = _batch_size(file) or _BATCH_SIZE
    # Rows of similar length share a call, so that calls have little padding.
    order = np.argsort(rows.features.lengths, kind="stable")
    with progress.bar(count, "scoring the file", "row") as bar:
        for start in range(0, count, size):
            part = order[start : start + size]
            answer = file.run(_inputs(file, rows, part))
            if task.variant is None and not _is_classification(task):
                if "probabilities" in answer:
                    # Probabilities rank the choices in the same way as logits.
                    answer = {"logits": answer["probabilities"]}
                answer = task.select_outputs(answer)
            for name, values in answer.items():
                of_rows = outputs.setdefault(name, [None] * count)
                # `zip` ignores the rows that only fill up the call.
                for row, value in zip(part, np.asarray(values), strict=False):
                    of_rows[row] = value
            bar.update(len(part))
    return outputs


def _is_classification(task: Task) -> bool:
    return task.variant is None and isinstance(task, ClassificationTask)


def _milliseconds(file: LiteModel, rows: EvalSet) -> float:
    """Returns the median time per row, for rows spread over the set."""
    count, size = len(rows.features), _batch_size(file) or 1
    seconds = []
    for row in spread(count, _TIMED_ROWS):
        inputs = _inputs(file, rows, np.array([row]))
        file.run(inputs)  # Allocates memory for the length.
        start = time.perf_counter()
        file.run(inputs)
        seconds.append((time.perf_counter() - start) / size)
    return 1e3 * float(np.median(seconds))


def _batch_size(file: LiteModel) -> int | None:
    """Returns the number of rows per call; None for any number."""
    _, shape = next(iter(file.inputs.values()))
    return shape[0] if shape[0] > 0 else None


def _inputs(file: LiteModel, rows: EvalSet, chosen: np.ndarray) -> Arrays:
    """Returns a call's inputs, [B, ...] each; repeats rows to fill the call."""
    chosen = np.resize(chosen, _batch_size(file) or len(chosen))
    if INPUT_IDS.name in file.inputs:
        length = file.inputs[INPUT_IDS.name][1][-1]
        if length <= 0:
            longest = int(rows.features.lengths[chosen].max())
            length = min(-(-longest // _STEP) * _STEP, rows.task.max_seq_length)
        return _model_inputs(rows.features, chosen, length)
    texts = {
        "text": [rows.examples[row].text_a for row in chosen],
        "text_pair": [rows.examples[row].text_b for row in chosen],
    }
    return {
        name: np.array([text.encode() for text in texts[name]], object)
        for name in file.inputs
    }


def _model_inputs(
    features: Features, rows: np.ndarray, length: int
) -> dict[str, np.ndarray]:
    batch = features.batch(rows, length)
    return {name: batch[name] for name in MODEL_INPUTS}


def read_eval_set(build: Build) -> EvalSet | None:
    """Reads --eval_file; returns None without the flag.

    Raises:
      UserError: If the file does not fit the model's task or has no labels,
        or the model has no task.
    """
    path = build.config.eval_file
    if path is None:
        return None
    files.require_file(path, _EVAL_FLAG)
    task = _task_of(build, _EVAL_FLAG)
    if build.takes_text and not isinstance(task, ClassificationTask):
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


def _task_of(build: Build, flag: str) -> Task:
    """Returns the task of a model, with the row length of the file."""
    if build.name not in _KINDS:
        raise UserError(
            f"{flag} is for models that were fine-tuned for a task. Received: "
            f"the head {build.name} of {build.stored.path}, which has no "
            "labels; drop the flag."
        )
    task = registry.from_stored(build.stored)
    task = dataclasses.replace(task, max_seq_length=build.head.max_seq_length)
    # For a fair comparison, truncate long texts, as the .tflite file does.
    if build.takes_text and isinstance(task, ClassificationTask):
        task = dataclasses.replace(task, doc_stride=None)
    return task


def _with_columns(task: Task, path: str) -> Task:
    """Returns the task, with default names for its unnamed columns."""
    if isinstance(task, MultipleChoiceTask):
        label = task.columns.label or _LABEL_COLUMN
        return dataclasses.replace(
            task, columns=dataclasses.replace(task.columns, label=label)
        )
    if not isinstance(task, ClassificationTask) or task.official is not None:
        return task
    *others, columns = task.column_choices
    if others:
        names = set(tables.read_table(path).columns)
        columns = next((c for c in others if set(c.texts) <= names), columns)
    labels = columns.labels or (_LABEL_COLUMN,)
    return dataclasses.replace(
        task, columns=dataclasses.replace(columns, labels=labels)
    )


def read_calibration_set(build: Build) -> Samples:
    """Reads --representative_file as the model's task reads its inputs.

    Returns:
      A function that yields the inputs of the model for rows sampled evenly
      from the file. The inputs are single rows of their own length, or batches
      of the fixed size and length of the .tflite file.

    Raises:
      UserError: If the file is empty or does not fit the model's task.
    """
    path = build.config.representative_file
    files.require_file(path, _CALIBRATION_FLAG)
    is_pair = _TEXT_PAIR in build.head.inputs
    if build.name in _KINDS:
        task = _task_of(build, _CALIBRATION_FLAG)
    else:  # Heads without a task read texts or pairs of texts.
        task = ClassificationTask(
            metric_names=(),
            max_seq_length=build.head.max_seq_length,
            columns=Columns("text", _TEXT_PAIR if is_pair else None),
        )
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
    features = task.featurize(examples, build.head.tokenizer)
    count = len(features)
    if not count:
        raise UserError(
            f"{_CALIBRATION_FLAG} must have rows with words, for calibration. "
            f"Received: {path}, which has none."
        )
    chosen = spread(count, MAX_CALIBRATION_ROWS)

    def samples() -> Iterator[Arrays]:
        for rows in parts(chosen, build.config.batch_size or 1):
            longest = int(features.lengths[rows].max())
            length = build.config.max_seq_length or longest
            yield _model_inputs(features, rows, length)

    return samples


def parts(indices: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yields `size` indices at a time; repeats indices in the last part."""
    for first in range(0, len(indices), size):
        yield np.resize(indices[first : first + size], size)


def spread(count: int, most: int) -> np.ndarray:
    """Returns at most `most` indices, evenly spread over `count` rows."""
    places = np.linspace(0, count - 1, min(count, most))
    return np.unique(places.astype(np.int64))

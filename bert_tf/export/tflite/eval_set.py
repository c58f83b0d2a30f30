"""The evaluation set of --eval_file, read and scored by the model's task.

Shapes:
  N: rows of features; an example with windows has several.
"""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from bert_tf.errors import UserError
from bert_tf.export.tflite.build import Build
from bert_tf.io import files
from bert_tf.io import tables
from bert_tf.tasks import predict as task_prediction
from bert_tf.tasks import registry
from bert_tf.tasks.classification.examples import USUAL_COLUMNS
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.task import DEV
from bert_tf.tasks.task import Features
from bert_tf.tasks.task import Task
from bert_tf.text.tokenizer import BertTokenizer

# Rows per call of files with any number of rows.
BATCH_SIZE = 16
_LABEL_COLUMN = "label"


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
        return float(
            np.mean(
                [
                    ours == theirs
                    for ours, theirs in zip(
                        self.decisions, other.decisions, strict=True
                    )
                ]
            )
        )


@dataclasses.dataclass(frozen=True, eq=False)
class EvalSet:
    """Labeled examples and their features.

    Attributes:
      path: The path of the file.
      task: The task.
      tokenizer: The tokenizer of the model.
      examples: The examples.
      features: Their N rows.
    """

    path: str
    task: Task
    tokenizer: BertTokenizer
    examples: Sequence[Any]
    features: Features

    def lengths(self) -> tuple[int, ...]:
        """Returns the allowed lengths of batches, in ascending order."""
        return task_prediction.allowed_lengths(
            self.features.lengths, self.task.max_seq_length
        )

    def evaluate(
        self, outputs: Mapping[str, Sequence[np.ndarray]]
    ) -> Evaluation:
        """Scores the outputs of a model.

        Args:
          outputs: For each name of `Task.select_outputs`, an array per row.
        """
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
            BATCH_SIZE,
            self.lengths(),
            description="scoring the model",
        )
        return self.evaluate(computed.outputs)


def read(build: Build) -> EvalSet | None:
    """Reads --eval_file; returns None without the flag.

    Raises:
      UserError: If the file is not of the model's task or has no labels, or
        the model has no task.
    """
    path = build.config.eval_file
    if path is None:
        return None
    files.require_file(path, "--eval_file")
    task = task_of(build, "--eval_file")
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


def has_task(build: Build) -> bool:
    """Returns whether a head is for a fine-tuning task."""
    return build.name in _KINDS


def task_of(build: Build, flag: str) -> Task:
    """Returns the task of a model, with the row length of the file.

    Args:
      build: The build of the file.
      flag: The flag that needs the task, for the error message.

    Raises:
      UserError: If the head has no task.
    """
    if not has_task(build):
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


# Heads with a fine-tuning task.
_KINDS = frozenset(task.kind for task in registry.TASKS.values())


def _without_numbers(value: Any) -> Any:
    """Removes the floats from a JSON value."""
    if isinstance(value, Mapping):
        parts = {key: _without_numbers(part) for key, part in value.items()}
        return {key: part for key, part in parts.items() if part is not None}
    if isinstance(value, list):
        return [_without_numbers(part) for part in value]
    return None if isinstance(value, float) else value

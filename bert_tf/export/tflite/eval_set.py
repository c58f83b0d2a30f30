"""Rows with answers, as a model's own task reads and scores them.

Shapes:
  N: rows of features; an example has one or, where it is windowed, several.
"""

import dataclasses
import os
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
from bert_tf.tasks.classification.inputs import USUAL_COLUMNS
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.task import DEV
from bert_tf.tasks.task import Features
from bert_tf.tasks.task import Task
from bert_tf.text.tokenizer import BertTokenizer

# Rows computed at once where a file takes any number.
BATCH_SIZE = 16
_LABEL_COLUMN = "label"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What is said of all examples.

    Attributes:
      scores: The task's metrics by name.
      decisions: What was predicted for each example, without the numbers that
        say how surely: a label, an answer, tags.
    """

    scores: Mapping[str, float]
    decisions: Sequence[Any]

    def agreement(self, other: "Evaluation") -> float | None:
        """Returns the part of the examples of which both say the same.

        None where nothing is decided, as in regression.
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
    """Examples with answers, packed.

    Attributes:
      path: Their file.
      task: What they are examples of.
      tokenizer: The one that the model was trained with.
      examples: The examples.
      features: Their N rows.
    """

    path: str
    task: Task
    tokenizer: BertTokenizer
    examples: Sequence[Any]
    features: Features

    @property
    def name(self) -> str:
        """What reports call it."""
        return os.path.basename(self.path)

    def lengths(self) -> tuple[int, ...]:
        """Returns the lengths that batches may have, rising."""
        return task_prediction.allowed_lengths(
            self.features.lengths, self.task.max_seq_length
        )

    def evaluate(
        self, outputs: Mapping[str, Sequence[np.ndarray]]
    ) -> Evaluation:
        """Scores what a model computed.

        Args:
          outputs: For each name of `Task.outputs` N arrays, one a row.
        """
        predictions = self.task.predict(
            self.examples, self.features, outputs, self.tokenizer
        )
        decisions = [
            _without_numbers(self.task.describe(example, predicted))
            for example, predicted in zip(
                self.examples, predictions, strict=True
            )
        ]
        return Evaluation(
            self.task.score(self.examples, predictions), decisions
        )

    def evaluate_model(self, model: keras.Model) -> Evaluation:
        """Scores a model of Keras."""
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
    """Reads --eval_file; returns None if there is none.

    Raises:
      UserError: If it is not of the model's task, has no answers, or the
        model has no task.
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
            f"model of kind={task.kind!r}; score a file of --input=ids, which "
            "computes the same."
        )
    task = dataclasses.replace(_with_columns(task, path), files={DEV: path})
    examples = task.read(DEV)
    if not examples or not task.is_labelled(examples):
        raise UserError(
            "--eval_file must hold examples with their answers, to score by. "
            f"Received: {path}, which has {'none' if examples else 'no rows'}."
        )
    tokenizer = build.stored.build_tokenizer()
    return EvalSet(
        path, task, tokenizer, examples, task.featurize(examples, tokenizer)
    )


def has_task(build: Build) -> bool:
    """Returns whether a head answers what its model was fine-tuned for."""
    return build.name in _KINDS


def task_of(build: Build, flag: str) -> Task:
    """Returns the task of a model, with rows as long as the file takes.

    Args:
      build: The file to be.
      flag: What it is needed for, for the error.

    Raises:
      UserError: If the head answers no task.
    """
    if not has_task(build):
        raise UserError(
            f"{flag} is for models that were fine-tuned for a task. Received: "
            f"the head {build.name} of {build.stored.path}, which has no right "
            "answers; drop it."
        )
    task = registry.from_stored(build.stored)
    task = dataclasses.replace(task, max_seq_length=build.head.max_seq_length)
    # A row of strings is one row of the model.
    if build.config.input == "text" and isinstance(task, ClassificationTask):
        task = dataclasses.replace(task, doc_stride=None)
    return task


def _with_columns(task: Task, path: str) -> Task:
    """Returns the task; where it does not say what columns are called, so."""
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


# Heads that answer what their model was fine-tuned for.
_KINDS = frozenset(task.kind for task in registry.TASKS.values())


def _without_numbers(value: Any) -> Any:
    """Returns a JSON value without its floats."""
    if isinstance(value, Mapping):
        parts = {key: _without_numbers(part) for key, part in value.items()}
        return {key: part for key, part in parts.items() if part is not None}
    if isinstance(value, list):
        return [_without_numbers(part) for part in value]
    return None if isinstance(value, float) else value

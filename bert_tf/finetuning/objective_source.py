"""Training data and objective of an experiment: labels, or also a teacher."""

from collections.abc import Mapping
from typing import Any
from typing import Protocol

import keras

from bert_tf.finetuning.evaluate import Metrics
from bert_tf.finetuning.evaluate import SplitReader
from bert_tf.tasks.task import TRAIN
from bert_tf.tasks.task import Features
from bert_tf.training.losses import TaskObjective
from bert_tf.training.step import Objective


class ObjectiveSource(Protocol):
    """Builds the objective that all trials of an experiment minimize.

    Attributes:
      identity: Values that must not change when a trial resumes; JSON values.
      model_arguments: Arguments for the constructor of the trained model, in
        addition to the task's.
      card: Headings of the model card and their rows.
    """

    identity: Mapping[str, Any]
    model_arguments: Mapping[str, Any]
    card: Mapping[str, Mapping[str, Any]]

    def read(self) -> tuple[int, Features]:
        """Returns the number of training examples, and their rows."""

    def build_objective(self, model: keras.Model) -> Objective:
        """Returns the objective that a model minimizes."""

    def compare(self, split: str) -> Metrics:
        """Returns reference metrics to report beside the model's on a split."""


class LabelSource:
    """The labels of a task as the only objective; see `ObjectiveSource`.

    Args:
      reader: The data of the task.
    """

    identity: Mapping[str, Any] = {}
    model_arguments: Mapping[str, Any] = {}
    card: Mapping[str, Mapping[str, Any]] = {}

    def __init__(self, reader: SplitReader) -> None:
        self._reader = reader

    def read(self) -> tuple[int, Features]:
        """Returns the number of training examples, and their rows."""
        examples, features = self._reader.read(TRAIN)
        return len(examples), features

    def build_objective(self, model: keras.Model) -> TaskObjective:
        """Returns the loss of the task."""
        del model
        return TaskObjective(self._reader.task)

    def compare(self, split: str) -> Metrics:
        """Returns no metrics: labels have no reference model."""
        del split
        return {}

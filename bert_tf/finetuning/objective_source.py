"""What a run learns from: the labels of its task, or a teacher besides."""

from collections.abc import Mapping
from typing import Any
from typing import Protocol

import keras

from bert_tf.distribute.devices import Devices
from bert_tf.finetuning.evaluate import Metrics
from bert_tf.finetuning.evaluate import SplitReader
from bert_tf.tasks.task import TRAIN
from bert_tf.tasks.task import Features
from bert_tf.tasks.task import Task
from bert_tf.training.losses import TaskObjective
from bert_tf.training.step import Objective


class Supervision(Protocol):
    """What a run learns from; all runs of one command share it.

    Attributes:
      identity: What must be the same for a run to go on; JSON values.
      model_arguments: What the constructor of the model that is trained needs
        beside the task's.
      card: Headings of the model card and their rows.
    """

    identity: Mapping[str, Any]
    model_arguments: Mapping[str, Any]
    card: Mapping[str, Mapping[str, Any]]

    def read(self) -> tuple[int, Features]:
        """Returns the number of examples to train on, and their rows."""

    def build_objective(self, model: keras.Model) -> "TrainedObjective":
        """Returns what to minimise for a model."""

    def compare(self, split: str) -> Metrics:
        """Returns the metrics that stand beside the model's on a split."""


class TrainedObjective(Objective, Protocol):
    """What is minimised, which may have weights of its own.

    Attributes:
      variables: Name to variable: trained, and kept in checkpoints, but no
        part of the model.
    """

    variables: Mapping[str, keras.Variable]


class Labels:
    """The labels of a task, and nothing else.

    Args:
      task: The task.
      reader: Its data.
      devices: Where to compute.
    """

    identity: Mapping[str, Any] = {}
    model_arguments: Mapping[str, Any] = {}
    card: Mapping[str, Mapping[str, Any]] = {}

    def __init__(
        self, task: Task, reader: SplitReader, devices: Devices
    ) -> None:
        del devices
        self._task = task
        self._reader = reader

    def read(self) -> tuple[int, Features]:
        """Returns the number of examples to train on, and their rows."""
        examples, features = self._reader.read(TRAIN)
        return len(examples), features

    def build_objective(self, model: keras.Model) -> TaskObjective:
        """Returns the loss of the task."""
        del model
        return TaskObjective(self._task)

    def compare(self, split: str) -> Metrics:
        """Returns nothing: there is nothing to compare with."""
        del split
        return {}

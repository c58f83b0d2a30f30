"""The registry of tasks, and the task that a stored model was trained for."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.tasks import stored_task
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.embeddings.task import EmbeddingsTask
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.tasks.task import Task

# Maps a task's `variant`, or its `kind` if it has no variant, to its class.
TASKS: Mapping[str, type[Task]] = {
    task.variant or task.kind: task
    for task in (
        ClassificationTask,
        SquadTask,
        MultipleChoiceTask,
        TaggingTask,
        EmbeddingsTask,
    )
}


def from_stored(stored: StoredModel, flag: str = "--model_dir") -> Task:
    """Returns the task that a stored model was trained for.

    Raises:
      UserError: If the model was not fine-tuned, or its task.json is invalid.
    """
    key = _key(stored.task)
    if key not in TASKS:
        raise stored_task.not_fine_tuned(flag, stored.path, key)
    longest = stored.config.max_position_embeddings
    return build_task(stored.task, stored.num_labels, longest)


def describe_embeddings(stored: StoredModel) -> dict[str, Any]:
    """Returns the contents of task.json for the embeddings of a stored model.

    Pooling, normalization and length come from the model's task.json. If it has
    no length, the maximum length of the model is used.
    """
    names = ("max_seq_length", *EmbeddingsTask().model_arguments())
    values = {
        x: stored.task[x] for x in names if stored.task.get(x) is not None
    }
    longest = stored.config.max_position_embeddings
    return {"kind": EmbeddingsTask.kind, "max_seq_length": longest} | values


def build_embeddings(stored: StoredModel) -> EmbeddingsTask:
    """Returns the task of the embeddings of a stored model of any kind."""
    longest = stored.config.max_position_embeddings
    return build_task(describe_embeddings(stored), None, longest)


def build_task(
    values: Mapping[str, Any], num_labels: int | None, longest: int
) -> Task:
    """Returns the task that task.json describes.

    Models trained by other programs may lack some values. If the names of the
    head's `num_labels` labels are missing, they are "0", "1", ... The model can
    read `longest` tokens, so `max_seq_length` is at most `longest`.

    Raises:
      UserError: If the values do not describe a task.
    """
    # Drop null values, so that the task uses its defaults.
    values = {name: x for name, x in values.items() if x is not None}
    if "labels" not in values and num_labels is not None:
        values["labels"] = [str(index) for index in range(num_labels)]
    task = TASKS[_key(values)].from_json(values)
    if task.max_seq_length > longest:
        task = dataclasses.replace(task, max_seq_length=longest)
    return task


def _key(values: Mapping[str, Any]) -> str:
    return values.get("variant") or values["kind"]

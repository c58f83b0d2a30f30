"""The model of a task, and whether a stored one has been trained for it."""

from collections.abc import Mapping
from typing import Any

import keras
from absl import logging

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.distribute.devices import Devices
from bert_tf.errors import UserError
from bert_tf.inference import load
from bert_tf.tasks.task import Task


def build_model(
    stored: StoredModel,
    task: Task,
    devices: Devices,
    new_pooler: bool = False,
    keep_head: bool = False,
    **kwargs: Any,
) -> keras.Model:
    """Builds the model of a task with the weights of a stored one.

    Args:
      stored: The pretrained or fine-tuned model.
      task: The task.
      devices: Where it is to live.
      new_pooler: Whether the pooler begins anew.
      keep_head: Whether the head must be the stored one; else it is that if
        the model was trained for a task with the same labels, in any order.
      **kwargs: For the model's constructor, beside what the task says.

    Raises:
      UserError: If the head must be the stored one and there is none.
    """
    new_parts = ["pooler"] if new_pooler else []
    if has_head_for(stored, task):
        logging.info("The head is that of %s.", stored.path)
        labels = task.to_json().get("labels")
        if labels and stored.task.get("labels"):
            stored = stored.with_labels(labels)
    elif keep_head:
        wanted = task.to_json()
        if stored.task.get("kind") != task.kind:
            # Without training they may have been taken from the model.
            wanted |= {"labels": None}
        raise UserError(
            f"The model in {stored.path} is no fine-tuned model for this task "
            f"({_describe(task.kind, wanted)}). Received: "
            f"{_describe(stored.task.get('kind'), stored.task)}; add "
            "--do_train, or give the model that was trained for it."
        )
    else:
        new_parts.append("head")
    with devices.strategy.scope():
        return load.build_model(
            stored,
            task.kind,
            new_parts=new_parts,
            fuse=devices.fuse,
            dtype=devices.precision.policy,
            **task.model_arguments() | kwargs,
        )


def has_head_for(stored: StoredModel, task: Task) -> bool:
    """Returns whether a stored model has been trained for such a task.

    The order of the labels does not count. Of a model that does not name them,
    such as a checkpoint of the original, their number does.
    """
    known, wanted = stored.task, task.to_json()
    if not task.is_compatible_with(known):
        return False
    if _describe_form(known.get("kind"), known) != _describe_form(
        task.kind, wanted
    ):
        return False
    problem_type = wanted.get("problem_type")
    if known.get("problem_type") not in (None, problem_type):
        return False
    labels = wanted.get("labels")
    if labels and known.get("labels"):
        return sorted(known["labels"]) == sorted(labels)
    is_score = problem_type == "regression"
    return stored.num_labels == (len(labels) if labels else is_score or None)


def _describe(kind: str | None, values: Mapping[str, Any]) -> str:
    """Returns what tells one task from another, to read."""
    name = values.get("name")
    described = describe_head(kind, values)
    return f"{name}: {described}" if name not in (None, kind) else described


def _describe_form(kind: str | None, values: Mapping[str, Any]) -> str:
    """Returns what tells one head from another beside what it scores."""
    left_out = ("labels", "problem_type")
    return describe_head(
        kind, {name: x for name, x in values.items() if name not in left_out}
    )


def describe_head(kind: str | None, values: Mapping[str, Any]) -> str:
    """Returns what tells one head from another, to read."""
    labels = values.get("labels")
    parts = [str(values.get("variant") or kind)]
    if labels:
        shown = ", ".join(labels[:5]) + (", ..." if len(labels) > 5 else "")
        parts.append(f"{len(labels)} labels: {shown}")
    if values.get("problem_type", "single_label") != "single_label":
        parts.append(values["problem_type"])
    if values.get("head", "linear") != "linear":
        parts.append(f"head {values['head']}")
    if values.get("approach", "fine_tuning") != "fine_tuning":
        parts.append(f"{values['approach']}, {values['layer_combination']}")
    if values.get("lstm_size"):
        parts.append(f"BiLSTM of {values['lstm_size']}")
    return "; ".join(parts)

"""Checks the files of run/distill.py before TensorFlow is imported."""

from collections.abc import Mapping
from typing import Any

from bert_tf.errors import UserError
from bert_tf.flags.distill import DistillConfig
from bert_tf.tasks import inputs as task_inputs
from bert_tf.tasks import stored_task
from bert_tf.tasks.classification import inputs as classification_inputs
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.multiple_choice import inputs as multiple_choice_inputs
from bert_tf.tasks.squad import inputs as squad_inputs
from bert_tf.tasks.tagging import inputs as tagging_inputs

_CUSTOM = "custom"


def check(config: DistillConfig) -> None:
    """Checks columns and first rows of the user's own files.

    The teacher's task.json names the columns; for teachers of other formats,
    and for tasks with official files, all is checked when the teacher is read.

    Raises:
      UserError: If a flag does not fit the teacher's task, a file lacks a
        column, or a row is bad.
    """
    values = stored_task.read(config.teacher_dir)
    kind = values.get("variant") or values.get("kind")
    name = values.get("name", _CUSTOM)
    if values and not (kind == "classification" and name == _CUSTOM):
        refuse_columns(config, name, kind)
    for split in config.requested_splits():
        path = getattr(config, f"{split}_file")
        if path is not None:
            _check_labeled(config, values, kind, split, path)
    if config.unlabeled_file:
        changes = {}
        if kind == "classification" and name == _CUSTOM:
            named = columns(config, _stored_columns(values))
            changes["columns"] = {
                "text": named.text,
                "text_pair": named.text_pair,
            }
        task_inputs.check_file(values | changes, config.unlabeled_file)


def _check_labeled(
    config: DistillConfig,
    values: Mapping[str, Any],
    kind: str | None,
    split: str,
    path: str,
) -> None:
    """Checks a file of the kind of data that the teacher was trained on."""
    name = values.get("name", _CUSTOM)
    if kind == "classification" and name == _CUSTOM:
        named = columns(config, _stored_columns(values))
        classification_inputs.check_labeled(path, split, named, values)
    elif kind == "multiple_choice" and name == _CUSTOM:
        named = multiple_choice_inputs.stored_columns(values)
        multiple_choice_inputs.check_labeled(path, split, named)
    elif kind == "question_answering":
        has_negatives = values.get("version_2_with_negative", False)
        squad_inputs.check_labeled(path, split == "train", has_negatives)
    elif kind == "tagging":
        tagging_inputs.check_labeled(path, split, values)


def _stored_columns(values: Mapping[str, Any]) -> Columns | None:
    stored = values.get("columns")
    return stored and Columns(**stored | {"labels": tuple(stored["labels"])})


def columns(config: DistillConfig, stored: Columns | None) -> Columns:
    """Returns the columns of own files, as the flags change the teacher's.

    Args:
      config: The flags.
      stored: The teacher's columns; models that other programs trained do not
        store them.
    """
    flags = config.column_flags()
    stored = stored or Columns("text")
    labels = flags.get("label_column")
    return Columns(
        flags.get("text_column", stored.text),
        flags.get("text_pair_column", stored.text_pair),
        stored.labels or ("label",)
        if labels is None
        else tuple(name.strip() for name in labels.split(",")),
    )


def refuse_columns(config: DistillConfig, name: str, kind: str) -> None:
    """Raises `UserError` if flags name columns of a task that has its own."""
    flags = config.column_flags()
    if flags:
        names = ", ".join(f"--{flag}" for flag in flags)
        raise UserError(
            f"{names}: these are for classification of own files, and the "
            f"teacher was trained for the task {name!r} of kind {kind}; drop "
            "them."
        )

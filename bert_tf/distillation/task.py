"""The task of a teacher as the task of its student, with the student's data."""

import dataclasses
from typing import Any

from absl import logging

from bert_tf.errors import UserError
from bert_tf.flags.distill import DistillConfig
from bert_tf.tasks.classification import glue
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.multiple_choice import files as multiple_choice_files
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tagging import flags as tagging_flags
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.tasks.task import Task

# A tagger that is distilled is fine-tuned whole, whatever its teacher was.
_FINE_TUNED = {
    "approach": "fine_tuning",
    "layer_combination": None,
    "lstm_size": None,
}


def with_files(task: Task, config: DistillConfig) -> Task:
    """Returns a teacher's task with the files of the flags.

    Args:
      task: What `registry.from_stored` returned for the teacher.
      config: The flags.

    Raises:
      UserError: If a file is missing, or the task has none of such a kind.
    """
    files: dict[str, str] = {}
    for kind in config.asked_kinds():
        given = getattr(config, f"{kind}_file")
        if given is not None:
            files[kind] = given
        else:
            files |= _find_files(task, config.data_dir, kind)
    changes = {"files": files, "max_seq_length": config.max_seq_length}
    return dataclasses.replace(task, **changes | _columns(task, config))


def _columns(task: Task, config: DistillConfig) -> dict[str, Any]:
    """Returns which columns of own files hold what, where that is asked."""
    given = config.given_columns()
    if not isinstance(task, ClassificationTask) or task.official is not None:
        if given:
            flags = ", ".join(f"--{name}" for name in given)
            raise UserError(
                f"{flags}: these are for classification of own files, and the "
                f"teacher was trained for the task {task.name!r} of kind "
                f"{task.kind}; drop them."
            )
        return {}
    # Models that other programs trained do not say it.
    known = task.columns or Columns("text")
    labels = given.get("label_column")
    return {
        "columns": Columns(
            given.get("text_column", known.text),
            given.get("text_pair_column", known.text_pair),
            known.labels or ("label",)
            if labels is None
            else tuple(name.strip() for name in labels.split(",")),
        )
    }


def of_student(task: Task, config: DistillConfig) -> Task:
    """Returns the task with a head as the flags have it.

    Args:
      task: The teacher's, with the student's files.
      config: The flags.
    """
    changes: dict[str, Any] = {"head": config.head}
    if hasattr(task, "head_dropout_prob"):
        changes["head_dropout_prob"] = config.head_dropout_prob
    elif config.head_dropout_prob != DistillConfig.head_dropout_prob:
        raise UserError(
            "--head_dropout_prob has no effect on a student of kind="
            f"{task.kind!r}, whose head has no dropout; drop it."
        )
    if isinstance(task, TaggingTask):
        changes |= _FINE_TUNED
    if isinstance(task, SquadTask):
        changes["null_score_diff_threshold"] = None  # It finds its own.
    return dataclasses.replace(task, **changes)


def _find_files(task: Task, data_dir: str, kind: str) -> dict[str, str]:
    """Returns split to file, of the official files in --data_dir."""
    if isinstance(task, ClassificationTask) and task.official is not None:
        return _find_official(task, data_dir, kind)
    if isinstance(task, MultipleChoiceTask):
        official = multiple_choice_files.OFFICIAL.get(task.name)
        if official is not None:
            return {kind: official.find(data_dir, kind)}
    if isinstance(task, TaggingTask):
        return {kind: tagging_flags.find_file(data_dir, kind)}
    raise UserError(
        "--data_dir is for tasks with official files, and the teacher was "
        f"trained for the task {task.name!r} of kind {task.kind}; give "
        "--train_file, --dev_file and --test_file."
    )


def _find_official(
    task: ClassificationTask, data_dir: str, kind: str
) -> dict[str, str]:
    official = task.official
    if not official.splits(kind):
        raise UserError(
            f"{official.title}, which the teacher was trained for, has no "
            f"{kind} set."
        )
    found = glue.find_files(official, data_dir, kind, task.language)
    for split in official.splits(kind):
        if split not in found:
            logging.warning(
                "%s has no file of the split %s, which is left out.",
                data_dir,
                split,
            )
    return found

"""The student's task and data: the teacher's task with the student's files.

Shapes:
  B: batch size.
  T: length of a batch.
"""

import dataclasses
from typing import Any

import numpy as np
from absl import logging

from bert_tf.distillation import inputs
from bert_tf.distillation.objective import IS_LABELED
from bert_tf.errors import UserError
from bert_tf.flags.distill import DistillConfig
from bert_tf.tasks.classification import glue
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.multiple_choice import examples as multiple_choice_examples
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tagging import inputs as tagging_inputs
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.tasks.task import Features
from bert_tf.tasks.task import Task

# A student tagger is always fine-tuned whole, unlike some teachers.
_FINE_TUNED = {
    "approach": "fine_tuning",
    "layer_combination": None,
    "lstm_size": None,
}


def with_files(task: Task, config: DistillConfig) -> Task:
    """Returns the teacher's task with the files of the flags."""
    files: dict[str, str] = {}
    for kind in config.requested_splits():
        path = getattr(config, f"{kind}_file")
        if path is not None:
            files[kind] = path
        else:
            files |= _find_files(task, config.data_dir, kind)
    changes = {"files": files, "max_seq_length": config.max_seq_length}
    return dataclasses.replace(task, **changes | _columns(task, config))


def _columns(task: Task, config: DistillConfig) -> dict[str, Any]:
    """Returns the column settings for own files, changed by the flags."""
    if not isinstance(task, ClassificationTask) or task.official is not None:
        inputs.refuse_columns(config, task.name, task.kind)
        return {}
    return {"columns": inputs.columns(config, task.columns)}


def of_student(task: Task, config: DistillConfig) -> Task:
    """Returns the student's task, with the head that the flags describe."""
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
        changes["null_score_diff_threshold"] = (
            None  # The student selects its own.
        )
    return dataclasses.replace(task, **changes)


def _find_files(task: Task, data_dir: str, kind: str) -> dict[str, str]:
    """Returns split to file for the official files in --data_dir."""
    if isinstance(task, ClassificationTask) and task.official is not None:
        return _find_official(task, data_dir, kind)
    if isinstance(task, MultipleChoiceTask):
        official = multiple_choice_examples.OFFICIAL.get(task.name)
        if official is not None:
            return {kind: official.find(data_dir, kind)}
    if isinstance(task, TaggingTask):
        return {kind: tagging_inputs.find_file(data_dir, kind)}
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
    paths = glue.find_files(official, data_dir, kind, task.language)
    for split in official.splits(kind):
        if split not in paths:
            logging.warning(
                "%s has no file of the split %s, which is skipped.",
                data_dir,
                split,
            )
    return paths


class MixedFeatures:
    """Rows with labels, followed by rows without labels.

    Args:
      unlabeled: Rows without labels. Their features are a subset of those of
        the labeled rows.
    """

    def __init__(self, labeled: Features, unlabeled: Features) -> None:
        self._labeled = labeled
        self._unlabeled = unlabeled

    @property
    def lengths(self) -> np.ndarray:
        """<int64>[N], the tokens of each row."""
        return np.concatenate([self._labeled.lengths, self._unlabeled.lengths])

    def __len__(self) -> int:
        return len(self._labeled) + len(self._unlabeled)

    def batch(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns a batch that may hold rows of both kinds.

        Args:
          indices: <int64>[B], the numbers of the rows.
          length: T, at least the length of the longest row.

        Returns:
          The features of labeled rows, 0 where a row lacks one, and
          `is_labeled` <float32>[B].
        """
        is_labeled = indices < len(self._labeled)
        mine = self._labeled.batch(indices[is_labeled], length)
        theirs = self._unlabeled.batch(
            indices[~is_labeled] - len(self._labeled), length
        )
        batch = {IS_LABELED: is_labeled.astype(np.float32)}
        for name, value in mine.items():
            other = theirs.get(name, np.zeros([0, *value.shape[1:]]))
            # One kind may have examples with more choices than the other.
            shape = np.maximum(value.shape[1:], other.shape[1:])
            rows = np.zeros([len(indices), *shape], value.dtype)
            _put(rows, is_labeled, value)
            if name in theirs:
                _put(rows, ~is_labeled, other)
            batch[name] = rows
        return batch


def _put(rows: np.ndarray, which: np.ndarray, values: np.ndarray) -> None:
    """Sets some rows; entries beyond the axes of `values` stay 0."""
    parts = tuple(slice(size) for size in values.shape[1:])
    rows[(np.flatnonzero(which), *parts)] = values

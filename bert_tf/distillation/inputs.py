"""Reads the data files of run/distill.py before TensorFlow is imported."""

import dataclasses
from typing import TypeVar

from bert_tf.checkpoints import task_values
from bert_tf.errors import UserError
from bert_tf.flags import options
from bert_tf.flags.options import Flags
from bert_tf.tasks import dev_split
from bert_tf.tasks import stored_task
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.task_files import ClassificationFiles
from bert_tf.tasks.multiple_choice import examples as multiple_choice_examples
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceFiles
from bert_tf.tasks.tagging import examples as tagging_examples
from bert_tf.tasks.tagging.examples import TaggingFiles
from bert_tf.tasks.task_files import TaskFiles

_Task = TypeVar("_Task", bound=TaskFiles)


def read(config: Flags) -> TaskFiles | None:
    """Reads the files of the flags, as the teacher's task.json describes them.

    Returns:
      The files with their rows; None if the rows cannot be checked before the
      teacher is read, for instance if the teacher has no task.json.
    """
    task = stored_task.describe_files(config.teacher_dir, "--teacher_dir")
    stored_task.check_model(config, task and task.kind)
    layers = task_values.read_size(config.teacher_dir, "num_hidden_layers")
    if config.num_hidden_layers and layers:
        choose_layers(config, config.num_hidden_layers, layers)
    if task is None:
        return None
    task = dev_split.split(with_files(task, config), config)
    if config.unlabeled_file:
        stored_task.check_inputs(task, config.unlabeled_file)
    has_score = getattr(task, "problem_type", None) == "regression"
    # Labels are checked against the names in task.json. Without names, return
    # None, so that nothing is checked here; scores need no names.
    has_labels = getattr(task, "labels", True) or has_score
    return task.load() if has_labels else None


def choose_layers(
    config: Flags, num_layers: int, num_teacher_layers: int
) -> tuple[int, ...]:
    """Returns the teacher's layer for each student layer, counted from 1.

    By default, layer m of M student layers is paired with layer m * N / M,
    rounded up, of N teacher layers (Jiao et al., 2020, section 4.1). With M = 3
    and N = 12, the student is paired with the teacher's layers 4, 8 and 12.
    """
    chosen = config.layers_of_flag()
    if not chosen:
        options.require(
            config.has_student or num_layers <= num_teacher_layers,
            f"--num_hidden_layers must be at most {num_teacher_layers}, the "
            f"number of the teacher's layers. Received: {num_layers}; a deeper "
            "student needs --teacher_layers, one for each of its layers.",
        )
        return tuple(
            -(-number * num_teacher_layers // num_layers)
            for number in range(1, num_layers + 1)
        )
    options.require(
        len(chosen) == num_layers and max(chosen) <= num_teacher_layers,
        f"--teacher_layers must name {num_layers} layers, one for each of the "
        f"student's, from 1 to {num_teacher_layers}, the teacher's last. "
        f"Received: {config.teacher_layers}.",
    )
    return chosen


def with_files(task: _Task, config: Flags) -> _Task:
    """Returns the teacher's task with the files and columns of the flags."""
    options.require(
        task.kind != "embeddings",
        "--teacher_dir must have labels or answers to teach. Received: "
        f"{config.teacher_dir}, a model for embeddings.",
    )
    files: dict[str, str] = {}
    is_own = isinstance(task, ClassificationFiles) and task.official is None
    columns = ("text_column", "text_pair_column", "label_column")
    flags = options.set_values(config, *columns)
    options.require(
        is_own or not flags,
        f"{', '.join(f'--{x}' for x in flags)}: these are for classification "
        "of own files, and the teacher was trained for the task "
        f"{task.name!r} of kind {task.kind}; drop them.",
    )
    for kind, path in config.named_files().items():
        if path is not None:
            files[kind] = path
        elif config.data_dir is not None:
            files |= _find_files(task, config.data_dir, kind)
    if is_own:
        # A teacher made by another program stores no columns: use "text".
        columns = task.columns or Columns("text")
        task = dataclasses.replace(task, columns=columns.with_flags(config))
    return dataclasses.replace(task, files=files)


def _find_files(task: TaskFiles, data_dir: str, kind: str) -> dict[str, str]:
    """Returns the paths of the official files in --data_dir, by split."""
    if isinstance(task, ClassificationFiles) and task.official is not None:
        return task.official.find_files(data_dir, kind, task.language)
    if isinstance(task, MultipleChoiceFiles):
        official = multiple_choice_examples.OFFICIAL.get(task.name)
        if official is not None:
            return official.find_files(data_dir, kind)
    if isinstance(task, TaggingFiles):
        return {kind: tagging_examples.find_file(data_dir, kind)}
    raise UserError(
        "--data_dir is for tasks with official files, and the teacher was "
        f"trained for the task {task.name!r} of kind {task.kind}; give "
        "--train_file, --dev_file and --test_file."
    )

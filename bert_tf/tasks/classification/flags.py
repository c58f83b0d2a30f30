"""Builds the classification task from flags."""

import dataclasses
import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf.errors import UserError
from bert_tf.flags.classifier import ClassifierConfig
from bert_tf.tasks import metrics
from bert_tf.tasks import task as task_lib
from bert_tf.tasks.classification import features as classification_features
from bert_tf.tasks.classification import glue
from bert_tf.tasks.classification import glue_tasks
from bert_tf.tasks.classification import inputs
from bert_tf.tasks.classification import labels as label_values
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.glue_tasks import GlueTask
from bert_tf.tasks.classification.task import ClassificationTask

_BALANCED = "balanced"
# A label:weight pair, for any label.
_ANY_PAIR = re.compile(r".*?:[^,:]*(?=,|$)|.*", re.DOTALL)


def build_task(
    config: ClassifierConfig, stored_task: Mapping[str, Any] | None
) -> ClassificationTask:
    """Returns the task of the flags.

    Args:
      config: The flags.
      stored_task: Without training, the contents of the model's task.json; its
        labels and their order are used.

    Raises:
      UserError: If a file is missing or invalid, or the model does not fit
        the task.
    """
    if config.is_custom:
        task = _custom_task(config, stored_task)
    else:
        task = _official_task(config, stored_task)
    if stored_task is None:
        return _with_class_weights(config, task)
    task_lib.warn_of_settings(
        stored_task, {"max_seq_length": config.max_seq_length}
    )
    weights = inputs.stored_class_weights(stored_task)
    return dataclasses.replace(task, class_weights=weights)


# === Tasks with official files ===


def _official_task(
    config: ClassifierConfig, stored_task: Mapping[str, Any] | None
) -> ClassificationTask:
    official = glue_tasks.get_task(config.task_name)
    inputs.check_language(config, official.has_languages)
    stored = stored_task or {}
    language = config.language or stored.get("language") or "zh"
    files = {}
    for kind, flag in config.requested_splits().items():
        if not official.splits(kind):
            raise glue.no_split(official, kind, flag)
        files |= glue.find_requested(official, config.data_dir, kind, language)
    return ClassificationTask(
        name=official.name,
        max_seq_length=config.max_seq_length,
        files=files,
        labels=_official_labels(official, stored_task),
        problem_type=official.problem_type,
        metric_names=official.metrics,
        columns=Columns(*official.texts[0]),
        doc_stride=config.doc_stride or stored.get("doc_stride"),
        official=official,
        language=language,
        head=_head(config, stored_task),
        head_dropout_prob=config.head_dropout_prob,
    )


def _official_labels(
    official: GlueTask, stored_task: Mapping[str, Any] | None
) -> tuple[str, ...] | None:
    """Returns the labels, in the model's order if it has one."""
    stored = (stored_task or {}).get("labels")
    if official.labels is None or not stored:
        return official.labels
    if sorted(stored) != sorted(official.labels):
        raise UserError(
            f"The model has the labels {', '.join(stored)}, and "
            f"{official.title} has {', '.join(official.labels)}; give a model "
            "that was trained for it, or rename its labels."
        )
    return tuple(stored)


# === Custom files ===


def _custom_task(
    config: ClassifierConfig, stored_task: Mapping[str, Any] | None
) -> ClassificationTask:
    stored = stored_task or {}
    problem_type = inputs.problem_type(config, stored)
    task = ClassificationTask(
        name="custom",
        max_seq_length=config.max_seq_length,
        files={
            kind: getattr(config, f"{kind}_file")
            for kind in config.requested_splits()
        },
        # Those of the training data are not known yet.
        labels=None,
        problem_type=problem_type,
        metric_names=metrics.METRICS_OF_PROBLEM[problem_type],
        columns=inputs.columns_of_flags(config, stored.get("columns") or {}),
        label_separator=(
            config.label_separator or stored.get("label_separator") or ","
        ),
        doc_stride=config.doc_stride or stored.get("doc_stride"),
        head=_head(config, stored_task),
        head_dropout_prob=config.head_dropout_prob,
    )
    inputs.check_columns(config, task.columns, problem_type)
    if problem_type == "regression":
        return task
    if stored.get("labels"):
        return dataclasses.replace(task, labels=tuple(stored["labels"]))
    if len(task.columns.labels) > 1:
        return dataclasses.replace(task, labels=task.columns.labels)
    return _with_labels_of_data(config, task, stored.get("kind", task.kind))


def _with_labels_of_data(
    config: ClassifierConfig, task: ClassificationTask, stored_kind: str
) -> ClassificationTask:
    """Returns the task with the labels of the training data."""
    path = config.train_file
    if path is None:
        if stored_kind != task.kind:
            raise UserError(
                "Without --do_train the model must be fine-tuned for "
                f"{task.kind}. Received: a model of kind={stored_kind!r}; add "
                "--do_train, or give a model that was fine-tuned for it."
            )
        raise UserError(
            "The model does not have the names of its labels; give the "
            "--train_file that it was trained with."
        )
    # Also to evaluate a model that does not name its labels.
    training = dataclasses.replace(task, files={task_lib.TRAIN: path})
    data = training.load(task_lib.TRAIN).data
    labels = classification_features.gather_labels(
        data[task_lib.TRAIN].examples, path
    )
    return dataclasses.replace(task, labels=labels, data=data)


def _head(
    config: ClassifierConfig, stored_task: Mapping[str, Any] | None
) -> str:
    if stored_task is None:
        return config.head
    return stored_task.get("head", "linear")


# === Class weights ===


def _with_class_weights(
    config: ClassifierConfig, task: ClassificationTask
) -> ClassificationTask:
    """Returns the task with the weights for training."""
    if config.class_weights is None or not config.do_train:
        return task
    if task.problem_type != "single_label":
        raise UserError(
            "--class_weights is for single-label problems. Received: "
            f"a task with --problem_type={task.problem_type}."
        )
    if config.class_weights == _BALANCED:
        task = task.load(task_lib.TRAIN)
        weights = _balanced_weights(task)
    else:
        weights = _parse_weights(config.class_weights, task.labels)
    return dataclasses.replace(task, class_weights=weights)


def _parse_weights(text: str, labels: Sequence[str]) -> tuple[float, ...]:
    """Returns the weight of each label.

    Args:
      text: label:weight pairs separated by commas; other labels have weight 1.
        Labels may themselves contain commas and colons.
      labels: The labels, at least two.

    Raises:
      UserError: If a label is unknown or a weight is not a number above 0.
    """
    weights = dict.fromkeys(labels, 1.0)
    seen = set()
    # The longest first: with labels "a" and "a:1", "a:1:2" means the latter.
    names = "|".join(map(re.escape, sorted(labels, key=len, reverse=True)))
    pair = re.compile(rf"\s*({names})\s*:([^,:]*)(?:,|$)")
    position, is_over = 0, False
    while not is_over:
        match = pair.match(text, position)
        if match is None or match[1] in seen:
            example = shlex.quote(f"{labels[0]}:2.5,{labels[1]}:0.5")
            raise UserError(
                f"--class_weights must be {_BALANCED!r} or name labels once "
                f"each, as --class_weights={example}. Received: "
                f"{_ANY_PAIR.match(text, position)[0].strip()!r}, and the "
                f"labels are {label_values.name_some(labels)}."
            )
        received = match[0].strip().removesuffix(",")
        weights[match[1]] = _parse_weight(match[2], received)
        seen.add(match[1])
        position, is_over = match.end(), not match[0].endswith(",")
    return tuple(weights.values())


def _parse_weight(number: str, pair: str) -> float:
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise UserError(
            "The weights of --class_weights must be numbers above 0. Received: "
            f"{pair!r}."
        )
    return weight


def _balanced_weights(task: ClassificationTask) -> tuple[float, ...]:
    """Returns weights that give all labels the same total weight.

    Raises:
      UserError: If a label has no examples.
    """
    examples = task.data[task_lib.TRAIN].examples
    counts = Counter(example.label for example in examples)
    missing = [label for label in task.labels if not counts[label]]
    if missing:
        raise UserError(
            f"--class_weights={_BALANCED} needs examples of every label; "
            f"{task.files[task_lib.TRAIN]} has none of "
            f"{label_values.name_some(missing)}."
        )
    return tuple(
        len(examples) / (len(task.labels) * counts[label])
        for label in task.labels
    )

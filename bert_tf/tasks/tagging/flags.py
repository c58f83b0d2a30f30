"""Builds the tagging task from flags."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_tf.config import DEFAULT_LAYER_COMBINATION
from bert_tf.errors import UserError
from bert_tf.flags.tagger import TaggerConfig
from bert_tf.flags.tagger import require_tagger_columns
from bert_tf.tasks import task as task_lib
from bert_tf.tasks.tagging import features as tagging_features
from bert_tf.tasks.tagging import inputs
from bert_tf.tasks.tagging.task import TaggingTask


def build_task(
    config: TaggerConfig, stored_task: Mapping[str, Any] | None
) -> TaggingTask:
    """Returns the task of the flags.

    Args:
      config: The flags.
      stored_task: Without training, the contents of the model's task.json; its
        labels, head and approach are used, and its columns, context and stride
        are the defaults.

    Raises:
      UserError: If a file is missing or invalid, or the model is not a tagger.
    """
    files = inputs.find_files(config)
    reading = _reading(config, stored_task or {})
    form = {
        name: getattr(config, name)
        for name in ("head", "approach", "lstm_size")
    }
    # Of several combinations each trial has its own.
    form["layer_combination"] = config.layer_combinations()[0]
    if config.approach == "feature_based" and not config.layer_combination:
        form["layer_combination"] = DEFAULT_LAYER_COMBINATION
    labels = ()
    if stored_task is not None:
        labels = stored_task.get("labels")
        if stored_task.get("kind") != TaggingTask.kind or not labels:
            raise UserError(
                "Without --do_train the model must be a tagger with the names "
                "of its tags. Received: a model of kind="
                f"{stored_task.get('kind')!r} with labels={labels!r}."
            )
        form = {name: stored_task[name] for name in form if name in stored_task}
        task_lib.warn_of_settings(
            stored_task, reading | {"max_seq_length": config.max_seq_length}
        )
    task = TaggingTask(
        name="tagging",
        max_seq_length=config.max_seq_length,
        files=files,
        labels=tuple(labels),
        head_dropout_prob=config.head_dropout_prob,
        **reading,
        **form,
    )
    if labels:
        return task
    task = task.load(task_lib.TRAIN)
    examples = task.data[task_lib.TRAIN].examples
    labels = tuple(tagging_features.collect_labels(examples))
    return dataclasses.replace(task, labels=labels)


def _reading(config: TaggerConfig, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Returns columns, context and stride, from the flags or the model."""
    flags = {
        **config.reading(),
        "context": config.context,
        "doc_stride": config.doc_stride,
    }
    reading = {}
    for name, flag in flags.items():
        candidates = (flag, stored.get(name), getattr(TaggingTask, name))
        reading[name] = next((x for x in candidates if x is not None), None)
    require_tagger_columns(reading["word_column"], reading["tag_column"])
    return reading

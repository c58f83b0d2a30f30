"""Builds the multiple-choice task from flags."""

from collections.abc import Mapping
from typing import Any

from bert_tf.flags.classifier import MultipleChoiceConfig
from bert_tf.tasks import task as task_lib
from bert_tf.tasks.multiple_choice import examples as multiple_choice_examples
from bert_tf.tasks.multiple_choice import inputs
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask


def build_task(
    config: MultipleChoiceConfig, stored_task: Mapping[str, Any] | None
) -> MultipleChoiceTask:
    """Returns the task of the flags.

    Args:
      config: The flags.
      stored_task: Without training, the contents of the model's task.json; its
        columns are the defaults.

    Raises:
      UserError: If a file is missing.
    """
    stored = stored_task or {}
    task_lib.warn_of_settings(stored, {"max_seq_length": config.max_seq_length})
    is_custom = config.is_custom
    return MultipleChoiceTask(
        name=config.task_name,
        max_seq_length=config.max_seq_length,
        files=_own_files(config)
        if is_custom
        else inputs.official_files(config),
        columns=(
            inputs.columns_of_flags(config, stored.get("columns") or {})
            if is_custom
            else multiple_choice_examples.OFFICIAL[config.task_name].columns
        ),
        head=stored.get("head", "linear") if stored_task else config.head,
        head_dropout_prob=config.head_dropout_prob,
    )


def _own_files(config: MultipleChoiceConfig) -> dict[str, str]:
    return {
        kind: getattr(config, f"{kind}_file")
        for kind in config.requested_splits()
    }

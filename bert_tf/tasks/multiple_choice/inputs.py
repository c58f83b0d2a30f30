"""Finds and checks the files of the flags, before TensorFlow is imported."""

import itertools
import os
from collections.abc import Mapping
from typing import Any

from bert_tf.flags.classifier import MultipleChoiceConfig
from bert_tf.tasks.multiple_choice import examples as multiple_choice_examples
from bert_tf.tasks.multiple_choice.examples import Columns

# Rows at the start of each file; training reads all.
_NUM_ROWS = 1000


def check(config: MultipleChoiceConfig) -> None:
    """Checks columns and first rows of the files that training reads.

    Without --do_train the model may name the columns, so they are checked when
    it is read. Files that can be read only once, such as pipes, are not read.

    Raises:
      UserError: As `flags.build_task`, or for a bad row.
    """
    if not config.is_custom:
        if "://" not in config.data_dir:
            official_files(config)
        return
    columns = columns_of_flags(config, {})
    for kind in config.requested_splits() if config.do_train else ():
        path = getattr(config, f"{kind}_file")
        if os.path.isfile(path):
            rows = multiple_choice_examples.read_labeled(
                path,
                columns,
                may_lack_labels=kind == "test",
                name_flags=True,
            )
            for _ in itertools.islice(rows, _NUM_ROWS):
                pass


def official_files(config: MultipleChoiceConfig) -> dict[str, str]:
    """Returns the files of the requested splits, by split."""
    official = multiple_choice_examples.OFFICIAL[config.task_name]
    return {
        kind: official.find(config.data_dir, kind)
        for kind in config.requested_splits()
    }


def columns_of_flags(
    config: MultipleChoiceConfig, stored: Mapping[str, Any]
) -> Columns:
    """Returns the columns in the flags, else those of the model's data."""
    if config.context_column is None:
        context = stored.get("context", "context")
    else:
        context = config.context_column or None
    return Columns(
        choices=(
            config.choices_of_flag()
            or tuple(stored.get("choices", ("choices",)))
        ),
        context=context,
        # A column of the model's data, which has no flag.
        start=None if config.choice_columns else stored.get("start"),
        label=config.label_column or stored.get("label") or "label",
    )

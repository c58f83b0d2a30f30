"""Finds and checks the files of the flags, before TensorFlow is imported."""

import itertools
import os
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from bert_tf.flags.classifier import MultipleChoiceConfig
from bert_tf.io import tables
from bert_tf.tasks import stored_task
from bert_tf.tasks.multiple_choice import examples as multiple_choice_examples
from bert_tf.tasks.multiple_choice.examples import Columns

# Rows at the start of each file; training reads all.
_NUM_ROWS = 1000


def check(config: MultipleChoiceConfig) -> None:
    """Checks columns and first rows of the files that are read.

    Without --do_train the model's task.json may name the columns; for models of
    other formats they are checked when the model is read. Files that can be
    read only once, such as pipes, are not read.

    Raises:
      UserError: As `flags.build_task`, or for a bad row.
    """
    if not config.is_custom:
        if "://" not in config.data_dir:
            official_files(config)
        return
    stored = stored_task.read_for_evaluation(config, "multiple_choice")
    if stored is None:
        return
    columns = columns_of_flags(config, stored.get("columns") or {})
    for kind in config.requested_splits():
        check_labeled(getattr(config, f"{kind}_file"), kind, columns)


def check_labeled(path: str, kind: str, columns: Columns) -> None:
    """Checks the columns and first rows of a file with labels.

    Args:
      path: The file.
      kind: "train", "dev" or "test", which may lack labels.
      columns: The columns to read.

    Raises:
      UserError: As `examples.read_labeled`.
    """
    if not os.path.isfile(path):  # Remote, or a pipe.
        return
    rows = multiple_choice_examples.read_labeled(
        path, columns, may_lack_labels=kind == "test", name_flags=True
    )
    _read_first(rows)


def check_texts(values: Mapping[str, Any], path: str) -> tables.Table:
    """Checks the columns and first rows of a file to predict.

    Args:
      values: The contents of the model's task.json.
      path: The file.

    Returns:
      The table, with its rows unread.

    Raises:
      UserError: As `examples.read_inputs`.
    """
    official = multiple_choice_examples.OFFICIAL.get(values.get("name"))
    names = official.columns_without_header if official else ()
    columns = stored_columns(values)
    _read_first(multiple_choice_examples.read_inputs(path, columns, names))
    return tables.read_table(path, columns_without_header=names)


def stored_columns(values: Mapping[str, Any]) -> Columns:
    """Returns the columns that a model's task.json names."""
    columns = values.get("columns", {"context": "context"})
    choices = tuple(columns.get("choices", ("choices",)))
    return Columns(**columns | {"choices": choices})


def _read_first(rows: Iterable[Any]) -> None:
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

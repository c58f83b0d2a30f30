"""Reads flags, task.json and the starts of files, without TensorFlow."""

import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf.errors import UserError
from bert_tf.flags.classifier import ClassifierConfig
from bert_tf.io import tables
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.labels import ProblemType

# Rows at the start of each file; training reads all.
_NUM_ROWS = 1000
# A file to predict is read whole up to this size, which takes a second.
_MAX_BYTES = 1 << 26


def check(config: ClassifierConfig) -> None:
    """Checks task, columns and first rows of the files that training reads.

    Without --do_train the model may name the columns, so they are checked when
    it is read. Files that can be read only once, such as pipes, are not read.

    Raises:
      UserError: As `flags.build_task`.
    """
    if not config.is_custom:
        _check_official(config)
        return
    problem_type = config.problem_type or "single_label"
    columns = columns_of_flags(config, {})
    check_columns(config, columns, problem_type)
    for kind in config.requested_splits() if config.do_train else ():
        path = getattr(config, f"{kind}_file")
        if os.path.isfile(path):
            classification_examples.read_examples(
                path,
                columns,
                problem_type,
                may_lack_labels=kind == "test",
                label_separator=config.label_separator or ",",
                num_rows=_NUM_ROWS,
            )


def _check_official(config: ClassifierConfig) -> None:
    # Imported here, as the metrics of GLUE take a second.
    from bert_tf.tasks.classification import glue
    from bert_tf.tasks.classification import glue_tasks

    official = glue_tasks.get_task(config.task_name)
    check_language(config, official.has_languages)
    for kind, flag in config.requested_splits().items():
        if not official.splits(kind):
            raise glue.no_split(official, kind, flag)
        # Without training the model may choose the language.
        if "://" not in config.data_dir and config.do_train:
            glue.find_files(
                official, config.data_dir, kind, config.language or "zh"
            )


def check_texts(
    values: Mapping[str, Any],
    path: str,
    keep_empty: bool = False,
    kept_columns: Sequence[str] = (),
) -> None:
    """Checks the file of run/predict.py: columns, rows and empty texts.

    Large files are checked when the model is loaded.

    Args:
      values: The contents of the model's task.json.
      path: The file.
      keep_empty: Whether texts may be empty.
      kept_columns: Further columns that must exist.

    Raises:
      UserError: As `examples.read_texts`.
    """
    columns = values.get("columns")
    is_custom = values.get("name", "custom") == "custom"
    if not (columns and is_custom) or os.path.getsize(path) > _MAX_BYTES:
        return
    named = Columns(columns["text"], columns.get("text_pair"))
    for _ in classification_examples.read_texts(path, (named,), keep_empty):
        pass
    flags = dict.fromkeys(kept_columns, "--keep_columns")
    tables.read_table(path).require(kept_columns, flags)


def check_language(config: ClassifierConfig, has_languages: bool) -> None:
    """Raises `UserError` if --language is set for a task without languages."""
    if config.language is not None and not has_languages:
        raise UserError(
            f"--language is for xnli. Received: --task_name={config.task_name}."
        )


def columns_of_flags(
    config: ClassifierConfig, stored: Mapping[str, Any]
) -> Columns:
    """Returns the columns in the flags, else those of the model's data."""
    if config.label_column is not None:
        labels = tuple(name.strip() for name in config.label_column.split(","))
    else:
        labels = tuple(stored.get("labels") or ("label",))
    return Columns(
        config.text_column or stored.get("text") or "text",
        config.text_pair_column or stored.get("text_pair"),
        labels,
    )


def check_columns(
    config: ClassifierConfig, columns: Columns, problem_type: str
) -> None:
    """Raises `UserError` if columns and type of the labels do not match."""
    if len(columns.labels) > 1 and problem_type != "multi_label":
        raise UserError(
            "Several label columns need --problem_type=multi_label. "
            f"Received: --label_column={','.join(columns.labels)} and "
            f"--problem_type={problem_type}."
        )
    named = [*columns.texts, *columns.labels]
    for column in named:
        if named.count(column) > 1:
            raise UserError(
                "--text_column, --text_pair_column and --label_column must "
                f"name different columns. Received: {column!r} twice."
            )
    has_names = problem_type == "multi_label" and len(columns.labels) == 1
    if config.label_separator is not None and not has_names:
        raise UserError(
            "--label_separator is for --problem_type=multi_label with one "
            "--label_column that holds the names of all labels."
        )


def stored_problem_type(values: Mapping[str, Any]) -> ProblemType | None:
    """Returns the problem type in task.json, or None if it is not known.

    Without a type, a model with one label is a regression, as in Hugging Face
    Transformers.
    """
    labels = values.get("labels")
    is_score = labels is not None and len(labels) == 1
    return values.get("problem_type") or ("regression" if is_score else None)


def stored_class_weights(
    values: Mapping[str, Any],
) -> tuple[float, ...] | None:
    """Returns the class weights in task.json, for the loss on dev."""
    weights = values.get("class_weights")
    return weights and tuple(weights)

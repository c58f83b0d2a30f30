"""Reads flags, task.json and the starts of files, without TensorFlow."""

import os
from collections.abc import Mapping
from typing import Any

from bert_tf.errors import UserError
from bert_tf.flags.classifier import ClassifierConfig
from bert_tf.io import tables
from bert_tf.tasks import stored_task
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification.examples import Columns
from bert_tf.tasks.classification.labels import ProblemType

# Rows at the start of each file; training reads all.
_NUM_ROWS = 1000


def check(config: ClassifierConfig) -> None:
    """Checks task, columns and first rows of the files that are read.

    Without --do_train the model's task.json may name the columns; for models of
    other formats they are checked when the model is read. Files that can be
    read only once, such as pipes, are not read.

    Raises:
      UserError: As `flags.build_task`.
    """
    stored = stored_task.read_for_evaluation(config, "classification")
    if not config.is_custom:
        _check_official(config, stored)
    elif stored is not None:
        chosen = problem_type(config, stored)
        columns = columns_of_flags(config, stored.get("columns") or {})
        check_columns(config, columns, chosen)
        values = stored | {
            "problem_type": chosen,
            "label_separator": config.label_separator
            or stored.get("label_separator"),
        }
        for kind in config.requested_splits():
            check_labeled(
                getattr(config, f"{kind}_file"), kind, columns, values
            )


def _check_official(
    config: ClassifierConfig, stored: Mapping[str, Any] | None
) -> None:
    # Imported here, as the metrics of GLUE take a second.
    from bert_tf.tasks.classification import glue
    from bert_tf.tasks.classification import glue_tasks

    official = glue_tasks.get_task(config.task_name)
    check_language(config, official.has_languages)
    for kind, flag in config.requested_splits().items():
        if not official.splits(kind):
            raise glue.no_split(official, kind, flag)
        # Without training the model may choose the language.
        if "://" not in config.data_dir and stored is not None:
            language = config.language or stored.get("language") or "zh"
            glue.find_files(official, config.data_dir, kind, language)


def check_labeled(
    path: str, kind: str, columns: Columns, values: Mapping[str, Any]
) -> None:
    """Checks the columns and first rows of a file with labels.

    Args:
      path: The file.
      kind: "train", "dev" or "test", which may lack labels.
      columns: The columns to read.
      values: The contents of a model's task.json. Without labels there, as
        in training, any label is right.

    Raises:
      UserError: As `examples.read_examples`.
    """
    if not os.path.isfile(path):  # Remote, or a pipe.
        return
    chosen = stored_problem_type(values) or "single_label"
    labels = None if chosen == "regression" else values.get("labels")
    classification_examples.read_examples(
        path,
        columns,
        chosen,
        labels,
        may_lack_labels=kind == "test",
        label_separator=values.get("label_separator") or ",",
        num_rows=_NUM_ROWS,
    )


def check_texts(
    values: Mapping[str, Any], path: str, keep_empty: bool = False
) -> tables.Table:
    """Checks a file to predict: columns, rows and empty texts.

    Args:
      values: The contents of the model's task.json.
      path: The file.
      keep_empty: Whether texts may be empty.

    Returns:
      The table, with its rows unread.

    Raises:
      UserError: As `examples.read_texts`.
    """
    name = values.get("name", "custom")
    if name != "custom":
        # Imported here, as the metrics of GLUE take a second.
        from bert_tf.tasks.classification import glue
        from bert_tf.tasks.classification import glue_tasks

        official = glue_tasks.TASKS.get(name)
        if official is not None:
            for _ in glue.read_texts(official, path):
                pass
            return glue.read_input_table(official, path)
    columns = values.get("columns")
    choices = classification_examples.USUAL_COLUMNS
    if columns:
        choices = (Columns(columns["text"], columns.get("text_pair")),)
    for _ in classification_examples.read_texts(path, choices, keep_empty):
        pass
    return tables.read_table(path)


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


def problem_type(
    config: ClassifierConfig, stored: Mapping[str, Any]
) -> ProblemType:
    """Returns the problem type of the flag, else of the model.

    Raises:
      UserError: If they differ.
    """
    flag = config.problem_type
    trained = stored_problem_type(stored)
    if flag and trained and flag != trained:
        raise UserError(
            f"The model was trained with --problem_type={trained}. Received: "
            f"--problem_type={flag}."
        )
    return flag or trained or "single_label"


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

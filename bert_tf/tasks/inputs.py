"""Checks the input of run/predict.py before TensorFlow is imported."""

import os
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from bert_tf.flags.predict import PredictConfig
from bert_tf.io import tables
from bert_tf.tasks import stored_task
from bert_tf.tasks.classification import inputs as classification_inputs
from bert_tf.tasks.multiple_choice import inputs as multiple_choice_inputs
from bert_tf.tasks.squad import inputs as squad_inputs
from bert_tf.tasks.tagging import inputs as tagging_inputs

# A file to predict is read up to this size, which takes a second at most.
_MAX_BYTES = 1 << 26
# Keyed by the kind of model. Each takes the contents of task.json and the
# path, and returns the table that the file is, with its rows unread, or None.
_CHECKS: Mapping[
    str, Callable[[Mapping[str, Any], str], tables.Table | None]
] = {
    "multiple_choice": multiple_choice_inputs.check_texts,
    "question_answering": squad_inputs.check_questions,
    "tagging": tagging_inputs.check_sentences,
}


def check_prediction(config: PredictConfig) -> None:
    """Checks the input for the kind of model that task.json names.

    Files of other formats of models, and large files, are checked when the
    model is loaded, as are files that can be read only once, such as pipes.

    Raises:
      UserError: If the file lacks a column, or a row is bad.
    """
    check_file(
        stored_task.read(config.model_dir),
        config.input_file,
        config.keep_empty,
        config.columns_to_keep() or (),
    )


def check_file(
    values: Mapping[str, Any],
    path: str,
    keep_empty: bool = False,
    kept_columns: tuple[str, ...] = (),
) -> None:
    """Checks a file without labels: columns, and at least the first rows.

    Args:
      values: The contents of the model's task.json; {} checks nothing.
      path: The file.
      keep_empty: Whether texts of classification may be empty.
      kept_columns: Further columns that must exist.

    Raises:
      UserError: If the file lacks a column, or a row is bad.
    """
    kind = values.get("variant") or values.get("kind")
    if not os.path.isfile(path) or os.path.getsize(path) > _MAX_BYTES:
        return
    if kind == "classification":
        table = classification_inputs.check_texts(values, path, keep_empty)
    elif kind in _CHECKS:
        table = _CHECKS[kind](values, path)
    else:
        return
    if kept_columns and table is not None:
        flags = dict.fromkeys(kept_columns, "--keep_columns")
        table.require(kept_columns, flags)

"""Checks the input of run/predict.py before TensorFlow is imported."""

import json
import os
from typing import Any

from bert_tf.flags.predict import PredictConfig
from bert_tf.tasks.classification import inputs as classification_inputs


def check_prediction(config: PredictConfig) -> None:
    """Checks the rows of the input for a model directory of a classifier.

    Other models and files are checked later; files that can be read only once,
    such as pipes, are read then, too.

    Raises:
      UserError: If the file lacks a column, or a row is bad.
    """
    path = config.input_file
    task = _read_task(config.model_dir)
    kind = task.get("variant") or task.get("kind")
    if kind == "classification" and os.path.isfile(path):
        classification_inputs.check_texts(
            task, path, config.keep_empty, config.columns_to_keep() or ()
        )


def _read_task(model_dir: str) -> dict[str, Any]:
    """Returns task.json, or {} if there is none that can be read."""
    for folder in (model_dir, os.path.join(model_dir, "model")):
        try:
            with open(os.path.join(folder, "task.json"), "rb") as file:
                values = json.load(file)
        except (OSError, ValueError):  # The reader of the model reports it.
            continue
        return values if isinstance(values, dict) else {}
    return {}

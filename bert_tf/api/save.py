"""`save_model`: a Keras model as a model directory."""

import os
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import keras_model
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.tasks import registry

# They describe the run that made the weights, which may have changed since.
_OF_A_RUN = ("global_step", "results")


def save_model(
    model: keras.Model, directory: str | os.PathLike, overwrite: bool = True
) -> None:
    """Writes a model as a model directory, which every script reads.

    It has the configuration, the weights, the vocabulary, the tokenizer's
    settings, the task with the names of its labels, and a model card, but not
    the optimizer's state, which `model.save("x.keras")` keeps. The directory
    appears whole or not at all.

    Args:
      model: A model of `bert_tf.load_model`, trained or not; or one that a
        constructor made, which is saved without a vocabulary.
      directory: The directory to write.
      overwrite: Whether to replace an existing model directory. Other
        directories that are not empty are never replaced.

    Raises:
      UserError: If the model is none of bert_tf's, or the directory holds
        something else.

    Example:
      >>> model = bert_tf.load_model(
      ...     "bert-base-uncased", "classification", labels=["bad", "good"]
      ... )
      >>> bert_tf.save_model(model, "films")
      >>> bert_tf.load_model("films").labels
      ('bad', 'good')
    """
    path = os.fspath(directory)
    require_own(model)
    _require_replaceable(path, overwrite)
    stored = keras_model.from_model(model, path)
    task = _describe_task(stored)
    model_directory.write(
        path,
        stored.config,
        stored.weights,
        stored.vocabulary,
        stored.tokenizer_settings,
        task,
        _card(model, task),
    )
    logging.info("The model is in %s.", path)


def require_own(model: Any) -> None:
    """Raises `UserError` for a model that is none of bert_tf's."""
    if not hasattr(model, "current_text_files"):
        raise UserError(
            "Expected a model of bert_tf, as bert_tf.load_model returns it. "
            f"Received: {type(model).__name__}; for a model that contains one, "
            "give that one, for instance `model.get_layer(...)`."
        )


def _require_replaceable(path: str, overwrite: bool) -> None:
    """Raises `UserError` for a path that holds anything but a model."""
    if not tf.io.gfile.exists(path):
        return
    names: set[str] = set()
    if tf.io.gfile.isdir(path):
        names = {name.rstrip("/") for name in tf.io.gfile.listdir(path)}
        if not names:
            return
    checksums = model_directory.CHECKSUMS_FILE
    if checksums not in names:
        raise UserError(
            "Expected a new directory, or a model directory to replace. "
            f"Received: {path!r}, which holds something else; choose another "
            "name."
        )
    if not overwrite:
        raise UserError(
            f"{path!r} holds a model already, and overwrite=False; choose "
            "another name, or drop the argument."
        )
    listed = model_directory.read_checksums(path)
    others = sorted(names - {*listed, checksums})
    if others:
        raise UserError(
            f"{path!r} holds a model and {', '.join(others)}, which would be "
            "deleted with it; move this first, or choose another name."
        )


def _describe_task(stored: StoredModel) -> dict[str, Any]:
    """Returns the contents of task.json, complete with the task's defaults."""
    values = {k: v for k, v in stored.task.items() if k not in _OF_A_RUN}
    if (values.get("variant") or values["kind"]) not in registry.TASKS:
        return values
    task = registry.build_task(
        values, stored.num_labels, stored.config.max_position_embeddings
    )
    # Earlier versions wrote a language for tasks that have none.
    values.pop("language", None)
    complete = values | task.to_json()
    if values.get("labels") is None and "labels" in complete:
        complete["labels"] = None  # The task names them by their numbers.
    return complete


def _card(model: keras.Model, task: dict[str, Any]) -> str:
    """Returns the model card."""
    name = task.get("name") or task["kind"]
    training = {}
    if getattr(model, "optimizer", None) is not None:
        optimizer = model.optimizer
        training = {
            "optimizer": type(optimizer).__name__,
            "steps": int(optimizer.iterations),
        }
    return model_directory.build_card(
        f"A BERT for {name}",
        "A BERT from a Keras program, saved with bert_tf.save_model.",
        {
            "Task": {k: v for k, v in task.items() if v is not None},
            "Training": training,
        },
        'import bert_tf\nmodel = bert_tf.load_model(".")',
    )

"""Loads a trained model from wherever it lies."""

import os
from typing import Any

import tensorflow as tf
from absl import logging

from bert_tf import files
from bert_tf.errors import UserError
from bert_tf.interop import tf1_checkpoint
from bert_tf.modeling import model as bert_model

_CONFIG_FILE = "bert_config.json"
_WEIGHTS_FILE = "model.weights.safetensors"


def load_model(path: str, **kwargs: Any) -> Any:
    """Returns the model that a model directory or a TF1 checkpoint holds.

    Args:
      path: A model directory, or a checkpoint of the original (its directory
        or its prefix) with `bert_config.json` in the same directory.
      **kwargs: For the model's constructor, for instance
        `return_all_layers=True` or `dtype="mixed_bfloat16"`.

    Returns:
      A `BertForPretraining` if the masked-LM head is there, else a
      `BertModel`; heads of other tasks are left.

    Raises:
      UserError: If there is no model, or it is damaged.
    """
    config, weights = _read(path)
    pretraining = any(name.startswith("cls/predictions/") for name in weights)
    cls = bert_model.BertForPretraining if pretraining else bert_model.BertModel
    model = cls(config, **kwargs)
    logging.info(
        "%s: %s", path, tf1_checkpoint.load_into(model, weights, source=path)
    )
    return model


def _read(path: str) -> tuple[Any, dict[str, Any]]:
    """Returns the configuration and the tensors that lie at `path`."""
    from bert_tf import model_directory

    directory = path if tf.io.gfile.isdir(path) else os.path.dirname(path)
    if tf.io.gfile.exists(os.path.join(path, _WEIGHTS_FILE)):
        stored = model_directory.read(path)
        return stored.config, stored.weights
    config_file = os.path.join(directory, _CONFIG_FILE)
    if not tf.io.gfile.exists(config_file):
        raise UserError(
            "Expected a model directory, or a checkpoint with "
            f"{_CONFIG_FILE} beside it. Received: {path!r}, and there is no "
            f"{config_file}."
        )
    config = files.read_bert_config(config_file)
    return config, tf1_checkpoint.read(path)

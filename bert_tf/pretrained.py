"""Loads a trained model from wherever it lies."""

import os
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf import files
from bert_tf import model_directory
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.interop import loading
from bert_tf.interop import tf1_checkpoint
from bert_tf.modeling import model as bert_model
from bert_tf.stored_model import StoredModel


def load_model(path: str, **kwargs: Any) -> keras.Model:
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


def build_model(stored: StoredModel, **kwargs: Any) -> keras.Model:
    """Returns the model that was read, with its weights.

    Args:
      stored: What `formats.read` returns.
      **kwargs: As for `load_model`.

    Raises:
      UserError: If the weights are not those that the config asks for.
    """
    kind = stored.task["kind"]
    pretraining = kind in ("pretraining", "masked_lm", "next_sentence")
    cls = bert_model.BertForPretraining if pretraining else bert_model.BertModel
    model = cls(stored.config, **kwargs)
    report = loading.load_into(model, stored.weights, stored.path)
    logging.info("%s: %s", stored.path, report)
    return model


def _read(path: str) -> tuple[BertConfig, Mapping[str, np.ndarray]]:
    """Returns the configuration and the tensors that lie at `path`."""
    directory = path if tf.io.gfile.isdir(path) else os.path.dirname(path)
    if model_directory.recognizes(path):
        stored = model_directory.read_model(path)
        return stored.config, stored.weights
    config_file = os.path.join(directory, model_directory.CONFIG_FILE)
    if not tf.io.gfile.exists(config_file):
        raise UserError(
            "Expected a model directory, or a checkpoint with a "
            f"{model_directory.CONFIG_FILE} beside it. Received: {path!r}, "
            f"and there is no {config_file}."
        )
    config = files.read_bert_config(config_file)
    return config, tf1_checkpoint.read(path)

"""Loads the weights of a stored model, in any format, into a model."""

import dataclasses
import os

import keras
import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import formats
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints import model_weights
from bert_tf.checkpoints import names
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.config import BertConfig
from bert_tf.errors import UserError

# Fields of the config that do not change weights or outputs.
_FREE = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
)


def read(
    path: str, config: BertConfig | None = None, flag: str = "--init_checkpoint"
) -> StoredModel:
    """Reads a model of any format, to initialize another model from it.

    Args:
      path: A path for `formats.read` or, if `config` is given, a checkpoint of
        TensorFlow 1 without bert_config.json beside it.
      config: The shape of the model to initialize; by default the stored one.
      flag: The flag that `path` came from, for the error.

    Raises:
      UserError: If there is no model, it is damaged, or not the model that
        `config` describes.
    """
    path = names.resolve(path)
    weights_format = formats.detect(path)
    if weights_format == "tf1" and config is not None:
        prefix = tf1_checkpoint.find_prefix(path)
        folder = os.path.dirname(prefix)
        if not tf.io.gfile.exists(
            os.path.join(folder, model_directory.CONFIG_FILE)
        ):
            # The original has a separate flag for the config.
            return _read_bare(prefix, config)
    stored = formats.read(path, weights_format)
    if config is not None:
        _check_config(stored, config, flag)
    return stored


def check_vocabulary(
    stored: StoredModel,
    vocabulary_hash: str | None,
    source: str,
    allow_change: bool = False,
) -> None:
    """Compares the vocabularies of a stored model and of training data.

    Args:
      stored: The stored model.
      vocabulary_hash: Hash of the data's vocabulary, or None if unknown.
      source: The data, for the error.
      allow_change: Whether to only log a difference.

    Raises:
      UserError: If they differ, as ids would then mean other tokens.
    """
    if stored.vocabulary is None or vocabulary_hash is None:
        return
    if stored.vocabulary.hash == vocabulary_hash:
        return
    difference = (
        f"The vocabulary of the model in {stored.path} has the hash "
        f"{stored.vocabulary.hash}, and that of {source} {vocabulary_hash}"
    )
    if not allow_change:
        raise UserError(
            f"{difference}; use the model's vocabulary for the data too, or "
            "add --allow_changed_data if ids mean the same tokens."
        )
    logging.warning("%s, as allowed.", difference)


def load_weights(
    model: keras.Model, stored: StoredModel
) -> model_weights.LoadReport:
    """Assigns stored weights to a model of `bert_tf.modeling`; logs a report.

    A head may be missing on either side as a whole: a new head keeps its
    initial values.

    Raises:
      UserError: If the weights do not fit; then no weight is changed.
    """
    report = model_weights.load_into(model, stored.weights, stored.path)
    logging.info("%s: %s.", stored.path, report)
    for note in stored.report.notes:
        logging.info("%s: %s", stored.path, note)
    return report


def _read_bare(prefix: str, config: BertConfig) -> StoredModel:
    """Reads a TF1 checkpoint without config or vocabulary beside it."""
    weights, state, report = tf1_checkpoint.read_weights(prefix, config)
    return StoredModel(
        path=prefix,
        config=config,
        weights=weights,
        vocabulary=None,
        tokenizer_settings=None,
        task={"kind": weight_map.kind_of(weights)},
        optimizer_state=state,
        report=report,
    )


def _check_config(stored: StoredModel, config: BertConfig, flag: str) -> None:
    differing = [
        field.name
        for field in dataclasses.fields(BertConfig)
        if field.name not in _FREE
        and getattr(stored.config, field.name) != getattr(config, field.name)
    ]
    if not differing:
        return
    clauses = [
        f"{name} is {getattr(stored.config, name)!r} there and "
        f"{getattr(config, name)!r} here"
        for name in differing
    ]
    if "hidden_act" in differing:
        clauses.append(
            'here, as in the original, "gelu" is the tanh form and "gelu_erf" '
            'the exact one, which Hugging Face calls "gelu"'
        )
    raise UserError(
        f"The model in {flag}={stored.path} is not the one that "
        f"--bert_config_file describes: {'; '.join(clauses)}; use the "
        "configuration that belongs to the weights."
    )

"""Writes the model directory, model card and config files of pretraining."""

import dataclasses
import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import model_card
from bert_tf.checkpoints import model_directory
from bert_tf.config import BertConfig
from bert_tf.data.records.manifest import Manifest
from bert_tf.errors import UserError
from bert_tf.flags.pretrain import PretrainConfig
from bert_tf.io import files
from bert_tf.pretraining.data import TextSettings
from bert_tf.text.vocabulary import Vocabulary
from bert_tf.training import output as training_output

_WRITE_ERRORS = (OSError, tf.errors.OpError)


def describe_checkpoints(
    output_dir: str, bert_config: BertConfig, vocabulary: Vocabulary | None
) -> None:
    """Writes bert_config.json and vocab.txt next to the checkpoints.

    With them the output directory can be read and converted like the
    original's. Existing files stay; if a file cannot be written, an error is
    logged.
    """
    texts = {model_directory.CONFIG_FILE: bert_config.to_json()}
    if vocabulary is not None:
        texts[model_directory.VOCAB_FILE] = vocabulary.to_text()
    for name, text in texts.items():
        path = os.path.join(output_dir, name)
        try:
            if not tf.io.gfile.exists(path):
                files.write_text(path, text)
            elif not _has_contents(path, text):
                logging.warning(
                    "%s exists already and differs from what this run would "
                    "have written; compare it with the model card before "
                    "converting the checkpoints.",
                    path,
                )
        except _WRITE_ERRORS as error:
            logging.error("%s could not be written: %s", path, error)


def _has_contents(path: str, text: str) -> bool:
    """Returns whether a file has these contents, in any JSON formatting."""
    existing = files.read_bytes(path)
    if existing == text.encode():
        return True
    try:
        return BertConfig.from_json(existing.decode(), path) == (
            BertConfig.from_json(text, path)
        )
    except (UserError, UnicodeDecodeError):
        return False


def write_model(
    config: PretrainConfig,
    bert_config: BertConfig,
    weights: Mapping[str, np.ndarray],
    step: int,
    text: TextSettings | None,
    card: str,
) -> None:
    """Writes the model directory of a pretrained model.

    Args:
      config: The flags.
      bert_config: The model configuration.
      weights: Canonical name to value.
      step: Steps the model was trained for.
      text: The vocabulary and tokenizer settings, if known.
      card: The text of the model card.

    Raises:
      UserError: If it could not be written.
    """
    task = {
        "kind": "pretraining",
        "max_seq_length": config.max_seq_length,
        "max_predictions_per_seq": config.max_predictions_per_seq,
        "use_next_sentence": config.use_next_sentence,
        "global_step": step,
    }
    training_output.write_model_directory(
        config.output_dir,
        bert_config,
        weights,
        text.vocabulary if text else None,
        text.tokenizer_settings() if text else None,
        task,
        card,
    )


def build_card(
    config: PretrainConfig,
    step: int,
    record_files: Sequence[str],
    manifest: Manifest | None,
    results: Mapping[str, float] | None,
    devices: Mapping[str, Any],
) -> str:
    """Returns the text of the model card."""
    flags = dataclasses.asdict(config)
    data: dict[str, Any] = {"record files": ", ".join(record_files)}
    if manifest:
        data["manifest"] = manifest.source
        data["documents"] = manifest.num_documents
    return model_card.build(
        "A pretrained BERT",
        "A BERT with its pretraining heads, trained for "
        f"{step} steps with run/pretrain.py of bert_tf.",
        {
            "Training data": data,
            "Flags": {k: v for k, v in flags.items() if v is not None},
            "Devices of the last steps": dict(devices),
            "Metrics": dict(results or {}),
        },
        'python run/fill_mask.py --model_dir=. --text="The [MASK] is here."',
    )

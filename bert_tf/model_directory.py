"""What a trained model is on disk, and the only way to write and read it.

A model directory holds everything that using the model needs and refers to
nothing outside, so it can be moved or copied as it is:

  bert_config.json           the original's keys
  vocab.txt                  the vocabulary, one piece a line
  tokenizer.json             lower case, strip accents, ..., vocabulary hash
  task.json                  kind of head, sequence length, ...
  model.weights.safetensors  the weights, by the original's names
  README.md                  the model card
  checksums.json             SHA-256 of all of these

Models trained on records whose vocabulary nobody knows lack the vocabulary
and tokenizer.json.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
import tensorflow as tf

from bert_tf import files
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.interop import loading
from bert_tf.interop.tensors import Tensors
from bert_tf.modeling import model as bert_model
from bert_tf.stored_model import StoredModel
from bert_tf.text.vocabulary import Vocabulary

CONFIG_FILE = "bert_config.json"
VOCAB_FILE = "vocab.txt"
TOKENIZER_FILE = "tokenizer.json"
TASK_FILE = "task.json"
WEIGHTS_FILE = "model.weights.safetensors"
README_FILE = "README.md"
CHECKSUMS_FILE = "checksums.json"

_REQUIRED = (CONFIG_FILE, TASK_FILE, WEIGHTS_FILE, README_FILE)
_FORMAT = "bert_tf model directory"
_VERSION = 1


def write(
    path: str,
    config: BertConfig,
    weights: Mapping[str, np.ndarray],
    vocabulary: Vocabulary | None,
    tokenizer_settings: Mapping[str, Any] | None,
    task: Mapping[str, Any],
    readme: str,
) -> None:
    """Writes a model directory, whole or not at all.

    An earlier directory of that name stays until the new one is complete.

    Args:
      path: The directory to write.
      config: The shape of the model.
      weights: Canonical name to value.
      vocabulary: The vocabulary, if known.
      tokenizer_settings: What `BertTokenizer.settings` returns; given if and
        only if the vocabulary is.
      task: JSON values; `kind` names the head.
      readme: The model card.

    Raises:
      UserError: If vocabulary, settings and configuration do not belong
        together.
    """
    contents = {
        CONFIG_FILE: config.to_json().encode(),
        TASK_FILE: _to_json(task),
        WEIGHTS_FILE: safetensors.numpy.save(
            # The library writes memory as it lies, so it has to be in order.
            {name: np.ascontiguousarray(x) for name, x in weights.items()}
        ),
        README_FILE: readme.encode(),
    }
    if (vocabulary is None) != (tokenizer_settings is None):
        raise UserError(
            "A model directory has both a vocabulary and tokenizer settings, "
            "or neither. Received one of the two."
        )
    if vocabulary is not None:
        _check_vocabulary(vocabulary, tokenizer_settings, config, "")
        contents[VOCAB_FILE] = vocabulary.to_text().encode()
        contents[TOKENIZER_FILE] = _to_json(tokenizer_settings)
    contents[CHECKSUMS_FILE] = _to_json(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "sha256": {name: _hash(data) for name, data in contents.items()},
        }
    )
    with files.atomic_directory(path) as temporary:
        for name, data in contents.items():
            with tf.io.gfile.GFile(os.path.join(temporary, name), "wb") as file:
                file.write(data)


def recognizes(path: str) -> bool:
    """Returns whether a model directory lies at `path`."""
    return tf.io.gfile.exists(os.path.join(path, CHECKSUMS_FILE))


def read_model(
    path: str, allow_missing: re.Pattern | None = None
) -> StoredModel:
    """Reads a model directory and checks that nothing in it has changed.

    Raises:
      UserError: If it is none, or if a file is missing or was changed.
    """
    contents = _read_checked(path)
    where = {name: os.path.join(path, name) for name in contents}
    config = BertConfig.from_json(
        contents[CONFIG_FILE].decode(), where[CONFIG_FILE]
    )
    vocabulary = settings = None
    if VOCAB_FILE in contents:
        # Only \n ends a line: a vocabulary may hold other line separators.
        lines = contents[VOCAB_FILE].decode().removesuffix("\n").split("\n")
        vocabulary = Vocabulary(lines, source=where[VOCAB_FILE])
        settings = json.loads(contents[TOKENIZER_FILE])
        _check_vocabulary(vocabulary, settings, config, f"{path}: ")
    return StoredModel(
        path=path,
        config=config,
        weights=Tensors.from_arrays(
            safetensors.numpy.load(contents[WEIGHTS_FILE])
        ),
        vocabulary=vocabulary,
        tokenizer_settings=settings,
        task=json.loads(contents[TASK_FILE]),
    )


def build_model(
    directory: StoredModel, **options: Any
) -> bert_model.BertForPretraining:
    """Builds the pretraining model of a directory, with its weights.

    Args:
      directory: What `read_model` returns.
      **options: As for `BertForPretraining`.

    Raises:
      UserError: If the directory's weights are not those of a pretraining
        model.
    """
    kind = directory.task.get("kind")
    if kind != "pretraining":
        raise UserError(
            f"{directory.path} must hold a model with pretraining heads "
            f"(kind: pretraining in {TASK_FILE}). Received: kind={kind!r}."
        )
    model = bert_model.BertForPretraining(directory.config, **options)
    load_weights(model, directory)
    return model


def load_weights(model, directory: StoredModel) -> loading.LoadReport:
    """Puts a directory's weights into a model, which must take all of them."""
    source = os.path.join(directory.path, WEIGHTS_FILE)
    report = loading.load_into(model, directory.weights, source)
    if report.missing or report.unused:
        raise UserError(
            f"{source} does not fit the model: {report}; it was not written "
            "by this version of bert_tf."
        )
    return report


def _read_checked(path: str) -> dict[str, bytes]:
    """Returns the files named in the checksums, by name."""
    checksums_file = os.path.join(path, CHECKSUMS_FILE)
    if not tf.io.gfile.isdir(path) or not tf.io.gfile.exists(checksums_file):
        raise UserError(
            "Expected a model directory, as training leaves it in "
            f"<output_dir>/model. Received: {path!r}, and there is no "
            f"{checksums_file}."
        )
    checksums = files.read_json(checksums_file)
    is_ours = isinstance(checksums, dict) and checksums.get("format") == _FORMAT
    if not is_ours or checksums.get("version") != _VERSION:
        raise UserError(
            f"{checksums_file} does not belong to a model directory of this "
            "version of bert_tf."
        )
    contents = {}
    for name, expected in checksums["sha256"].items():
        file = os.path.join(path, name)
        if not tf.io.gfile.exists(file):
            raise UserError(
                f"The model directory {path} is incomplete: {name} is missing; "
                "copy it again."
            )
        contents[name] = files.read_bytes(file)
        if _hash(contents[name]) != expected:
            raise UserError(
                f"{file} is not what training wrote: its SHA-256 is not the "
                f"one in {CHECKSUMS_FILE}; copy the model directory again."
            )
    missing = [name for name in _REQUIRED if name not in contents]
    if missing or (VOCAB_FILE in contents) != (TOKENIZER_FILE in contents):
        raise UserError(f"{checksums_file} is incomplete.")
    return contents


def _check_vocabulary(vocabulary, settings, config, where: str) -> None:
    vocabulary.check_size(config.vocab_size)
    if settings["vocabulary_hash"] != vocabulary.hash:
        raise UserError(
            f"{where}the tokenizer settings belong to another vocabulary: "
            f"they name the hash {settings['vocabulary_hash']}, the vocabulary "
            f"has {vocabulary.hash}."
        )


def _to_json(values: Mapping[str, Any]) -> bytes:
    return (
        json.dumps(dict(values), indent=2, ensure_ascii=False) + "\n"
    ).encode()


def _hash(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()

"""Reads and writes models in the format of google-research/bert.

  bert_config.json
  vocab.txt
  bert_model.ckpt.index, bert_model.ckpt.data-00000-of-00001

Checkpoints of training have other prefixes (`model.ckpt-1000`) and also hold
Adam's moments and the step; a file `checkpoint` names the newest.
"""

import os
import re
from typing import Any

import tensorflow as tf

from bert_tf.checkpoints import matching
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints import recurrent_heads
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import stored_files

_CONFIG_FILE = "bert_config.json"
_VOCAB_FILE = "vocab.txt"
_PREFIX = "bert_model.ckpt"
_PART = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")
# Our heads for which the original has no code.
_OUR_HEADS = (weight_map.TAGGER, weight_map.MULTIPLE_CHOICE)


def recognizes(path: str) -> bool:
    """Returns whether there is a TF1 checkpoint at `path`.

    It may be damaged or lack its configuration, which `read_model` checks.
    Object-based checkpoints of TensorFlow 2 and paths that `model_directory`
    reads do not count.
    """
    try:
        return not model_directory.recognizes(path) and any(
            not tf1_checkpoint.is_object_based(prefix)
            for prefix in _find_prefixes(path)
        )
    except (OSError, tf.errors.OpError):
        return False


def _find_prefixes(path: str) -> set[str]:
    """Returns the prefixes of files that look like parts of checkpoints."""
    if tf.io.gfile.isdir(path):
        names = tf.io.gfile.listdir(path)
        has_config = _CONFIG_FILE in names
        return {
            os.path.join(path, _PART.sub("", name))
            for name in names
            if (match := _PART.search(name))
            and (match[1] == "index" or has_config)
        }
    prefix = _PART.sub("", path)
    return {prefix} if tf.io.gfile.exists(f"{prefix}.index") else set()


def read_model(
    path: str, allow_missing: re.Pattern | None = None
) -> StoredModel:
    """Reads the checkpoint of a prefix or a directory; see `formats`.

    In a directory that is the one that its file `checkpoint` names, or else its
    only one or the one of the latest step. Without a `vocab.txt` the vocabulary
    is None; callers that need one, such as the converter, refuse that.
    """
    prefix = tf1_checkpoint.find_prefix(path)
    folder = os.path.dirname(prefix)
    config_file = os.path.join(folder, _CONFIG_FILE)
    if not stored_files.exists(config_file):
        raise UserError(
            f"The checkpoint {prefix} needs the {_CONFIG_FILE} that it was "
            f"trained with beside it, and there is no {config_file}."
        )
    config = files.read_bert_config(config_file)
    weights, state, report = tf1_checkpoint.read_weights(
        prefix, config, allow_missing
    )
    vocabulary, settings, notes = stored_model.read_vocabulary(
        folder, config.vocab_size, "A TF1 checkpoint"
    )
    return StoredModel(
        path=path,
        config=config,
        weights=weights,
        vocabulary=vocabulary,
        tokenizer_settings=settings,
        task=_task_of(weights),
        optimizer_state=state,
        report=report.with_notes(*notes),
        lower_case_is_derived=vocabulary is not None,
    )


def _task_of(weights: Tensors) -> dict[str, Any]:
    """Returns the task as far as the names of weights determine it."""
    task = {"kind": weight_map.kind_of(weights)}
    has_lstms = any(map(recurrent_heads.belongs, weights))
    return task | ({"head": "bilstm"} if has_lstms else {})


def write_model(directory: str, stored: StoredModel) -> list[str]:
    """Writes a model in the original's format; see `formats`.

    `read_model` restores all of it; the sentences list what the original would
    read in another way. Only feature-based taggers are refused: a checkpoint
    does not contain which of the encoder's layers they read.
    """
    if stored.task.get("approach") == "feature_based":
        raise UserError(
            f"{stored.path} is a feature-based tagger, and a TF1 checkpoint "
            "does not keep which layers of the encoder it reads; convert it "
            "to bert_tf, or a fine-tuned model."
        )
    weights, _ = matching.translate(stored.weights, stored.config, "tf1")
    files.write_text(
        os.path.join(directory, _CONFIG_FILE), stored.config.to_json()
    )
    sentences = _describe_config(stored.config)
    if stored.vocabulary is None:
        sentences.append(f"The vocabulary is unknown: no {_VOCAB_FILE}.")
    else:
        stored.vocabulary.write(os.path.join(directory, _VOCAB_FILE))
        sentences += _describe_tokenizer(stored)
    tf1_checkpoint.write(
        os.path.join(directory, _PREFIX), weights | stored.optimizer_state
    )
    return sentences + _describe_heads(stored)


def _describe_config(config: BertConfig) -> list[str]:
    """Returns sentences on settings that the original reads differently."""
    sentences = []
    if config.hidden_act == "gelu_erf":
        # modeling.py:280-314 of the original raises ValueError for it.
        sentences.append(
            f'{_CONFIG_FILE} has hidden_act "gelu_erf", the exact GELU, which '
            'the original refuses: its "gelu" is the tanh form, and was the '
            "exact one before 2019-02-07."
        )
    unknown = config.to_dict().keys() & {"layer_norm_eps", "left_to_right"}
    sentences += [
        f"{_CONFIG_FILE} has {key} {getattr(config, key)}, which the "
        f"original ignores: it computes with {default}."
        for key, default in (
            ("layer_norm_eps", BertConfig.layer_norm_eps),
            ("left_to_right", BertConfig.left_to_right),
        )
        if key in unknown
    ]
    return sentences


def _describe_tokenizer(stored: StoredModel) -> list[str]:
    """Returns sentences on the flags that the original needs."""
    settings = stored.tokenizer_settings
    lower_case = settings["lower_case"]
    sentences = [
        "A TF1 checkpoint does not keep the tokenizer's settings: give "
        f"--do_lower_case={lower_case} to the original."
    ]
    if settings["strip_accents"] != lower_case:
        verb = "strips" if settings["strip_accents"] else "keeps"
        sentences.append(
            f"The model {verb} accents; the original strips them if and only "
            "if it lower-cases."
        )
    return sentences


def _describe_heads(stored: StoredModel) -> list[str]:
    """Returns sentences on heads and names that the original lacks."""
    present = {weight_map.part_of(name) for name in stored.weights}
    sentences = [
        f"The original has no head {head}; it ignores these weights."
        for head in _OUR_HEADS
        if head in present
    ]
    if labels := stored.task.get("labels"):
        sentences.append(
            "A TF1 checkpoint does not keep the names of the "
            f"{len(labels)} labels."
        )
    return sentences + stored_model.lost_settings(
        "A TF1 checkpoint", stored.task, ("kind", "labels", "head")
    )

"""Reads and writes KerasHub presets with KerasHub.

config.json, metadata.json       the backbone's class and sizes
model.weights.h5                 its weights; also as several files
tokenizer.json, assets/tokenizer/vocabulary.txt
                                 the tokenizer; not in every preset
task.json, task.weights.h5, preprocessor.json
                                 a model for a task, such as a classifier

KerasHub's encoder equals the original's with the tanh form of GELU and an
epsilon of 1e-12 in layer normalization. KerasHub's encoder has a pooler and a
single dropout rate. The classifier is the only head that equals the original's.
"""

import dataclasses
import io
import math
import os
import pathlib
import re
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from bert_tf import errors
from bert_tf.checkpoints import matching
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.task_values import only
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import stored_files
from bert_tf.text import vocabulary as vocabulary_lib
from bert_tf.text.vocabulary import Vocabulary

_CONFIG_FILE = "config.json"
_METADATA_FILE = "metadata.json"
_WEIGHTS_FILE = "model.weights.h5"
_TASK_FILE = "task.json"
_TASK_WEIGHTS_FILE = "task.weights.h5"
_TOKENIZER_FILE = "tokenizer.json"
_VOCABULARY_FILE = os.path.join("assets", "tokenizer", "vocabulary.txt")

# Argument of BertBackbone -> field of `BertConfig`.
_CONFIG_KEYS = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}
# Settings of KerasHub's tokenizer; presets with other values are refused.
_RULES = {
    "split": only(True),
    "suffix_indicator": only(vocabulary_lib.CONTINUATION),
    "oov_token": only(vocabulary_lib.UNK),
}
# Activation of a classifier -> the problem type that it implies.
_PROBLEM_TYPES = {"softmax": "single_label", "sigmoid": "multi_label"}

_TOKENIZER_NOTE = (
    "KerasHub's tokenizer reads rare text in another way than the one here: "
    "no-break spaces do not separate words and control characters do, "
    'lower-case models fold "…", "ß" and full-width letters too, and a word of '
    "more than 100 bytes becomes [UNK]."
)
_MASKED_LM_NOTE = (
    "Its masked-LM head is ignored: KerasHub's computes something else than "
    "the original's (the exact GELU, and an epsilon of 1e-5 in layer "
    "normalization)."
)

_TANH_GELU = "gelu"
_EXACT_GELU = "gelu_erf"
_LAYER_NORM_EPS = 1e-12
_INITIALIZER_RANGE = 0.02
# The classifier's dropout, as in the original (run_classifier.py:611).
_CLASSIFIER_DROPOUT = 0.1


def recognizes(path: str) -> bool:
    """Returns whether `path` is a KerasHub preset."""
    if not os.path.isdir(path):
        return False
    folder = pathlib.Path(path)
    has_weights = any(folder.glob("model*.weights.*"))
    if has_weights and (folder / _METADATA_FILE).exists():
        return True
    values = stored_files.peek_object(os.path.join(path, _CONFIG_FILE))
    origin = f"{values.get('registered_name')} {values.get('module')}"
    return re.search(r"\bkeras_(hub|nlp)\b", origin) is not None


def read_model(
    path: str, allow_missing: re.Pattern | None = None
) -> StoredModel:
    """Reads a preset of a `BertBackbone` or a task model; see `formats`."""
    errors.require("interop")
    config = _read_config(path)
    shapes = weight_map.shapes(config, "encoder").values()
    _check_size(path, sum(map(math.prod, shapes)))
    weights, heads, task, task_notes = _read_weights(path)
    tensors, report = matching.match(
        config, weights, "keras_hub", path, heads, allow_missing=allow_missing
    )
    notes = [
        "KerasHub's BERT has the tanh form of GELU, which is hidden_act "
        '"gelu" here.',
        f"Its one dropout, {config.hidden_dropout_prob:g}, became "
        "hidden_dropout_prob and attention_probs_dropout_prob.",
        *task_notes,
    ]
    stored = StoredModel(
        path=path,
        config=config,
        weights=tensors,
        task={"kind": weight_map.kind_of(tensors)} | task,
        report=report.with_notes(*notes),
    )
    if os.path.isfile(os.path.join(path, _TOKENIZER_FILE)):
        return _with_tokenizer(stored)
    # KerasHub never writes vocab.txt, but a user may have added this file.
    read = stored.with_vocabulary(path, f"A preset without {_TOKENIZER_FILE}")
    if read.vocabulary is not None:
        return read
    report = stored.report.with_notes("It has no tokenizer.")
    return dataclasses.replace(stored, report=report)


def _load(cls: Any, path: str, **options) -> Any:
    try:
        with tf.device("CPU"):
            # Use an absolute path: "x" could name one of KerasHub's presets.
            loaded = cls.from_preset(os.path.abspath(path), **options)
        if not isinstance(loaded, cls):  # Keras keeps what it cannot build.
            raise TypeError(f"It holds a {type(loaded).__name__}")
        return loaded
    except Exception as error:  # KerasHub raises exceptions of many types.
        (reason, *_) = str(error).splitlines() or [type(error).__name__]
        raise UserError(
            f"{path} is damaged or not a {cls.__name__}: KerasHub cannot read "
            f"it ({reason.rstrip('.:')}); copy the preset again."
        ) from error


def _read_object(file: str) -> tuple[str, dict[str, Any]]:
    """Returns the class and the arguments of an object in a JSON file."""
    values = stored_files.read_object(file)
    schema = {"config": stored_files.OBJECT}
    stored_files.check(values, schema, file, ("config",))
    name = values.get("registered_name") or values.get("class_name") or "?"
    return str(name).split(">")[-1], values["config"]


def _read_config(path: str) -> BertConfig:
    source = stored_files.require(os.path.join(path, _CONFIG_FILE))
    name, settings = _read_object(source)
    if name != "BertBackbone":
        raise UserError(
            f"{path} is a KerasHub preset of {name}; only presets of a "
            "BertBackbone are read."
        )
    dropout = settings.get("dropout")
    return BertConfig.from_dict(
        {field: settings.get(key) for key, field in _CONFIG_KEYS.items()}
        | {
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
        },
        source,
    )


def _check_size(path: str, expected: int) -> None:
    """Checks that a preset has as many weights as its config describes.

    KerasHub itself compares no sizes. A config with huge sizes would fill the
    memory, and layers that only the file has would be ignored.
    """
    file = os.path.join(path, _METADATA_FILE)
    metadata = files.read_json(file) if os.path.isfile(file) else {}
    found = pathlib.Path(path).glob("model*.weights.h5")
    parts = [part for part in found if part.is_file()]  # Skip symlink loops.
    if not parts:
        stored_files.require(os.path.join(path, _WEIGHTS_FILE))
    # Without a stored count, refuse more weights than the files can hold with 2
    # bytes each.
    most = sum(part.stat().st_size for part in parts) // 2
    if not isinstance(metadata, dict) or expected != metadata.get(
        "parameter_count", min(expected, most)
    ):
        raise UserError(
            f"{path} does not hold the BERT that its {_CONFIG_FILE} describes, "
            f"which has {expected} weights; copy the preset again."
        )


def _with_tokenizer(stored: StoredModel) -> StoredModel:
    import keras_hub

    path = stored.path
    keras_settings = _load(keras_hub.models.BertTokenizer, path).get_config()
    vocabulary = Vocabulary.from_file(os.path.join(path, _VOCABULARY_FILE))
    stored_files.check(keras_settings, _RULES, f"The tokenizer of {path}")
    settings = stored_model.tokenizer_settings(
        vocabulary,
        bool(keras_settings["lowercase"]),
        bool(keras_settings["strip_accents"]),
        bool(keras_settings["special_tokens_in_strings"]),
    )
    notes = [_TOKENIZER_NOTE, *vocabulary.check_size(stored.config.vocab_size)]
    if keras_settings["lowercase"] and not keras_settings["strip_accents"]:
        notes.append(
            "Its tokenizer lower-cases and keeps accents, and so does the "
            "model's here; the original strips accents if it lower-cases."
        )
    return dataclasses.replace(
        stored,
        vocabulary=vocabulary,
        tokenizer_settings=settings,
        report=stored.report.with_notes(*notes),
    )


def _read_weights(
    path: str,
) -> tuple[Tensors, tuple[str, ...], dict[str, Any], list[str]]:
    """Returns KerasHub's weights, the heads, the task's settings, and notes."""
    import keras_hub

    file = os.path.join(path, _TASK_FILE)
    name = _read_object(file)[0] if os.path.isfile(file) else None
    heads, task, notes = (), {}, []
    if name == "BertTextClassifier":
        stored_files.require(os.path.join(path, _TASK_WEIGHTS_FILE))
        cls = keras_hub.models.BertTextClassifier
        model = _load(cls, path, dtype="float32")
        heads = (weight_map.CLASSIFIER,)
        notes.append("KerasHub keeps no label names, so there are none.")
        activation = model.activation.__name__
        if activation != "linear":
            notes.append(
                f"Its classifier returns {activation} of the logits; here it "
                "returns the logits."
            )
        if activation in _PROBLEM_TYPES:
            task["problem_type"] = _PROBLEM_TYPES[activation]
        if model.preprocessor is not None:
            task["max_seq_length"] = model.preprocessor.sequence_length
    else:
        model = _load(keras_hub.models.BertBackbone, path, dtype="float32")
        if name == "BertMaskedLM":
            notes.append(_MASKED_LM_NOTE)
        elif name is not None:
            notes.append(f"The head of the {name} is ignored.")
    variables = {variable.path: variable for variable in model.weights}
    shapes = {path: tuple(x.shape) for path, x in variables.items()}
    weights = Tensors(shapes, lambda path: variables[path].numpy())
    return weights, heads, task, notes


def build_backbone(stored: StoredModel, allow_activation_change: bool = False):
    """Builds KerasHub's encoder with the weights of a stored model.

    Args:
      stored: A model of any kind that has a pooler; its heads are ignored.
      allow_activation_change: Whether a model with the exact GELU may be built
        with the tanh form instead.

    Returns:
      A `keras_hub.models.BertBackbone`.

    Raises:
      UserError: If KerasHub's BERT cannot represent the model.
    """
    errors.require("interop")
    import keras_hub

    _check_model(stored, allow_activation_change)
    config = stored.config
    backbone = keras_hub.models.BertBackbone(
        **{key: getattr(config, field) for key, field in _CONFIG_KEYS.items()},
        dropout=config.hidden_dropout_prob,
        dtype="float32",
        name="bert_backbone",
    )
    _assign(backbone.weights, stored)
    return backbone


def _assign(variables: Iterable[Any], stored: StoredModel) -> None:
    weights = matching.translate(stored.weights, stored.config, "keras_hub")
    for variable in variables:
        variable.assign(weights[variable.path])


def write_model(
    directory: str, stored: StoredModel, allow_activation_change: bool = False
) -> list[str]:
    """Writes a preset for `from_preset`; see `formats`, `build_backbone`."""
    backbone = build_backbone(stored, allow_activation_change)
    from keras_hub import models

    _check_vocabulary(stored.vocabulary)
    settings = stored.tokenizer_settings
    tokenizer = models.BertTokenizer(
        vocabulary=list(stored.vocabulary.tokens),
        lowercase=settings["lower_case"],
        strip_accents=settings["strip_accents"],
        special_tokens_in_strings=settings["preserve_special_tokens"],
        name="bert_tokenizer",
    )
    preprocessor = models.BertTextClassifierPreprocessor(
        tokenizer,
        sequence_length=stored.task.get(
            "max_seq_length", stored.config.max_position_embeddings
        ),
        name="bert_text_classifier_preprocessor",
    )
    if weight_map.CLASSIFIER in weight_map.parts_of(stored.weights):
        classifier = models.BertTextClassifier(
            backbone,
            num_classes=stored.weights.shapes["output_bias"][0],
            preprocessor=preprocessor,
            dropout=_CLASSIFIER_DROPOUT,
            name="bert_text_classifier",
        )
        _assign(classifier.output_dense.weights, stored)
        classifier.save_to_preset(directory)
    else:
        backbone.save_to_preset(directory)
        # Without a preprocessor in the preset, KerasHub would pack 512 tokens,
        # too many for models with fewer positions.
        preprocessor.save_to_preset(directory)
    return [*_sentences(stored), _TOKENIZER_NOTE]


def _check_model(stored: StoredModel, allow_activation_change: bool) -> None:
    """Raises `UserError` for a model that KerasHub's BERT cannot represent."""
    config = stored.config
    if config.hidden_act == _EXACT_GELU and not allow_activation_change:
        raise UserError(
            f"{stored.path} has the exact GELU (hidden_act "
            f"{_EXACT_GELU!r}), and KerasHub's BERT only has its tanh form; "
            "convert with --allow_activation_change to get the tanh form."
        )
    expected = {"layer_norm_eps": _LAYER_NORM_EPS, "left_to_right": False}
    if config.hidden_act != _EXACT_GELU:
        expected["hidden_act"] = _TANH_GELU
    for field, value in expected.items():
        if getattr(config, field) != value:
            raise UserError(
                f"KerasHub's BERT has {field}={value!r} and no other. "
                f"Received: {field}={getattr(config, field)!r} in "
                f"{stored.path}; convert it to another format."
            )
    if weight_map.POOLER not in weight_map.parts_of(stored.weights):
        raise UserError(
            f"KerasHub's BERT has a pooler, and {stored.path} (kind "
            f"{stored.task['kind']}) has none; convert a model with a pooler, "
            "or to another format."
        )


def _check_vocabulary(vocabulary: Vocabulary) -> None:
    """Checks that KerasHub can read the vocabulary file.

    Source: WordPieceTokenizer.set_vocabulary of KerasHub 0.32, which strips
    white space of any kind from the end of a line.
    """
    text = io.StringIO(vocabulary.to_text(), newline=None)
    if len({line.rstrip() for line in text}) != len(vocabulary):
        raise UserError(
            "KerasHub strips white space from the ends of a vocabulary's "
            f"lines, after which {vocabulary.source} would hold a wordpiece "
            "twice, so it could not read it; convert the model to another "
            "format."
        )


def _sentences(stored: StoredModel) -> Iterator[str]:
    config = stored.config
    yield from stored_model.not_carried(
        "KerasHub's format",
        stored,
        ("kind", "max_seq_length", "head"),
        (weight_map.ENCODER, weight_map.POOLER, weight_map.CLASSIFIER),
    )
    if config.hidden_act == _EXACT_GELU:
        yield (
            "The exact GELU became its tanh form, which differs by at most "
            "0.0005; MiniLM's outputs change by at most 0.003."
        )
    else:  # `_check_model` refuses other activations.
        yield 'hidden_act "gelu" is the tanh form of GELU, as KerasHub has it.'
    if config.hidden_dropout_prob != config.attention_probs_dropout_prob:
        yield (
            "KerasHub has one dropout: hidden_dropout_prob, "
            f"{config.hidden_dropout_prob:g}, also replaces "
            "attention_probs_dropout_prob, "
            f"{config.attention_probs_dropout_prob:g}."
        )
    if config.initializer_range != _INITIALIZER_RANGE:
        yield f"initializer_range, {config.initializer_range:g}, is not kept."

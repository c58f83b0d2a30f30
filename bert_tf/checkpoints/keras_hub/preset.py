"""Reads KerasHub presets of BERT, without importing KerasHub.

config.json                      the backbone's class and sizes
model.weights.h5                 its weights, or model.weights.json and
                                 the shards that it names
tokenizer.json, assets/tokenizer/vocabulary.txt
                                 the tokenizer; not in every preset
task.json, task.weights.h5, preprocessor.json
                                 a model for a task, such as a classifier

Presets of a backbone alone have no tokenizer, and presets of an encoder have no
task.
"""

import os
import re
from typing import Any

from bert_tf.checkpoints import matching
from bert_tf.checkpoints import stored_model
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.keras_hub import weights as keras_hub_weights
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.text import vocabulary as vocabulary_lib
from bert_tf.text.vocabulary import Vocabulary

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.weights.h5"
SHARDS_FILE = "model.weights.json"
METADATA_FILE = "metadata.json"
TASK_FILE = "task.json"
TASK_WEIGHTS_FILE = "task.weights.h5"
PREPROCESSOR_FILE = "preprocessor.json"
TOKENIZER_FILE = "tokenizer.json"
VOCABULARY_FILE = os.path.join("assets", "tokenizer", "vocabulary.txt")
# Not KerasHub's; users can add it to a preset without a tokenizer.
_VOCAB_FILE = "vocab.txt"

_BACKBONE = "BertBackbone"
_TOKENIZER = "BertTokenizer"
_CLASSIFIER = "BertTextClassifier"
_MASKED_LM = "BertMaskedLM"

# BertBackbone's argument to our field.
_CONFIG_KEYS = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}
# The activation of a classifier to the problem type.
_PROBLEM_TYPES = {"softmax": "single_label", "sigmoid": "multi_label"}
_KERAS_KEYS = frozenset({"name", "trainable", "dtype"})

TOKENIZER_NOTE = (
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


def recognizes(path: str) -> bool:
    """Returns whether `path` is a KerasHub preset."""

    def has(name):
        return os.path.isfile(os.path.join(path, name))

    if not os.path.isdir(path):
        return False
    if any(map(has, (WEIGHTS_FILE, SHARDS_FILE))) and has(METADATA_FILE):
        return True
    if not has(CONFIG_FILE):
        return False
    try:
        values = files.read_json(os.path.join(path, CONFIG_FILE))
    except (OSError, UserError):
        return False
    if not isinstance(values, dict):
        return False
    origin = f"{values.get('registered_name')} {values.get('module')}"
    return re.search(r"\bkeras_(hub|nlp)\b", origin) is not None


def read_model(
    path: str, allow_missing: re.Pattern | None = None
) -> StoredModel:
    """Reads a preset of a `BertBackbone`, maybe with a task; see `formats`."""
    config = _read_config(path)
    settings, notes = None, _config_notes(config)
    vocabulary = _read_vocabulary(path)
    if vocabulary is not None:
        vocabulary.check_size(config.vocab_size)
        settings, tokenizer_notes = _read_settings(path, vocabulary)
        notes += tokenizer_notes
    else:
        notes.append("It has no tokenizer.")
    head, task, task_notes = _read_task(path)
    weights = _open_backbone(path)
    if head is not None:
        weights |= head
    tensors, report = matching.match(
        config,
        weights,
        "keras_hub",
        path,
        () if head is None else (weight_map.CLASSIFIER,),
        allow_missing=allow_missing,
        expected_unused=keras_hub_weights.is_state,
    )
    _check_heads(path, config, report, allow_missing)
    return StoredModel(
        path=path,
        config=config,
        weights=tensors,
        vocabulary=vocabulary,
        tokenizer_settings=settings,
        task={"kind": weight_map.kind_of(tensors)} | task,
        report=report.with_notes(*notes, *task_notes),
        lower_case_is_derived=vocabulary is not None
        and not os.path.isfile(os.path.join(path, TOKENIZER_FILE)),
    )


def _require(path: str, name: str) -> str:
    """Returns the path of a file of the preset, which must exist."""
    file = os.path.join(path, name)
    if not os.path.isfile(file):
        raise UserError(
            f"The KerasHub preset {path} is incomplete: there is no {file}; "
            "copy it again."
        )
    return file


def _read_object(path: str, name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """Returns the JSON object in a file, whose `keys` must be objects too."""
    file = _require(path, name)
    values = files.read_json(file)
    if not isinstance(values, dict) or not all(
        isinstance(values.get(key), dict) for key in keys
    ):
        needed = " with the objects " + ", ".join(keys) if keys else ""
        raise UserError(
            f"{file} must hold a JSON object{needed}; copy the preset again."
        )
    return values


def _class_of(values: dict[str, Any]) -> str:
    """Returns the name of a class without its package."""
    name = values.get("registered_name") or values.get("class_name") or "?"
    return str(name).split(">")[-1]


def _read_config(path: str) -> BertConfig:
    values = _read_object(path, CONFIG_FILE, ("config",))
    source = os.path.join(path, CONFIG_FILE)
    name = _class_of(values)
    if name != _BACKBONE:
        raise UserError(
            f"{path} is a KerasHub preset of {name}; only presets of a "
            f"{_BACKBONE} are read."
        )
    theirs = values["config"]
    expected = [*_CONFIG_KEYS, "dropout"]
    missing = [key for key in expected if key not in theirs]
    unknown = sorted(set(theirs) - set(expected) - _KERAS_KEYS)
    if missing or unknown:
        raise UserError(
            f"{source} must describe a {_BACKBONE} by {', '.join(expected)}. "
            f"Missing: {', '.join(missing) or 'none'}; unknown: "
            f"{', '.join(unknown) or 'none'}."
        )
    ours = {field: theirs[key] for key, field in _CONFIG_KEYS.items()}
    return BertConfig.from_dict(
        ours
        | {
            "hidden_dropout_prob": theirs["dropout"],
            "attention_probs_dropout_prob": theirs["dropout"],
        },
        source,
    )


def _config_notes(config: BertConfig) -> list[str]:
    return [
        "KerasHub's BERT has the tanh form of GELU, which is hidden_act "
        '"gelu" here.',
        f"Its one dropout, {config.hidden_dropout_prob:g}, became "
        "hidden_dropout_prob and attention_probs_dropout_prob.",
    ]


def _read_vocabulary(path: str) -> Vocabulary | None:
    if os.path.isfile(os.path.join(path, TOKENIZER_FILE)):
        return Vocabulary.from_file(_require(path, VOCABULARY_FILE))
    beside = os.path.join(path, _VOCAB_FILE)
    return Vocabulary.from_file(beside) if os.path.isfile(beside) else None


def _read_settings(
    path: str, vocabulary: Vocabulary
) -> tuple[dict[str, Any], list[str]]:
    """Returns the settings of our tokenizer, and notes on them."""
    if not os.path.isfile(os.path.join(path, TOKENIZER_FILE)):
        lower_case = stored_model.derive_lower_case(vocabulary)
        return stored_model.tokenizer_settings(vocabulary, lower_case), [
            f"It has no {TOKENIZER_FILE}; text is "
            + ("lower-cased" if lower_case else "not lower-cased")
            + f", as {_VOCAB_FILE} suggests."
        ]
    values = _read_object(path, TOKENIZER_FILE, ("config",))
    theirs = values["config"]
    expected = {
        "split": True,
        "suffix_indicator": vocabulary_lib.CONTINUATION,
        "oov_token": vocabulary_lib.UNK,
    }
    received = {k: theirs.get(k, v) for k, v in expected.items()}
    flags = {
        key: theirs.get(key, False)
        for key in ("lowercase", "strip_accents", "special_tokens_in_strings")
    }
    if (
        _class_of(values) != _TOKENIZER
        or received != expected
        or not all(isinstance(flag, bool) for flag in flags.values())
    ):
        raise UserError(
            f"{os.path.join(path, TOKENIZER_FILE)} must describe a "
            f"{_TOKENIZER} with {_list(expected)}. Received: a "
            f"{_class_of(values)} with {_list(received | flags)}; to read the "
            "weights alone, move the file away."
        )
    settings = stored_model.tokenizer_settings(
        vocabulary,
        flags["lowercase"],
        flags["strip_accents"],
        flags["special_tokens_in_strings"],
    )
    notes = [TOKENIZER_NOTE]
    if flags["lowercase"] and not flags["strip_accents"]:
        notes.append(
            "Its tokenizer lower-cases and keeps accents, and so does the "
            "model's here; the original strips accents if it lower-cases."
        )
    return settings, notes


def _list(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in values.items())


def _open_backbone(path: str) -> Tensors:
    if os.path.isfile(os.path.join(path, WEIGHTS_FILE)):
        names = [WEIGHTS_FILE]
    elif os.path.isfile(os.path.join(path, SHARDS_FILE)):
        names = _shards(path)
    else:
        _require(path, WEIGHTS_FILE)
    return keras_hub_weights.open_weights(
        [_require(path, name) for name in names], keras_hub_weights.BACKBONE
    )


def _shards(path: str) -> list[str]:
    """Returns the names of the weight files."""
    places = _read_object(path, SHARDS_FILE, ("weight_map",))["weight_map"]
    names: list[str] = []
    for place in places.values():
        names += place if isinstance(place, list) else [place]
    for name in names:
        # Nothing outside the preset is opened.
        if not isinstance(name, str) or os.path.basename(name) != name:
            raise UserError(
                f"{os.path.join(path, SHARDS_FILE)} must name files in its own "
                f"directory. Received: {name!r}."
            )
    return list(dict.fromkeys(names))


def _read_task(
    path: str,
) -> tuple[Tensors | None, dict[str, Any], list[str]]:
    """Returns the head's weights, the task's settings, and notes."""
    if not os.path.isfile(os.path.join(path, TASK_FILE)):
        return None, {}, []
    values = _read_object(path, TASK_FILE, ("config",))
    name = _class_of(values)
    if name == _MASKED_LM:
        return None, {}, [_MASKED_LM_NOTE]
    if name != _CLASSIFIER:
        return None, {}, [f"The head of the {name} is ignored."]
    theirs = values["config"]
    task, notes = {}, ["KerasHub keeps no label names, so there are none."]
    activation = str(theirs.get("activation") or "linear")
    if activation != "linear":
        notes.append(
            f"Its classifier returns {activation} of the logits; here it "
            "returns the logits."
        )
    if activation in _PROBLEM_TYPES:
        task["problem_type"] = _PROBLEM_TYPES[activation]
    length = _read_length(path)
    if length:
        task["max_seq_length"] = length
    return _open_head(path, theirs.get("num_classes")), task, notes


def _open_head(path: str, num_classes: Any) -> Tensors:
    file = _require(path, TASK_WEIGHTS_FILE)
    head = keras_hub_weights.open_weights(
        [file], keras_hub_weights.TEXT_CLASSIFIER
    )
    received = head.shapes.get("logits/bias")
    if received not in (None, (num_classes,)):
        raise UserError(
            f"{os.path.join(path, TASK_FILE)} has num_classes="
            f"{num_classes!r}, but the bias in {file} has the shape "
            f"{received}; copy the preset again."
        )
    return head


def _read_length(path: str) -> int | None:
    """Returns the length that texts are packed to, if the preset has it."""
    if not os.path.isfile(os.path.join(path, PREPROCESSOR_FILE)):
        return None
    values = _read_object(path, PREPROCESSOR_FILE, ("config",))
    length = values["config"].get("sequence_length")
    return length if type(length) is int and length > 0 else None


def _check_heads(
    path: str,
    config: BertConfig,
    report: matching.Report,
    allow_missing: re.Pattern | None,
) -> None:
    """Checks that no part is absent, as presets hold all parts of a model."""
    absent = [
        row.keras_hub
        for row in weight_map.rows(config)
        if weight_map.part_of(row.name) in report.absent_heads
    ]
    if allow_missing:
        absent = [name for name in absent if not allow_missing.search(name)]
    if absent:
        raise UserError(
            f"{path} does not hold the BERT that its config describes: it "
            f"lacks {', '.join(absent)}."
        )

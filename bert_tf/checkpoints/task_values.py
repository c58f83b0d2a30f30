"""Reads and checks the small files of models, such as task.json.

Imports no TensorFlow: scripts check their input before they import TensorFlow.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from bert_tf.checkpoints import weight_map
from bert_tf.config import APPROACHES
from bert_tf.config import HEAD_TYPES
from bert_tf.config import LAYER_COMBINATIONS
from bert_tf.config import NORMALIZATIONS
from bert_tf.errors import UserError
from bert_tf.io import paths
from bert_tf.io import stored_files
from bert_tf.io.stored_files import FLAG
from bert_tf.io.stored_files import NUMBER
from bert_tf.io.stored_files import OBJECT
from bert_tf.io.stored_files import TEXT
from bert_tf.io.stored_files import Kind
from bert_tf.io.stored_files import choice
from bert_tf.io.stored_files import either
from bert_tf.io.stored_files import integer
from bert_tf.io.stored_files import list_of
from bert_tf.io.stored_files import names
from bert_tf.io.stored_files import object_of
from bert_tf.io.stored_files import optional
from bert_tf.text.vocabulary import ADDED_TOKENS

_TOKENIZER = {
    "lower_case": FLAG,
    "strip_accents": optional(FLAG),
    "preserve_special_tokens": FLAG,
    "vocabulary_hash": TEXT,
    "normalization": choice(*NORMALIZATIONS),
    # With limit n, a pattern repeats a character n + 1 times, and RE2 allows at
    # most 1000 repeats.
    "max_input_chars_per_word": integer(1, 999),
    "added_tokens": ADDED_TOKENS,
}
_TEMPERATURE = Kind(
    "a number above 0", lambda value: NUMBER.fits(value) and value > 1e-9
)
_TASK = {
    "kind": choice(*weight_map.HEADS),
    "name": TEXT,
    "variant": optional(TEXT),
    "max_seq_length": optional(integer()),
    "head": optional(choice(*HEAD_TYPES)),
    "global_step": integer(0),
    "results": OBJECT,
    "labels": optional(names()),
    # The next two values are only for embeddings, classifiers of pooled
    # vectors, and models with files of sentence-transformers.
    "pooling": optional(TEXT),
    "normalize": optional(FLAG),
}
# Kind of model -> further values in task.json.
_BY_KIND: Mapping[str, Mapping[str, Kind]] = {
    "classification": {
        "problem_type": optional(
            choice("single_label", "multi_label", "regression")
        ),
        "metrics": names(),
        "columns": optional(
            object_of(
                {"text": TEXT},
                {"text_pair": optional(TEXT), "labels": names(0)},
            )
        ),
        "label_separator": TEXT,
        "class_weights": optional(list_of(NUMBER)),
        "doc_stride": optional(integer(0)),
        "language": TEXT,
        "temperature": optional(_TEMPERATURE),
        "thresholds": optional(list_of(NUMBER)),
        "reject_below": optional(NUMBER),
        "reject_label": optional(TEXT),
    },
    "multiple_choice": {
        "columns": object_of(
            {},
            {"choices": names()}
            | dict.fromkeys(
                ("context", "start", "label", "right"), optional(TEXT)
            ),
        ),
    },
    "question_answering": {
        "doc_stride": integer(),
        "max_query_length": integer(0),
        "n_best_size": integer(),
        "max_answer_length": integer(),
        "version_2_with_negative": FLAG,
        "null_score_diff_threshold": optional(NUMBER),
    },
    "tagging": {
        "word_column": either(integer(-(2**31)), TEXT),
        "tag_column": either(integer(-(2**31)), TEXT),
        "sentence_column": either(integer(-(2**31)), TEXT),
        "comment_prefix": TEXT,
        "tag_names": names(),
        "context": choice("document", "sentence"),
        "doc_stride": optional(integer(0)),
        "approach": choice(*APPROACHES),
        "layer_combination": optional(choice(*LAYER_COMBINATIONS)),
        "lstm_size": optional(integer()),
    },
}

_CONFIG_FILE = "config.json"
# Format -> pattern of the name of a file in its directory.
_CHECKPOINT = r"\.(index|data-.+)$"
_FILES = {
    "bert_tf": "^(checksums.json|model)$",
    "huggingface": "^(config.json$|model.safetensors|(tf|pytorch)_model)",
    "keras_hub": r"^config.json$|\.weights\.",
    "model_garden": _CHECKPOINT,
    "tf1": _CHECKPOINT,
    "tf_hub": "^saved_model.pb$",
}


def only(value: Any) -> Kind:
    """Returns the kind that allows only `value` or null."""
    return Kind(repr(value), lambda received: received in (None, value))


def check_task(task: Mapping[str, Any], source: str) -> None:
    """Raises `UserError` if a value in task.json is of the wrong kind."""
    kind = task.get("kind")
    of_kind = _BY_KIND.get(kind, {}) if isinstance(kind, str) else {}
    stored_files.check(task, _TASK | of_kind, source, ("kind",))


def check_tokenizer(settings: Mapping[str, Any], source: str) -> None:
    """Raises `UserError` if a value in tokenizer.json is of the wrong kind."""
    required = ("lower_case", "preserve_special_tokens")
    stored_files.check(settings, _TOKENIZER, source, required)


def read_shape(path: str) -> dict[str, Any]:
    """Returns the configuration of a local model; {} if no small file has it.

    The configuration is that of the original or of Hugging Face, unchecked. The
    path is this file, its directory, or the prefix of a checkpoint.
    """
    if os.path.isfile(path):
        return stored_files.peek_object(path)
    if paths.is_remote(path):
        return {}
    folder = path
    if not os.path.isdir(path) and paths.may_be_model(path):
        folder = os.path.dirname(path)
    for name in ("bert_config.json", "model/bert_config.json", _CONFIG_FILE):
        if values := stored_files.peek_object(os.path.join(folder, name)):
            return values
    return {}


def read_size(path: str, key: str) -> int | None:
    """Returns a number of `read_shape`, or None if it is unknown."""
    value = read_shape(path).get(key)
    return value if integer().fits(value) else None


def check_format(path: str, expected: str | None) -> None:
    """Raises `UserError` if a local directory has no file of a format, --from.

    Reading the files checks that they are complete.
    """
    pattern = _FILES.get(expected)
    if pattern and os.path.isdir(path):
        if not any(map(re.compile(pattern).search, os.listdir(path))):
            raise other_format(path, expected, paths.describe(path))


def other_format(path: str, expected: str, seen: str) -> UserError:
    """Returns the error for a model of another format than --from names."""
    return UserError(
        f"Expected the format {expected} (--from={expected}). Received: "
        f"{path!r}, {seen}; drop --from to detect the format."
    )


def check_replaced(config: Any) -> str:
    """Checks --input and --output of a conversion before anything is read.

    Returns:
      The directory to write. If --output is a symbolic link, this is the
      directory that the link points to, so the link itself is kept.

    Raises:
      UserError: If a path is not local, if --output exists and may not be
        replaced, or if it is or contains --input.
    """
    source, target = config.input, config.output
    for flag, path in (("--input", source), ("--output", target)):
        if not path or paths.is_remote(path):
            raise UserError(
                f"{flag} must be a local path. Received: {path!r}; copy the "
                "files to a local disk first."
            )
    resolved = os.path.realpath(target)
    if _holds(resolved, os.path.realpath(source)):
        raise UserError(
            f"--output={target} is or contains --input={source}, which would "
            "be lost; choose another directory."
        )
    if not os.path.exists(resolved):
        return resolved
    if not os.path.isdir(resolved):
        raise UserError(
            f"--output must be a directory to write. Received: {target!r}, "
            "which is a file; choose another name."
        )
    if not config.overwrite:
        raise UserError(
            f"--output={target} already exists; choose another directory, or "
            "add --overwrite to replace it and everything in it."
        )
    for name, kept in (("working", os.getcwd()), ("home", "~")):
        if _holds(resolved, os.path.realpath(os.path.expanduser(kept))):
            raise UserError(
                f"--overwrite would replace --output={target}, which contains "
                f"your {name} directory; choose another directory."
            )
    return resolved


def _holds(folder: str, path: str) -> bool:
    """Returns whether `path` is `folder` or lies in it; both are resolved."""
    return os.path.commonpath([folder, path]) == folder

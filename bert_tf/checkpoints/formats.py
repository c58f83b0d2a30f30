"""The formats of checkpoints: which one lies at a path, and its module.

Each format's module has

  recognizes(path) -> bool            cheap; never raises
  read_model(path, allow_missing)     -> StoredModel; reads names and shapes
                                      now, values when they are asked for
  write_model(directory, stored)      fills a directory that is there and
                                      empty -> sentences for the log

and raises `UserError` for whatever a user could have done wrong.
"""

import importlib
import re
import types

import tensorflow as tf

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.flags.convert import FORMATS

# Each is imported when it is first asked for, as KerasHub takes seconds.
_MODULES = {
    "bert_tf": "bert_tf.checkpoints.model_directory",
    "huggingface": "bert_tf.checkpoints.huggingface.model",
    "keras_hub": "bert_tf.checkpoints.keras_hub.model",
    "model_garden": "bert_tf.checkpoints.model_garden.model",
    "tf1": "bert_tf.checkpoints.tf1.model",
}


_DOWNLOADS = ("http://", "https://", "hf://", "kaggle://")


def module_of(name: str) -> types.ModuleType:
    """Returns the module of a format."""
    return importlib.import_module(_MODULES[name])


def detect(path: str) -> str:
    """Returns the name of the format of what lies at `path`.

    Args:
      path: A directory or, for checkpoints of TensorFlow, a prefix.

    Raises:
      UserError: If it is of no format, or could be of several.
    """
    found = _recognized(path)
    if len(found) > 1:
        raise UserError(
            f"{path} holds models of several formats ({', '.join(found)}); "
            "keep one of them in the directory, or have "
            "run/convert_checkpoint.py take one with --from."
        )
    if not found:
        raise UserError(
            "Expected a model directory, a checkpoint of the original with "
            "bert_config.json beside it, a Hugging Face directory, a KerasHub "
            f"preset or a Model Garden checkpoint. Received: {path!r}, "
            f"{_contents(path)}."
        )
    return found[0]


def read(
    path: str,
    source_format: str | None = None,
    allow_missing: re.Pattern | None = None,
) -> StoredModel:
    """Reads the model at `path`; its values are read when asked for.

    Args:
      path: A directory or, for checkpoints of TensorFlow, a prefix.
      source_format: One of `run_config.checkpoints.FORMATS`; by default
        recognised.
      allow_missing: Names of weights that may be missing or unused.

    Raises:
      UserError: If there is no model, it is damaged or incomplete, or of
        another architecture.
    """
    if path.startswith(_DOWNLOADS):
        raise UserError(
            f"Expected a path. Received: {path!r}; nothing is downloaded, so "
            "fetch the model first."
        )
    module = module_of(source_format or detect(path))
    if not module.recognizes(path):
        found = _recognized(path)
        seen = f"which looks like {found[0]}" if found else _contents(path)
        raise UserError(
            f"Expected the format {source_format} (--from={source_format}). "
            f"Received: {path!r}, {seen}."
        )
    return module.read_model(path, allow_missing)


def _recognized(path: str) -> list[str]:
    """Returns the formats that `path` could be of."""
    return [name for name in FORMATS if module_of(name).recognizes(path)]


def _contents(path: str) -> str:
    """Says in a few words what lies at `path`."""
    if not tf.io.gfile.exists(path):
        return "where there is nothing"
    if not tf.io.gfile.isdir(path):
        return "a file that is no checkpoint"
    try:
        names = sorted(tf.io.gfile.listdir(path))
    except tf.errors.OpError:
        return "a directory that cannot be read"
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"a directory that holds {shown or 'nothing'}"

"""Detects checkpoint formats and reads models of any format.

The module of each format has these functions.

  recognizes(path) -> bool            cheap; never raises
  read_model(path, allow_missing)     -> StoredModel; reads names and shapes,
                                      and values on access
  write_model(directory, stored)      fills an existing, empty directory, or
                                      raises before it writes; -> sentences for
                                      the log

`.keras` files and SavedModels of TF Hub are only read here. Only model
directories can be written without a vocabulary.

`read_model` and `write_model` raise `UserError` for every mistake of a user.
"""

import dataclasses
import glob
import importlib
import os
import re
import types

from bert_tf.checkpoints import names
from bert_tf.checkpoints import task_values
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.flags.groups import FORMATS
from bert_tf.flags.groups import TF_HUB
from bert_tf.io import paths
from bert_tf.io import stored_files

# Modules are imported on first use, as importing KerasHub takes seconds.
_MODULES = {
    "bert_tf": "bert_tf.checkpoints.model_directory",
    "huggingface": "bert_tf.checkpoints.huggingface.model",
    "keras": "bert_tf.checkpoints.keras_model",
    "keras_hub": "bert_tf.checkpoints.keras_hub",
    "model_garden": "bert_tf.checkpoints.model_garden",
    "tf1": "bert_tf.checkpoints.tf1.checkpoint",
    "tf_hub": "bert_tf.checkpoints.tf_hub",
}
# Folders whose files `check_folder` checks; "/" is the model's own folder.
_FOLDERS = ("/", "/assets/", "/assets/tokenizer/", "/variables/")


def module_of(name: str) -> types.ModuleType:
    """Returns the module of a format."""
    return importlib.import_module(_MODULES[name])


def detect(path: str) -> str:
    """Returns the name of the format of the model at `path`; see `read`.

    Raises:
      UserError: If no format or more than one format fits.
    """
    path = names.resolve(path)
    detected = _recognized(path)
    if len(detected) > 1:
        raise UserError(
            f"{path} holds models of several formats ({', '.join(detected)}); "
            "keep one of them in the directory, or choose one with --from of "
            "run/convert_checkpoint.py."
        )
    if not detected:
        raise paths.no_model(path)
    return detected[0]


def read(
    path: str,
    source_format: str | None = None,
    allow_missing: re.Pattern | None = None,
    cache_dir: str | os.PathLike | None = None,
    offline: bool | None = None,
) -> StoredModel:
    """Reads the model at `path`; its weights are read on access.

    Args:
      path: A directory or a `.keras` file; for checkpoints of TensorFlow also a
        prefix; or a name that `names.resolve` downloads.
      source_format: One of `flags.groups.FORMATS`, or `TF_HUB`; by default, the
        detected format.
      allow_missing: Pattern for names of tensors that may be missing or unused.
      cache_dir: As for `names.resolve`.
      offline: As for `names.resolve`.

    Raises:
      UserError: If `path` names no model, or the model is damaged, incomplete
        or of another architecture.
    """
    path = names.resolve(path, cache_dir, offline)
    revision = names.origin(path)
    check_folder(path)
    module = module_of(source_format or detect(path))
    if source_format and not module.recognizes(path):
        others = _recognized(path)
        seen = paths.describe(path)
        if others:
            seen = f"which looks like {others[0]}"
        raise task_values.other_format(path, source_format, seen)
    stored = module.read_model(path, allow_missing)
    return dataclasses.replace(stored, revision=revision)


def _recognized(path: str) -> list[str]:
    candidates = (*FORMATS, "keras")
    detected = [x for x in candidates if module_of(x).recognizes(path)]
    if "bert_tf" in detected and "tf1" in detected:
        detected.remove("tf1")  # A training run has both; bert_tf reads it.
    # Try a SavedModel last: a folder may hold both a model and its export.
    if not detected and module_of(TF_HUB).recognizes(path):
        return [TF_HUB]
    return detected


def check_folder(path: str) -> None:
    """Raises `UserError` for pipes and devices, as reading could block forever.

    Checks a local folder, or all files with the prefix of a checkpoint.
    """
    if paths.is_remote(path):
        return
    for others in _FOLDERS if os.path.isdir(path) else ("",):
        for file in glob.iglob(f"{glob.escape(path)}{others}*"):
            if os.path.exists(file) and not os.path.isdir(file):
                stored_files.exists(file)

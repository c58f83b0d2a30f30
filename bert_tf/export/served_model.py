"""Exports the model of run/serve.py --model_base_path to a cache, once."""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import os
import pathlib
import re

from absl import logging

from bert_tf import errors
from bert_tf.checkpoints import names as model_names
from bert_tf.distribute import packed_weights
from bert_tf.errors import UserError
from bert_tf.flags.export import SavedModelConfig
from bert_tf.flags.serve import ServeConfig
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.io import paths

# If a folder has only these entries, the server waits for its first version.
_NO_VERSION_YET = re.compile(
    r"\d+\.tmp-.*|\..*|models\.config|batching_parameters\.txt"
)
_PACKAGES = ("bert_tf", "tensorflow")
# A folder that training names "model" is served under its parent's name.
_MODEL_FOLDER = "model"


def prepare(config: ServeConfig) -> ServeConfig:
    """Returns the flags with a folder of versions as --model_base_path.

    A model is exported to the cache, unless an earlier call exported it. An
    empty folder is accepted, because the server waits for its first version.

    Raises:
      UserError: If the path has no versions and no model, or exporting fails.
    """
    path = config.model_base_path
    if path is not None and model_names.is_name(path):
        path = model_names.resolve(path)
    if path is None or paths.is_remote(path):
        return config
    if not paths.may_be_model(path):
        paths.check_folder(path, "--model_base_path")
    if not _is_other(path):
        return config
    if not paths.may_be_model(path):
        raise UserError(
            "--model_base_path must be a folder with versions, which "
            "export/savedmodel.py writes, or a model, such as the folder model "
            f"that training writes. Received: {path!r}, {paths.describe(path)}."
        )
    # The name is "mrpc" for output/mrpc/model.
    folder, name = os.path.split(os.path.abspath(config.model_base_path))
    if name == _MODEL_FOLDER:
        name = os.path.basename(folder)
    name = config.model_name or re.sub(r"[:/]", "_", name)
    return dataclasses.replace(
        config, model_base_path=_export(path, name, config), model_name=name
    )


def _is_other(path: str) -> bool:
    """Returns False for a version, a folder of versions or an empty folder."""
    if not os.path.isdir(path):
        return paths.may_be_model(path)
    with os.scandir(path) as entries:
        names = {entry.name for entry in entries if entry.is_dir()}
    if any(name.isdecimal() for name in names):
        return False
    names = {x for x in os.listdir(path) if not _NO_VERSION_YET.fullmatch(x)}
    return bool(names) and "saved_model.pb" not in names


def _export(path: str, name: str, config: ServeConfig) -> str:
    """Exports a model to the cache, unless it is there; returns the folder."""
    has_litert = config.engine == "litert"
    head = "embeddings" if config.search_file else "auto"
    is_faster = bool(packed_weights.bfloat16_flags()) and not has_litert
    precision = "bfloat16" if is_faster else "float32"
    key = _key(path, f"{name}\0{head}", config.engine, precision)
    folder = os.path.join(paths.cache_dir(), "served", key)
    with locks.exclusive(folder, f"exports {path} to"):
        if os.path.isdir(os.path.join(folder, "1")):
            logging.info("Serving the export of %s in %s.", path, folder)
            return folder
        logging.info(
            "Exporting %s to %s, once; `%s` exports it to a folder of yours.",
            path,
            folder,
            errors.program("export/savedmodel.py"),
        )
        if is_faster:
            # Call this before TensorFlow is imported, or it has no effect.
            packed_weights.assume()
        # This import takes seconds, so avoid it if the export exists already.
        from bert_tf.export import savedmodel

        savedmodel.write(
            SavedModelConfig(
                model_dir=path,
                output_dir=folder,
                version=1,
                precision=precision,
                model_name=name,
                head=head,
                litert=has_litert,
            )
        )
    return folder


def _key(path: str, *settings: str) -> str:
    """Returns a hash of the model's files, settings and package versions."""
    folder = path
    if os.path.isdir(path):
        names = [str(file) for file in pathlib.Path(path).rglob("*")]
    else:  # A prefix or file, with configuration and vocabulary in its folder.
        folder, prefix = os.path.split(path)
        names = [
            os.path.join(folder, file)
            for file in os.listdir(folder or ".")
            if file.startswith(prefix) or file.endswith((".json", ".txt"))
        ]
    digest = hashlib.sha256("\0".join([*settings, ""]).encode())
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            digest.update(importlib.metadata.version(package).encode())
    for file in sorted(filter(os.path.isfile, names)):
        digest.update(os.path.relpath(file, folder or ".").encode())
        digest.update(files.sha256(file).encode())
    return digest.hexdigest()[:32]

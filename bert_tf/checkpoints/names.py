"""Resolves a model's name to a local path, and a path to its origin.

A model is named by

  path                                        a local or gs:// path, read as is
  bert-base-uncased                           a name of `recipes.releases`
  hf://owner/name[@revision]                  Hugging Face
  kaggle://owner/model/keras/variation[/3]    Kaggle; or tensorFlow2/variation
  https://there/model.zip, .tar.gz, .tgz      an archive

An existing path wins. Nothing else touches the network.
"""

import functools
import os
import re

from absl import logging

from bert_tf.io import stored_files
from bert_tf.recipes import releases

CACHE_VARIABLE = "BERT_TF_CACHE"
OFFLINE_VARIABLE = "BERT_TF_OFFLINE"

_PREFIXES = ("hf://", "kaggle://", "https://", "http://")
_SNAPSHOT = re.compile(
    r"/models--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})(?:/|$)"
)
_KAGGLE = re.compile(
    r"/models/([^/]+/[^/]+/(?:keras|tensorFlow2)/[^/]+/\d+)(?:/|$)"
)
_TRUE = ("1", "true", "yes", "on")


def resolve(
    name: str, cache_dir: str | None = None, offline: bool | None = None
) -> str:
    """Returns the local path of a model, fetched if a name requires it.

    Args:
      name: A path or a name; see the module.
      cache_dir: Folder for fetched archives; by default BERT_TF_CACHE, else
        `bert_tf` in the user's cache. The hubs' libraries have their own.
      offline: If true, nothing is fetched; by default as BERT_TF_OFFLINE.

    Raises:
      UserError: If the name is neither a path nor a known name, or the model
        cannot be fetched.
    """
    release = releases.find(name)
    if "://" not in name and _exists(name):
        if release:
            _log_path(name)
        return name
    if not is_name(name):
        if "://" not in name:
            releases.refuse_name(name)
        releases.refuse_prefix(name)
        return name
    if offline is None:
        offline = os.environ.get(OFFLINE_VARIABLE, "").lower() in _TRUE
    if name.startswith(("hf://", "kaggle://")):
        from bert_tf.checkpoints import hubs

        if name.startswith("hf://"):
            return hubs.fetch_hugging_face(name, offline)
        return hubs.fetch_kaggle(name, offline)
    # Imports TensorFlow.
    from bert_tf.checkpoints import archived_models

    cache = os.path.expanduser(cache_dir or _default_cache())
    if release:
        return archived_models.fetch_release(release, cache, offline)
    return archived_models.fetch_url(name, cache, offline)


@functools.cache
def _log_path(name: str) -> None:
    """Logs, once for each name, that a path comes before a released model."""
    logging.info(
        "%s is a path here, so it is read; the model of that name is not "
        "fetched.",
        name,
    )


def is_name(text: str) -> bool:
    """Returns whether a text names a model that can be fetched."""
    return text.startswith(_PREFIXES) or releases.find(text) is not None


def origin(path: str) -> str | None:
    """Returns name and revision of a fetched model, None for other paths."""
    path = os.path.abspath(path) if "://" not in path else path
    match = _SNAPSHOT.search(path)
    if match:
        return f"hf://{match[1]}/{match[2]}@{match[3]}"
    match = _KAGGLE.search(path)
    if match and os.path.isfile(f"{path[: match.end(1)]}.complete"):
        return f"kaggle://{match[1]}"
    for folder in (path, os.path.dirname(path)):
        file = os.path.join(folder, "origin.json")
        if "://" not in path and os.path.isfile(file):
            values = stored_files.read_object(file)
            if not {"name", "url", "sha256"} <= set(values):
                continue  # Another program's.
            etag = f", ETag {values['etag']}" if values.get("etag") else ""
            return (
                f"{values['name']} ({values['url']}{etag}, SHA-256 "
                f"{values['sha256']})"
            )
    return None


def _default_cache() -> str:
    if CACHE_VARIABLE in os.environ:
        return os.environ[CACHE_VARIABLE]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return os.path.join(home, "bert_tf")


def _exists(path: str) -> bool:
    # A checkpoint's prefix names several files.
    return os.path.exists(path) or os.path.exists(f"{path}.index")

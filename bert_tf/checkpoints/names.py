"""Resolves a model's name to a local path, and a path to its origin.

The name of a model has one of these forms.

  path                                        a local or gs:// path, read as is
  bert-base-uncased                           a name of `recipes.releases`
  hf://owner/name[@revision]                  Hugging Face
  kaggle://owner/model/keras/variation[/3]    Kaggle; or tensorFlow2/variation
  https://there/model.zip, .tar.gz, .tgz      an archive

If a path with the same name exists, it is read and the network is not used.

The cache has one folder for each archive. The folder appears only when the
model is complete. The folder's `origin.json` has name, address, ETag and hash.
"""

import functools
import hashlib
import os
import re
import urllib.parse

from absl import logging

from bert_tf import errors
from bert_tf.errors import UserError
from bert_tf.io import archives
from bert_tf.io import download
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.io import paths
from bert_tf.io import stored_files
from bert_tf.recipes import releases
from bert_tf.recipes.releases import Release

OFFLINE_VARIABLE = "BERT_TF_OFFLINE"

_PREFIXES = ("hf://", "kaggle://", "https://", "http://")
_SNAPSHOT = re.compile(
    r"/models--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})(?:/|$)"
)
_KAGGLE = re.compile(
    r"/models/([^/]+/[^/]+/(?:keras|tensorFlow2)/[^/]+/\d+)(?:/|$)"
)
_TRUE = ("1", "true", "yes", "on")
_ORIGIN_FILE = "origin.json"
# `_lift` removes these, as it moves a folder up only if nothing is beside it.
_OTHER_FILES = ("__MACOSX", ".DS_Store", _ORIGIN_FILE)
_WEIGHTS = (".index", ".safetensors", ".bin", ".h5", "saved_model.pb")
_RELEASED_FILES = (
    "bert_config.json",
    "bert_model.ckpt.data-00000-of-00001",
    "bert_model.ckpt.index",
    "vocab.txt",
)


def resolve(
    name: str,
    cache_dir: str | os.PathLike | None = None,
    offline: bool | None = None,
) -> str:
    """Returns the local path of a model; downloads the model if needed.

    Args:
      name: A path or a name; see the module.
      cache_dir: Folder for downloaded archives; by default $BERT_TF_CACHE, else
        `bert_tf` in the user's cache. Hubs use their own caches.
      offline: If true, downloads nothing; by default $BERT_TF_OFFLINE.

    Raises:
      UserError: If no path exists and the name looks like a model's, but is not
        known; or if the model cannot be downloaded, is damaged or is another.
    """
    release = releases.find(name)
    # A checkpoint's prefix is not a file itself: look for the index, too.
    if "://" not in name and any(map(os.path.exists, (name, f"{name}.index"))):
        if release:
            _log_path(name)
        return name
    if not release and not name.startswith(_PREFIXES):
        if "://" not in name:
            releases.refuse_name(name)
        releases.refuse_prefix(name)
        return name
    if offline is None:
        offline = os.environ.get(OFFLINE_VARIABLE, "").lower() in _TRUE
    if parts := releases.parse_hub_name(name):
        from bert_tf.checkpoints import hubs

        return hubs.fetch_model(name, parts, offline)
    title, url = name, release.url if release else name
    if not release:
        paths.require_archive_url(url)
        title = os.path.basename(urllib.parse.urlsplit(url).path)
        for ending in paths.ARCHIVE_ENDINGS:
            title = title.removesuffix(ending)
    return _fetch(release, title, url, cache_dir or paths.cache_dir(), offline)


@functools.cache
def _log_path(name: str) -> None:
    """Logs, once per name, that a path is read, not the model of this name."""
    logging.info(
        "%s is a path here, so it is read; the model of that name is not "
        "fetched.",
        name,
    )


def is_name(text: str) -> bool:
    """Returns whether a text names a model that can be downloaded."""
    return text.startswith(_PREFIXES) or releases.find(text) is not None


def origin(path: str) -> str | None:
    """Returns name and revision of a downloaded model; None for other paths."""
    path = os.path.abspath(path) if "://" not in path else path
    match = _SNAPSHOT.search(path)
    if match:
        return f"hf://{match[1]}/{match[2]}@{match[3]}"
    match = _KAGGLE.search(path)
    if match and os.path.isfile(f"{path[: match.end(1)]}.complete"):
        return f"kaggle://{match[1]}"
    for folder in (path, os.path.dirname(path)):
        file = os.path.join(folder, _ORIGIN_FILE)
        if "://" not in path and os.path.isfile(file):
            values = stored_files.read_object(file)
            if not {"name", "url", "sha256"} <= set(values):
                continue  # Another program wrote this file.
            etag = f", ETag {values['etag']}" if values.get("etag") else ""
            return (
                f"{values['name']} ({values['url']}{etag}, SHA-256 "
                f"{values['sha256']})"
            )
    return None


# === Archives ===


def _fetch(
    release: Release | None, title: str, url: str, cache: str, offline: bool
) -> str:
    """Returns the folder of the model in an archive; downloads it if missing.

    The address may end with `#sha256=` and the hash of the archive.
    """
    key = hashlib.sha256(url.encode()).hexdigest()[:12]
    stem = re.sub(r"[^\w.-]", "_", title)
    folder = os.path.join(os.path.expanduser(cache), f"{stem}-{key}")
    complete = os.path.join(folder, _ORIGIN_FILE)
    if os.path.isfile(complete):
        return folder
    if offline:
        raise UserError(
            f"{title} is not in the cache ({folder}), and --offline or "
            "BERT_TF_OFFLINE forbids to fetch it; fetch it once without."
        )
    url, _, fragment = url.partition("#")
    expected = re.fullmatch(r"sha256=([0-9a-fA-F]{64})", fragment)
    if fragment and not expected:
        raise UserError(
            "Expected #sha256= and 64 hexadecimal digits at the end of the "
            f"address. Received: #{fragment}."
        )
    sha256 = release.sha256 if release else expected and expected[1]

    def announce(num_bytes: int | None) -> None:
        size = releases.format_bytes(num_bytes)
        download.announce(f"Fetching {title} ({size}) from {url} to {folder}.")

    with locks.exclusive(folder, "fetches"):
        if os.path.isfile(complete):  # Another process has fetched it.
            return folder
        archive = f"{folder}.archive"
        advice = "the address, or give a model's directory on disk"
        if release:
            advice = (
                f"set {releases.BASE_VARIABLE} to a mirror, or give a model's "
                "directory on disk; one that was fetched before, to "
                f"{folder}, needs no connection"
            )
        fetched = download.fetch(url, archive, sha256, announce, advice)
        origin = {"name": title, "url": url, **fetched}
        try:
            with (
                errors.naming(folder),
                files.atomic_directory(folder) as temporary,
            ):
                archives.unpack(archive, temporary)
                _lift(temporary)
                _check(title, url, temporary, release)
                files.write_json(os.path.join(temporary, _ORIGIN_FILE), origin)
        finally:
            os.remove(archive)
    return folder


def _lift(folder: str) -> None:
    """Moves the contents of an archive's only folder up into `folder`."""
    for name in _OTHER_FILES:
        files.remove(os.path.join(folder, name))
    names = os.listdir(folder)
    inner = os.path.join(folder, names[0]) if len(names) == 1 else ""
    if not os.path.isdir(inner):
        return
    # First rename the inner folder: it may hold a file of the same name.
    moved = f"{folder}/{'_' * 250}"
    os.rename(inner, moved)
    for name in os.listdir(moved):
        os.rename(os.path.join(moved, name), os.path.join(folder, name))
    os.rmdir(moved)
    _lift(folder)


def _check(title: str, url: str, folder: str, release: Release | None) -> None:
    """Checks that a folder holds a model; for a release, checks the hashes."""
    names = os.listdir(folder)
    if release is None:
        if any(name.endswith(_WEIGHTS) for name in names):
            return
        raise UserError(
            f"The archive at {url} holds no model: expected a file of weights "
            f"({', '.join(_WEIGHTS)}) at its top. Received: "
            f"{', '.join(sorted(names)[:8]) or 'nothing'}."
        )
    if absent := sorted(set(_RELEASED_FILES) - set(names)):
        raise UserError(
            f"The archive at {url} is not {title}: it lacks "
            f"{', '.join(absent)}."
        )
    for name, expected in release.files_sha256.items():
        actual = files.sha256(os.path.join(folder, name))
        if actual == expected:
            continue
        message = (
            f"{name} of {title} from {url} is not the released one: expected "
            f"the SHA-256 {expected}. Received: {actual}"
        )
        if release.is_official:
            raise UserError(f"{message}; nothing was kept.")
        logging.warning("%s; %s is used as it is.", message, url)

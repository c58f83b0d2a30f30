"""Fetches models that are one archive each into the cache.

The cache has one folder for each address. It appears when the model is complete
and holds, beside the model, `origin.json`: name, address, ETag and hash.
"""

import hashlib
import os
import re
import shutil
import urllib.parse

from absl import logging

from bert_tf import errors
from bert_tf.errors import UserError
from bert_tf.io import archives
from bert_tf.io import download
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.recipes import releases
from bert_tf.recipes.releases import Release

ORIGIN_FILE = "origin.json"
_WEIGHTS = (".index", ".safetensors", ".bin", ".h5", "saved_model.pb")
_RELEASED_FILES = (
    "bert_config.json",
    "bert_model.ckpt.data-00000-of-00001",
    "bert_model.ckpt.index",
    "vocab.txt",
)


def fetch_release(release: Release, cache: str, offline: bool) -> str:
    """Returns the folder of a released model; fetches it where it is missing.

    Raises:
      UserError: If it cannot be fetched, is damaged or another one.
    """
    folder = _folder(cache, release.name, release.url)
    return _fetch(release.name, release.url, folder, offline, release)


def fetch_url(url: str, cache: str, offline: bool) -> str:
    """Returns the folder of the model in the archive at an address.

    The address may end with `#sha256=` and the hash of the archive.

    Raises:
      UserError: If it cannot be fetched, is damaged or no model.
    """
    archives.require_address(url)
    title = os.path.basename(urllib.parse.urlsplit(url).path)
    for ending in archives.ENDINGS:
        title = title.removesuffix(ending)
    folder = _folder(cache, title, url)
    return _fetch(title, url, folder, offline, None)


def _folder(cache: str, title: str, url: str) -> str:
    key = hashlib.sha256(url.encode()).hexdigest()[:12]
    title = re.sub(r"[^\w.-]", "_", title)
    return os.path.join(cache, f"{title}-{key}")


def _fetch(
    title: str, url: str, folder: str, offline: bool, release: Release | None
) -> str:
    """Fetches an archive, and unpacks it to `folder` as a whole."""
    if _is_complete(folder):
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
    with locks.exclusive(folder, "fetches"):
        if _is_complete(folder):  # By another process, meanwhile.
            return folder
        _fetch_locked(title, url, folder, sha256, release)
    return folder


def _fetch_locked(
    title: str,
    url: str,
    folder: str,
    sha256: str | None,
    release: Release | None,
) -> None:
    archive = f"{folder}.archive"

    def announce(num_bytes: int | None) -> None:
        size = "size unknown"
        if num_bytes is not None:
            size = releases.format_bytes(num_bytes)
        download.announce(f"Fetching {title} ({size}) from {url} to {folder}.")

    fetched = download.fetch(url, archive, sha256, announce)
    try:
        with (
            errors.naming(folder),
            files.atomic_directory(folder) as temporary,
        ):
            archives.unpack(archive, temporary)
            _lift(temporary)
            _check(title, url, temporary, release)
            origin = {"name": title, "url": url, "etag": fetched.etag}
            origin |= {"bytes": fetched.bytes, "sha256": fetched.sha256}
            files.write_json(os.path.join(temporary, ORIGIN_FILE), origin)
    finally:
        os.remove(archive)


def _is_complete(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, ORIGIN_FILE))


def _lift(folder: str) -> None:
    """Moves the contents of an archive's only folder up into `folder`."""
    for name in ("__MACOSX", ".DS_Store"):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.remove(path)
    names = os.listdir(folder)
    inner = os.path.join(folder, names[0]) if len(names) == 1 else ""
    if not os.path.isdir(inner):
        return
    # Under a name that none of its files has.
    moved = f"{folder}/{'_' * 200}"
    os.rename(inner, moved)
    for name in os.listdir(moved):
        os.rename(os.path.join(moved, name), os.path.join(folder, name))
    os.rmdir(moved)
    _lift(folder)


def _check(title: str, url: str, folder: str, release: Release | None) -> None:
    """Checks that a folder holds a model, and the one that was released."""
    names = os.listdir(folder)
    if release:
        absent = sorted(set(_RELEASED_FILES) - set(names))
        if absent:
            raise UserError(
                f"The archive at {url} is not {title}: it lacks "
                f"{', '.join(absent)}."
            )
    elif not any(name.endswith(_WEIGHTS) for name in names):
        raise UserError(
            f"The archive at {url} holds no model: expected a file of weights "
            f"({', '.join(_WEIGHTS)}) at its top. Received: "
            f"{', '.join(sorted(names)[:8]) or 'nothing'}."
        )
    for name, expected in (release.files_sha256 if release else {}).items():
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

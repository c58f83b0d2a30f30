"""Unpacks zip and tar archives of unknown origin.

Nothing outside the folder is written. Links and devices are refused, and so is
an archive that unpacks to far more than its own size.
"""

import contextlib
import dataclasses
import gzip
import os
import stat
import tarfile
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import IO

from bert_tf.errors import UserError
from bert_tf.io import download

ENDINGS = (".zip", ".tar.gz", ".tgz")
_CHUNK_BYTES = 1 << 20
# Weights hardly shrink; a small archive may hold zeros.
_MAX_RATIO = 200
_LEAST_LIMIT = 1 << 26
_MAX_MEMBERS = 10_000
_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    NotImplementedError,  # An unknown compression.
    RuntimeError,  # An encrypted zip.
    FileExistsError,  # Two entries of one name, or below a file.
    NotADirectoryError,
    IsADirectoryError,
)


@dataclasses.dataclass(frozen=True)
class _Member:
    """An entry of an archive."""

    name: str
    is_folder: bool
    is_file: bool
    open: Callable[[], IO[bytes]]


def require_address(url: str) -> None:
    """Raises `UserError` unless an archive may be fetched from an address."""
    download.require_safe_url(url)
    if not urllib.parse.urlsplit(url).path.endswith(ENDINGS):
        raise UserError(
            "Expected the address of an archive, which ends with "
            f"{', '.join(ENDINGS)}. Received: {url!r}."
        )


def unpack(archive: str, folder: str) -> None:
    """Unpacks an archive into an existing folder.

    Raises:
      UserError: If the archive is damaged, names a path outside the folder,
        holds links, or unpacks to far more than its size.
    """
    limit = max(_MAX_RATIO * os.path.getsize(archive), _LEAST_LIMIT)
    written = 0
    try:
        with contextlib.ExitStack() as stack:
            for number, member in enumerate(_members(archive, stack)):
                _check(archive, member)
                if number >= _MAX_MEMBERS:
                    raise UserError(
                        f"{archive} holds more than {_MAX_MEMBERS} files and "
                        "folders, so it is no model."
                    )
                path = os.path.join(folder, *member.name.split("/"))
                if member.is_folder:
                    os.makedirs(path, exist_ok=True)
                    continue
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with member.open() as source, open(path, "xb") as target:
                    while chunk := source.read(_CHUNK_BYTES):
                        written += len(chunk)
                        if written > limit:
                            raise UserError(
                                f"{archive} unpacks to more than {limit} "
                                "bytes, so it is no model."
                            )
                        target.write(chunk)
    except _DAMAGED as error:
        raise UserError(
            f"{archive} is not a whole archive (.zip or .tar.gz): "
            f"{type(error).__name__}: {error}."
        ) from error


def _check(archive: str, member: _Member) -> None:
    """Raises `UserError` for an entry that is not a file in the folder."""
    parts = member.name.rstrip("/").split("/")
    if (
        {"", ".."} & set(parts)
        or "\\" in member.name
        or ":" in parts[0]
        or "\0" in member.name
    ):
        raise UserError(
            f"{archive} names a path outside its folder, so it was not "
            f"unpacked. Received: {member.name!r}."
        )
    if not member.is_folder and not member.is_file:
        raise UserError(
            f"{archive} holds a link or a device, so it was not unpacked. "
            f"Received: {member.name!r}."
        )


def _members(archive: str, stack: contextlib.ExitStack) -> Iterator[_Member]:
    if zipfile.is_zipfile(archive):
        return _zip_members(stack.enter_context(zipfile.ZipFile(archive)))
    return _tar_members(stack.enter_context(tarfile.open(archive, "r:gz")))


def _zip_members(file: zipfile.ZipFile) -> Iterator[_Member]:
    for info in file.infolist():
        # The mode of a file that was packed on Unix; 0 elsewhere.
        kind = stat.S_IFMT(info.external_attr >> 16)
        yield _Member(
            info.orig_filename,
            info.is_dir(),
            not info.is_dir() and kind in (0, stat.S_IFREG),
            lambda info=info: file.open(info),
        )


def _tar_members(file: tarfile.TarFile) -> Iterator[_Member]:
    for info in file:
        yield _Member(
            info.name.removeprefix("./") or ".",
            info.isdir(),
            info.isreg(),
            lambda info=info: file.extractfile(info),
        )

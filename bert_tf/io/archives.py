"""Unpacks zip and tar archives of unknown origin.

Nothing outside the folder is written. Links and devices are refused, and so is
an archive that unpacks to far more than its own size. Python's libraries read
headers of any length into memory, so `_Source` limits the headers.
"""

import gzip
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import IO
from typing import NamedTuple

from bert_tf.errors import UserError

_CHUNK_BYTES = 1 << 20
# The unpacked size is limited to 200 times the archive's size, but to no less
# than 64 MiB and no more than 64 GiB.
_MAX_RATIO = 200
_LEAST_LIMIT, _MOST_LIMIT = 1 << 26, 1 << 36
_MAX_MEMBERS = 1_000
# Maximum bytes of a tar's headers, or of a zip's directory.
_MAX_HEADER_BYTES = 1 << 21
# File systems allow names of 255 bytes; leave room for a temporary suffix.
_MAX_NAME_BYTES, _MAX_DEPTH = 200, 32
# Python's errors for a damaged archive.
DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    struct.error,
    ArithmeticError,
    EOFError,
    LookupError,
    ValueError,  # A header field that is no number or no valid name.
    RuntimeError,  # An encrypted file, an unknown compression, deep nesting.
    FileExistsError,  # Two entries have the same name, or one is below a file.
    NotADirectoryError,
    IsADirectoryError,
)


class _Member(NamedTuple):
    name: str
    is_folder: bool
    is_file: bool
    open: Callable[[], IO[bytes]]


class _Source:
    """The file of an archive; refuses headers that are too large.

    Attributes:
      in_member: True for reads of a member's contents, which have no limit.
    """

    def __init__(self, file: IO[bytes], path: str, limit: int) -> None:
        self._file = file
        self._path = path
        self._limit = limit
        self._left = _MAX_HEADER_BYTES
        self.in_member = False
        self.tell, self.seekable = file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if self.in_member:
            return self._file.read(size)
        most = self._left + 1
        contents = self._file.read(min(size, most) if size >= 0 else most)
        self._left -= len(contents)
        if self._left < 0:
            raise UserError(
                f"{self._path} has headers of more than {_MAX_HEADER_BYTES} "
                "bytes, so it is no model."
            )
        return contents

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_SET and offset < 0:
            raise ValueError(f"offset {offset}")
        if offset > self._limit:
            raise _too_large(self._path, self._limit)
        return self._file.seek(offset, whence)


def unpack(archive: str, folder: str) -> None:
    """Unpacks an archive into an existing folder.

    Raises:
      UserError: If the archive is damaged, names a path outside the folder,
        holds links, or unpacks to far more than its size.
    """
    limit = max(_MAX_RATIO * os.path.getsize(archive), _LEAST_LIMIT)
    limit = min(limit, _MOST_LIMIT)
    written = 0
    is_zip = zipfile.is_zipfile(archive)
    members = _zip_members if is_zip else _tar_members
    try:
        with (open if is_zip else gzip.open)(archive, "rb") as file:
            source = _Source(file, archive, limit)
            for number, member in enumerate(members(source)):
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
                with member.open() as contents, open(path, "xb") as target:
                    source.in_member = True
                    while chunk := contents.read(_CHUNK_BYTES):
                        written += len(chunk)
                        if written > limit:
                            raise _too_large(archive, limit)
                        target.write(chunk)
                    source.in_member = False
    except UserError:
        raise
    except DAMAGED as error:
        raise UserError(
            f"{archive} is not a whole archive (.zip or .tar.gz): "
            f"{type(error).__name__}: {str(error):.200}."
        ) from error


def _too_large(archive: str, limit: int) -> UserError:
    return UserError(
        f"{archive} unpacks to more than {limit} bytes, so it is no model."
    )


def _check(archive: str, member: _Member) -> None:
    """Raises `UserError` for links, devices, long names and outside paths."""
    parts = member.name.rstrip("/").split("/")
    if (
        {"", ".."} & set(parts)
        or set("\\\0") & set(member.name)
        or ":" in parts[0]
    ):
        reason = "a path outside its folder"
    elif not member.is_folder and not member.is_file:
        reason = "a link, a device or an unknown compression"
    elif (
        len(parts) > _MAX_DEPTH
        or max(len(x.encode("utf-8", "replace")) for x in parts)
        > _MAX_NAME_BYTES
    ):
        reason = "a name that is too long, or in too many folders"
    else:
        return
    raise UserError(
        f"{archive} holds {reason}, so it was not unpacked. Received: "
        f"{member.name!r:.200}."
    )


def _zip_members(source: _Source) -> Iterator[_Member]:
    file = zipfile.ZipFile(source)
    for info in file.infolist():
        # In zips from Unix, the file mode reveals links; in others it is 0.
        kind = stat.S_IFMT(info.external_attr >> 16)
        is_regular = not info.is_dir() and kind in (0, stat.S_IFREG)
        yield _Member(
            info.orig_filename,
            info.is_dir(),
            is_regular and is_bounded(info),
            lambda info=info: file.open(info),
        )


def is_bounded(info: zipfile.ZipInfo) -> bool:
    """Returns False if one read could unpack gigabytes, as with bzip2."""
    return info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def _tar_members(source: _Source) -> Iterator[_Member]:
    file = tarfile.open(fileobj=source, mode="r:")
    while info := file.next():
        file.members.clear()  # Otherwise tarfile keeps all in memory.
        yield _Member(
            info.name.removeprefix("./") or ".",
            info.isdir(),
            info.isreg() and not info.issparse(),
            lambda info=info: file.extractfile(info),
        )

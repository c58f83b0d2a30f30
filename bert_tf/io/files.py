"""Atomic files and directories, checks of outputs, hashes and JSON.

Paths may be remote (`gs://`); only these and globs import TensorFlow.
"""

import contextlib
import ctypes
import errno
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import types
from collections.abc import Callable
from collections.abc import Iterator
from typing import IO
from typing import Any

from absl import logging

from bert_tf import errors
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import paths
from bert_tf.io import stored_files

_CHUNK_BYTES = 1 << 24
# The bytes that `fingerprint` reads at each end of a file.
_END_BYTES = 1 << 20
_TEMPORARY = re.compile(r".+\.tmp-\d+-[0-9a-f]{8}")
# Constants of <fcntl.h> and <linux/fs.h>, for calls of renameat2.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
# These errors of renameat2 mean that the system cannot swap two paths.
_NO_EXCHANGE = (
    errno.EINVAL,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.EXDEV,
)
# Temporary paths of this process, which `clear_temporaries` must not remove.
_own: set[str] = set()
# `announce` calls these functions with an output's path before the write.
on_write: list[Callable[[str], object]] = []


def _tf() -> types.ModuleType:
    import tensorflow as tf

    return tf


# Local paths use these functions, which need no TensorFlow import.
_LOCAL = types.SimpleNamespace(
    GFile=lambda path, mode: open(path, mode),
    exists=os.path.exists,
    isdir=os.path.isdir,
    listdir=os.listdir,
    makedirs=lambda path: os.makedirs(path, exist_ok=True),
    remove=lambda path: os.remove(path),
    rename=lambda path, new, overwrite=False: os.replace(path, new),
    rmtree=lambda path: shutil.rmtree(path),
    stat=lambda path: types.SimpleNamespace(length=os.path.getsize(path)),
    walk=os.walk,
)


def _system(path: str) -> Any:
    """Returns the functions for the file system of a path."""
    return _tf().io.gfile if paths.is_remote(path) else _LOCAL


def remote_errors(path: str) -> tuple[type[Exception], ...]:
    """Returns the errors of remote file systems, none for a local path."""
    return (_tf().errors.OpError,) if paths.is_remote(path) else ()


def is_file(path: str) -> bool:
    """Returns True if a path exists and is no directory."""
    return exists(path) and not _system(path).isdir(path)


def is_folder(path: str) -> bool:
    """Returns True for a folder, or a link to a folder."""
    return _system(path).isdir(path)


def exists(path: str) -> bool:
    """Returns True if there is a file or folder at a path."""
    return _system(path).exists(path)


def names_in(folder: str) -> list[str]:
    """Returns the sorted names in a folder, without slashes at their ends."""
    names = (name.rstrip("/") for name in _system(folder).listdir(folder))
    return sorted(filter(None, names))


@contextlib.contextmanager
def local_copy(folder: str) -> Iterator[str]:
    """Yields `folder` itself if it is local, else a temporary local copy."""
    if not paths.is_remote(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory() as copy:
        copy_folder(folder, copy)
        yield copy


def copy_folder(folder: str, target: str) -> None:
    """Copies all files below a folder; both folders may be remote."""
    for path, _, _ in remote_files(folder):
        copy = os.path.join(target, os.path.relpath(path, folder))
        _system(copy).makedirs(os.path.dirname(copy))
        _tf().io.gfile.copy(path, copy)


def remote_files(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yields path, bytes and time of change in ns of files below a folder."""
    gfile = _tf().io.gfile
    for parent, _, names in gfile.walk(folder):
        for name in filter(None, names):
            path = os.path.join(parent, name)
            status = gfile.stat(path)
            yield path, status.length, status.mtime_nsec


def size(path: str) -> int:
    """Returns the number of bytes of a file."""
    return _system(path).stat(path).length


def remove(path: str) -> None:
    """Removes a file, or a folder with its files, if there is one."""
    system = _system(path)
    if system.isdir(path) and not os.path.islink(path):
        system.rmtree(path)
    elif system.exists(path) or os.path.islink(path):
        # If another process has removed the file by now, nothing is left to do.
        with contextlib.suppress(FileNotFoundError):
            system.remove(path)


def expand_globs(patterns: str, flag: str = "--input_file") -> list[str]:
    """Returns the files that match comma-separated globs, sorted for each glob.

    Raises `UserError` if a pattern is empty or matches no file.
    """
    found: dict[str, None] = {}
    for pattern in patterns.split(","):
        pattern = pattern.strip()
        matches = sorted(_tf().io.gfile.glob(pattern)) if pattern else []
        matches = [path for path in matches if not _tf().io.gfile.isdir(path)]
        if not matches:
            raise paths.no_match(pattern, flag)
        found.update(dict.fromkeys(matches))
    return list(found)


def require_file(path: str, flag: str) -> str:
    """Returns `path` if it is an existing file, else raises `UserError`."""
    if not is_file(path):
        raise paths.no_file(path, flag)
    return path


def sync(path: str) -> None:
    """Flushes a local file or folder to the disk."""
    if not paths.is_remote(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def open_binary(path: str, mode: str = "rb") -> IO[bytes]:
    """Opens a local or remote file."""
    return _system(path).GFile(path, mode)


def announce(path: str) -> None:
    """Calls the functions in `on_write` with a path, before it is written."""
    for call in on_write:
        call(path)


@contextlib.contextmanager
def atomic_file(path: str) -> Iterator[str]:
    """Yields a temporary path that is renamed to `path` on success.

    On failure the temporary file is removed. Missing folders are created.
    Readers of `path` see the old contents or the new ones, never a part.

    Raises:
      OSError: If the disk is full, or the folder cannot be written.
      UserError: If `path` is a device, a pipe or a stream such as /dev/stdout.
    """
    require_no_stream(path)
    system, folder = _system(path), os.path.dirname(path)
    if folder:
        system.makedirs(folder)
    announce(path)
    temporary = _new_name(path)
    try:
        with errors.naming(path):
            yield temporary
        sync(temporary)
        system.rename(temporary, path, overwrite=True)
        sync(folder or ".")
    except BaseException:
        remove(temporary)
        raise


def require_no_stream(path: str) -> None:
    """Raises `UserError` for a device or a stream, which cannot be replaced."""
    if paths.is_remote(path):
        return
    is_link_to_stream = os.path.islink(path) and os.readlink(path).startswith(
        "/proc/"
    )
    is_regular = os.path.isfile(path) or os.path.isdir(path)
    if is_link_to_stream or (os.path.exists(path) and not is_regular):
        raise UserError(
            f"{path} is a device or a stream, and the output replaces the path "
            "with a new file; name a file."
        )


def require_writable(path: str, flag: str) -> None:
    """Raises `UserError` if no file can be written at `path`."""
    require_no_stream(path)
    if _system(path).isdir(path):
        raise UserError(
            f"{flag} must name a file. Received a directory: {path!r}."
        )
    if reason := _try_to_write(os.path.dirname(path)):
        raise UserError(
            f"{flag}={path} cannot be written ({reason}); choose another path."
        )


def require_writable_folder(path: str, flag: str) -> None:
    """Raises `UserError` if no file can be written to a folder.

    A missing folder is created for the check, and removed again.
    """
    if reason := _try_to_write(path.rstrip("/")):
        raise UserError(
            f"{flag}={path} is not a writable folder ({reason}); choose "
            "another."
        )


def require_checkpoint_folder(path: str, flag: str) -> None:
    """Raises `UserError` if checkpoints cannot be kept in a folder."""
    if set(path) & set("[\\"):
        raise UserError(
            f"{flag} must not contain [ or \\, which TensorFlow reads as a "
            f"pattern in names of checkpoints. Received: {path!r}."
        )
    require_writable_folder(path, flag)


def _try_to_write(folder: str) -> str | None:
    """Returns why a folder is not writable, or None if it is writable."""
    probe = _new_name(os.path.join(folder, "probe"))
    made = []
    try:
        made = make_folders(folder)
        with open_binary(probe, "wb") as file:
            file.write(b"")  # Otherwise no remote file is created.
        _system(probe).remove(probe)
    except (OSError, *remote_errors(folder)) as error:
        return errors.first_line(error)
    finally:
        remove_empty(made)


@contextlib.contextmanager
def atomic_directory(path: str, replace: bool = True) -> Iterator[str]:
    """Yields a temporary directory that becomes `path` on success.

    An earlier directory of that name stays until the new one is complete, so
    readers find the old contents or the new ones. A killed process leaves a
    temporary directory; the next process that writes `path` removes it.

    Args:
      path: The directory. If the path is a link, its target is replaced.
      replace: Whether to replace an earlier directory.

    Raises:
      UserError: If the directory exists and may not be replaced.
    """
    path = os.path.realpath(path) if os.path.islink(path) else path
    announce(path)
    temporary, system = _new_name(path), _system(path)
    made = make_folders(os.path.dirname(path.rstrip("/")))
    try:
        system.makedirs(temporary)
        yield temporary
        for folder, _, names in system.walk(temporary, topdown=False):
            for name in names:
                sync(os.path.join(folder, name))
            sync(folder)
        if replace:
            _replace_directory(temporary, path)
        else:
            _publish_directory(temporary, path)
        sync(os.path.dirname(path.rstrip("/")) or ".")
    except BaseException:
        remove(temporary)
        remove_empty(made)
        raise


def _publish_directory(temporary: str, path: str) -> None:
    """Renames a directory to `path`; raises `UserError` if `path` exists."""
    taken = UserError(
        f"{path} was written by another process meanwhile; rerun the command."
    )
    if exists(path):
        raise taken
    try:
        _system(path).rename(temporary, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise taken from error
        raise


def _replace_directory(temporary: str, path: str) -> None:
    """Renames a directory to `path`, and removes the earlier `path`."""
    system = _system(path)
    if not exists(path):
        system.rename(temporary, path)
        return
    if _exchange(temporary, path):
        remove(temporary)
        return
    previous = _new_name(path)
    system.rename(path, previous)
    try:
        system.rename(temporary, path)
    except BaseException:
        system.rename(previous, path)
        raise
    remove(previous)


def make_folders(path: str) -> list[str]:
    """Creates a local folder with parents; returns new ones, deepest first."""
    made = []
    if path and not paths.is_remote(path):
        above = path
        while above and not os.path.lexists(above):
            made.append(above)
            above = os.path.dirname(above)
        try:
            os.makedirs(path, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(
                f"{error.filename} is not a directory"
            ) from error
    return made


def remove_empty(folders: list[str]) -> None:
    """Removes the local folders that are empty."""
    for folder in folders:
        # `rmdir` fails if other processes have files in the folder: keep it.
        with contextlib.suppress(OSError):
            os.rmdir(folder)


# === Temporary files and directories ===


def _new_name(path: str) -> str:
    """Returns a new temporary path; removes old ones of killed processes."""
    _clear_once(os.path.abspath(path))
    name = f"{path.rstrip('/')}.tmp-{os.getpid()}-{secrets.token_hex(4)}"
    _own.add(os.path.abspath(name))
    return name


def is_temporary(path: str) -> bool:
    """Returns True for the path of a temporary file or folder."""
    return _TEMPORARY.fullmatch(path.rstrip("/")) is not None


@functools.cache
def _clear_once(path: str) -> None:
    folder, name = os.path.split(path)
    if not paths.is_remote(path):
        clear_temporaries(folder, re.escape(name))


def clear_temporaries(folder: str, names: str = ".+") -> None:
    """Removes temporary files and folders of processes that have ended.

    The name `a.csv.tmp-4711-0a1b2c3d` has the process id 4711. Processes of
    other containers or hosts are invisible, so they are treated as ended;
    `locks` prevents two processes from writing one output. If a new process has
    the id of a killed one, the files stay until the new one ends.

    Args:
      folder: A local folder; if it is missing, nothing is done.
      names: A regular expression for the names of the outputs.
    """
    if not os.path.isdir(folder):
        return
    pattern = re.compile(rf"(?:{names})\.tmp-(\d+)-[0-9a-f]{{8}}")
    with os.scandir(folder) as entries:
        found = [(x.path, pattern.fullmatch(x.name)) for x in entries]
    for path, match in found:
        if match is None or _is_alive(int(match[1]), path):
            continue
        logging.info("Removing %s, which a killed process left.", path)
        with contextlib.suppress(FileNotFoundError):
            remove(path)


def _is_alive(process: int, path: str) -> bool:
    """Returns True if the process that made a temporary path still exists."""
    if process == os.getpid():  # A killed process may have had this id.
        return os.path.abspath(path) in _own
    try:
        # A process of another user exists, too, but gets no signal.
        with contextlib.suppress(PermissionError):
            os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _exchange(first: str, second: str) -> bool:
    """Swaps two directories in one step; returns False if that is impossible.

    Remote paths cannot be swapped, nor can any path if the C library, kernel or
    file system lacks renameat2. Its other errors raise `OSError`.
    """
    if paths.is_remote(second):
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # This C library lacks the function.
        return False
    a, b = (os.fsencode(path.rstrip("/")) for path in (first, second))
    if not renameat2(_AT_FDCWD, a, _AT_FDCWD, b, _RENAME_EXCHANGE):
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), second)


def write_text(path: str, text: str) -> None:
    """Writes UTF-8 text atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str, contents: bytes) -> None:
    """Writes bytes atomically."""
    with atomic_file(path) as temporary, open_binary(temporary, "wb") as file:
        file.write(contents)


def write_json(path: str, values: Any) -> None:
    """Writes indented JSON atomically."""
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def read_bytes(path: str) -> bytes:
    """Returns the contents of a file."""
    with open_binary(path) as file:
        return file.read()


def read_small(path: str) -> bytes:
    """Returns a file's bytes; raises `UserError` for more than `MAX_BYTES`."""
    if size(path) > stored_files.MAX_BYTES:
        raise UserError(
            f"{path} is larger than {stored_files.MAX_BYTES} bytes, so it is "
            "not read as a whole; copy the model again."
        )
    return read_bytes(path)


def sha256(path: str, on_bytes: Callable[[int], object] | None = None) -> str:
    """Returns the SHA-256 of a file's contents, in hexadecimal.

    `on_bytes` is called with the number of bytes of each chunk that was read.
    """
    digest = hashlib.sha256()
    with open_binary(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            if on_bytes:
                on_bytes(len(chunk))
    return digest.hexdigest()


def fingerprint(path: str) -> str:
    """Returns a hash of a file's size, first megabyte and last megabyte.

    The hash misses changes in the middle, but reads only 2 MB of a 20 GB file.
    """
    digest = hashlib.blake2b(digest_size=16)
    with open_binary(path) as file:
        digest.update(file.read(_END_BYTES))
        file.seek(0, os.SEEK_END)
        num_bytes = file.tell()
        digest.update(num_bytes.to_bytes(8))
        file.seek(max(num_bytes - _END_BYTES, 0))
        digest.update(file.read(_END_BYTES))
    return digest.hexdigest()


def read_json(path: str) -> Any:
    """Returns the contents of a JSON file.

    Raises `UserError` if it is not valid JSON, too large, or not readable.
    """
    unread = (IsADirectoryError, PermissionError, *remote_errors(path))
    try:
        contents = read_small(path)
    except unread as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    return stored_files.parse_json(contents, path)


def read_json_object(path: str) -> dict[str, Any]:
    """Returns the object in a JSON file; raises `UserError` for other files."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise UserError(
            f"{path} must hold one JSON object. Received: "
            f"{type(values).__name__}."
        )
    return values


def read_bert_config(path: str) -> BertConfig:
    """Reads a `bert_config.json`; see `paths.resolve_config`."""
    path = require_file(paths.resolve_config(path), "--bert_config_file")
    return BertConfig.from_dict(read_json_object(path), path)

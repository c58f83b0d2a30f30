"""Atomic files and directories, local copies, path checks, hashes and JSON.

Everything goes through `tf.io.gfile`, so a path may be local or `gs://`.
TensorFlow is imported at first use: reading local tables needs none.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import types
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from bert_tf import errors
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import paths
from bert_tf.io import stored_files
from bert_tf.io import temporaries

_CHUNK_BYTES = 1 << 24

# Called with each path before a file or folder gets its name.
on_write: list[Callable[[str], object]] = []


def _tf() -> types.ModuleType:
    import tensorflow as tf

    return tf


def is_file(path: str) -> bool:
    """Returns True if a path exists and is no directory."""
    if not paths.is_remote(path):
        return os.path.exists(path) and not os.path.isdir(path)
    gfile = _tf().io.gfile
    return gfile.exists(path) and not gfile.isdir(path)


def exists(path: str) -> bool:
    """Returns True if there is a file or folder at a path."""
    if paths.is_remote(path):
        return _tf().io.gfile.exists(path)
    return os.path.exists(path)


def remove(path: str) -> None:
    """Removes a file, or a folder with its files, if there is one."""
    if paths.is_remote(path):
        gfile = _tf().io.gfile
        if gfile.exists(path):
            (gfile.rmtree if gfile.isdir(path) else gfile.remove)(path)
    elif os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def expand_globs(patterns: str, flag: str = "--input_file") -> list[str]:
    """Returns the files that match comma-separated globs, in sorted order.

    Raises:
      UserError: If a pattern is empty or matches no file.
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
    if "://" in path:
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def start_writing(path: str) -> None:
    """Starts to write a local file to the disk, so that `sync` waits less.

    The system also forgets what it has written, so a large file does not
    displace others in memory.
    """
    if "://" in path or not hasattr(os, "posix_fadvise"):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def announce(path: str) -> None:
    """Calls `on_write` for a path that is written in another way than here."""
    for call in on_write:
        call(path)


def _new_name(path: str) -> str:
    announce(path)
    return temporaries.new_name(path)


@contextlib.contextmanager
def atomic_file(path: str) -> Iterator[str]:
    """Yields a temporary path that is renamed to `path` on success.

    On failure it is removed. Missing folders are created. Readers of `path` see
    the old contents or the new ones, never a part.

    Raises:
      UserError: If `path` is a device, a pipe or a stream such as /dev/stdout,
        which the file would replace.
    """
    require_no_stream(path)
    folder = os.path.dirname(path)
    if folder:
        _tf().io.gfile.makedirs(folder)
    temporary = _new_name(path)
    try:
        with errors.naming(path):
            yield temporary
        sync(temporary)
        _tf().io.gfile.rename(temporary, path, overwrite=True)
        sync(folder or ".")
    except BaseException:
        if _tf().io.gfile.exists(temporary):
            _tf().io.gfile.remove(temporary)
        raise


@contextlib.contextmanager
def local_file(path: str) -> Iterator[str]:
    """Replaces a local file like `atomic_file`, without importing TensorFlow.

    Raises:
      OSError: If the disk is full, or the folder cannot be written.
    """
    require_no_stream(path)
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    temporary = _new_name(path)
    try:
        with errors.naming(path):
            yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(folder)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)


def require_no_stream(path: str) -> None:
    """Raises `UserError` for a device or a stream, which cannot be replaced."""
    if "://" in path or not os.path.lexists(path):
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
    if _tf().io.gfile.isdir(path):
        raise UserError(
            f"{flag} must name a file. Received a directory: {path!r}."
        )
    try:
        _try_to_write(os.path.dirname(path))
    except (OSError, _tf().errors.OpError) as error:
        raise UserError(
            f"{flag}={path} cannot be written ({errors.first_line(error)}); "
            "choose another path."
        ) from error


def require_other(output_file: str, *input_files: str) -> None:
    """Raises `UserError` if --output_file is one of the files to read."""
    if os.path.realpath(output_file) in map(os.path.realpath, input_files):
        raise UserError(
            "--output_file must differ from --input_file, which it would "
            f"replace. Received: {output_file!r} for both."
        )


def require_writable_folder(path: str, flag: str) -> None:
    """Raises `UserError` if no file can be written to a folder.

    A missing folder is created for the check, and removed again.
    """
    try:
        _try_to_write(path.rstrip("/"))
    except (OSError, _tf().errors.OpError) as error:
        raise UserError(
            f"{flag}={path} is not a writable folder "
            f"({errors.first_line(error)}); choose another."
        ) from error


def require_checkpoint_folder(path: str, flag: str) -> None:
    """Raises `UserError` if checkpoints cannot be kept in a folder."""
    if set(path) & set("[\\"):
        raise UserError(
            f"{flag} must not contain [ or \\, which TensorFlow reads as a "
            f"pattern in names of checkpoints. Received: {path!r}."
        )
    require_writable_folder(path, flag)


def _try_to_write(folder: str) -> None:
    """Writes a file to a folder, then removes it and any folders it created."""
    made = make_folders(folder)
    probe = temporaries.new_name(os.path.join(folder, "probe"))
    with _tf().io.gfile.GFile(probe, "wb") as file:
        file.write(b"")
    _tf().io.gfile.remove(probe)
    remove_empty(made)


@contextlib.contextmanager
def atomic_directory(path: str, replace: bool = True) -> Iterator[str]:
    """Yields a temporary directory that becomes `path` on success.

    An earlier directory of that name stays until the new one is complete, and
    a reader finds the old one or the new one. A killed process leaves a
    temporary directory, which the next one to write `path` removes.

    Args:
      path: The directory. If it is a link, the target is replaced.
      replace: Whether to replace an earlier one.

    Raises:
      UserError: If there is one that may not be replaced.
    """
    path = os.path.realpath(path) if os.path.islink(path) else path
    temporary = _new_name(path)
    made = make_folders(os.path.dirname(path.rstrip("/")))
    try:
        _tf().io.gfile.makedirs(temporary)
        yield temporary
        for folder, _, names in _tf().io.gfile.walk(temporary, topdown=False):
            for name in names:
                sync(os.path.join(folder, name))
            sync(folder)
        if replace:
            _replace_directory(temporary, path)
        else:
            _publish_directory(temporary, path)
        sync(os.path.dirname(path.rstrip("/")) or ".")
    except BaseException:
        if _tf().io.gfile.exists(temporary):
            _tf().io.gfile.rmtree(temporary)
        remove_empty(made)
        raise


def _publish_directory(temporary: str, path: str) -> None:
    """Renames a directory without replacing one that is not empty."""
    taken = UserError(
        f"{path} was written by another process meanwhile; rerun the command."
    )
    if _tf().io.gfile.exists(path):
        raise taken
    if "://" in path:
        _tf().io.gfile.rename(temporary, path)
        return
    try:
        os.rename(temporary, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise taken from error
        raise


def _replace_directory(temporary: str, path: str) -> None:
    """Renames a directory to `path`, and removes the earlier `path`."""
    if not _tf().io.gfile.exists(path):
        _tf().io.gfile.rename(temporary, path)
        return
    if temporaries.exchange(temporary, path):
        _tf().io.gfile.rmtree(temporary)
        return
    previous = temporaries.new_name(path)
    _tf().io.gfile.rename(path, previous)
    try:
        _tf().io.gfile.rename(temporary, path)
    except BaseException:
        _tf().io.gfile.rename(previous, path)
        raise
    _tf().io.gfile.rmtree(previous)


def make_folders(path: str) -> list[str]:
    """Creates a local folder and its parents; returns them, deepest first.

    Raises:
      OSError: If that is not possible.
    """
    made = []
    if path and "://" not in path:
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
    """Removes local folders, except those that are not empty."""
    for folder in folders:
        # Other processes may have written files to it.
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def write_text(path: str, text: str) -> None:
    """Writes UTF-8 text atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str, contents: bytes) -> None:
    """Writes bytes atomically."""
    with atomic_file(path) as temporary:
        with _tf().io.gfile.GFile(temporary, "wb") as file:
            file.write(contents)


def write_json(path: str, values: Any) -> None:
    """Writes indented JSON atomically, to a local path without TensorFlow."""
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    if paths.is_remote(path):
        write_text(path, text)
        return
    with local_file(path) as temporary:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)


def read_bytes(path: str) -> bytes:
    """Returns the contents of a file."""
    with _tf().io.gfile.GFile(path, "rb") as file:
        return file.read()


def sha256(path: str, on_bytes: Callable[[int], object] | None = None) -> str:
    """Returns the SHA-256 of a file's contents, in hexadecimal.

    `on_bytes` is called with numbers of bytes, for a progress bar.
    """
    digest = hashlib.sha256()
    is_remote = paths.is_remote(path)
    with (
        _tf().io.gfile.GFile(path, "rb")
        if is_remote
        else open(path, "rb") as file
    ):
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            if on_bytes:
                on_bytes(len(chunk))
    return digest.hexdigest()


def read_json(path: str) -> Any:
    """Returns the parsed contents of a JSON file.

    Raises:
      UserError: If it is not valid JSON, or not a readable file.
    """
    tf_errors = _tf().errors
    try:
        contents = read_bytes(path)
    # Raised for a directory, or a file without permission.
    except (
        tf_errors.FailedPreconditionError,
        tf_errors.PermissionDeniedError,
    ) as error:
        raise UserError(f"{path} cannot be read: {error.message}.") from error
    return stored_files.parse_json(contents, path)


def read_json_object(path: str) -> dict[str, Any]:
    """Returns the parsed contents of a JSON file that holds one object.

    Raises:
      UserError: If it is not valid JSON, or not an object.
    """
    values = read_json(path)
    if not isinstance(values, dict):
        raise UserError(
            f"{path} must hold one JSON object. Received: "
            f"{type(values).__name__}."
        )
    return values


def read_bert_config(path: str, flag: str = "--bert_config_file") -> BertConfig:
    """Reads a `bert_config.json`; see `paths.resolve_config`."""
    path = paths.resolve_config(path)
    require_file(path, flag)
    return BertConfig.from_dict(read_json_object(path), path)

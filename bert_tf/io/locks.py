"""Locks on files and folders, which end with the process that holds them.

They are the kernel's (flock), so no killed process leaves a lock behind. Remote
file systems such as gs:// have none: nothing is locked there.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from typing import IO
from typing import Any

from absl import logging

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import paths

# Errors of file systems without locks, or without locks on folders (NFS).
_UNSUPPORTED = (
    errno.EBADF,
    errno.EINVAL,
    errno.ENOLCK,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
)


def try_lock(file: IO[Any] | int) -> bool:
    """Locks an open file exclusively, until it is closed, if it is free.

    Returns:
      False if another process holds the lock.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_current(file: IO[Any] | int, path: str) -> bool:
    """Returns True if an open file still is the one at `path`.

    It is not if another process has renamed or removed it since it was opened.
    """
    descriptor = file if isinstance(file, int) else file.fileno()
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def lock(file: IO[Any] | int, path: str, advice: str) -> None:
    """Locks an open file exclusively, until it is closed.

    Args:
      file: The file, or its descriptor.
      path: The output that the lock protects.
      advice: What to do instead of waiting, for the error.

    Raises:
      UserError: If another process holds the lock.
    """
    if not try_lock(file):
        holder = _holder(file if isinstance(file, int) else file.fileno())
        process = f" (pid {holder})" if holder else ""
        raise UserError(
            f"Another process{process} writes {path}; wait until it has "
            f"finished, or {advice}."
        )


def open_locked(name: str, mode: str, path: str, advice: str) -> IO[Any]:
    """Opens a local file `name` and locks it, until it is closed.

    A file that another process renamed or removed between the two steps is
    closed again, and the file that has the name then is opened.

    Args: As for `lock`.

    Raises:
      UserError: If another process holds the lock.
    """
    while True:
        file = open(name, mode)  # noqa: SIM115
        try:
            lock(file, path, advice)
            if is_current(file, name):
                return file
        except BaseException:
            file.close()
            raise
        file.close()


@contextlib.contextmanager
def one_writer(folder: str, flag: str) -> Iterator[None]:
    """Locks an output folder; a second process that writes to it is refused.

    A missing folder is created, and removed at the end if it is empty. The lock
    is on the folder itself, so it adds no file. Remote folders are not locked.

    Args:
      folder: The value of the flag.
      flag: Its name, for the error.

    Raises:
      UserError: If another process holds the lock, or the folder cannot be
        opened.
    """
    if paths.is_remote(folder):
        yield
        return
    made: list[str] = []
    try:
        descriptor = _open_folder(folder, flag, made)
    except OSError as error:
        files.remove_empty(made)
        raise UserError(
            f"{flag}={folder} is not a writable folder ({error}); choose "
            "another."
        ) from error
    try:
        yield
    finally:
        files.remove_empty(made)
        os.close(descriptor)


def _open_folder(folder: str, flag: str, made: list[str]) -> int:
    """Returns a locked descriptor; appends created folders to `made`."""
    while True:
        made += files.make_folders(folder)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            lock(descriptor, folder, f"choose another {flag}")
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                os.close(descriptor)
                raise
            logging.warning(
                "%s=%s is on a file system without locks (%s); start no "
                "second process that writes to it.",
                flag,
                folder,
                error.strerror,
            )
        except BaseException:
            os.close(descriptor)
            raise
        if is_current(descriptor, folder):
            return descriptor
        os.close(descriptor)  # Another process has removed the folder.


@contextlib.contextmanager
def one_writer_beside(path: str, flag: str) -> Iterator[None]:
    """Locks a local output that is replaced as a whole; see `one_writer`.

    The lock is a file `<path>.lock`, which is removed at the end. A killed
    process leaves the file, without a lock on it, for the next run to remove.
    """
    if paths.is_remote(path):
        yield
        return
    name = f"{path.rstrip('/')}.lock"
    made: list[str] = []
    try:
        try:
            made += files.make_folders(os.path.dirname(name))
            file = open_locked(name, "a", path, f"choose another {flag}")
        except OSError as error:
            raise UserError(
                f"{flag}={path} could not be written ({error}); choose "
                "another path."
            ) from error
        with file:
            try:
                yield
            finally:
                os.remove(name)
    finally:
        files.remove_empty(made)


def _holder(descriptor: int) -> int | None:
    """Returns the id of the process that locked a file, if the kernel has it.

    It is unknown in another container, and on a network file system.
    """
    status = os.fstat(descriptor)
    major, minor = os.major(status.st_dev), os.minor(status.st_dev)
    place = f"{major:02x}:{minor:02x}:{status.st_ino}"
    try:
        with open("/proc/locks", encoding="utf-8") as file:
            rows = [line.split() for line in file]
    except OSError:  # Some containers hide it.
        return None
    for row in rows:
        # 1: FLOCK ADVISORY WRITE 4711 fe:00:2154805 0 EOF
        if row[1] == "FLOCK" and row[5] == place and int(row[4]) > 0:
            return int(row[4])
    return None


@contextlib.contextmanager
def exclusive(path: str, work: str) -> Iterator[None]:
    """Lets one process at a time make a local `path`; the others wait.

    Args:
      path: The file or folder; the lock is `<path>.lock` beside it.
      work: A verb for the log line of those that wait, as "fetches".

    Raises:
      UserError: If the folder of `path` cannot be written, or its file system
        has no locks.
    """
    folder = os.path.dirname(path)
    with contextlib.ExitStack() as stack:
        try:
            os.makedirs(folder, exist_ok=True)
            file = stack.enter_context(
                open(f"{path}.lock", "a", encoding="utf-8")
            )
            is_free = try_lock(file)
        except OSError as error:
            raise UserError(
                f"{folder} must be a writable folder on a file system with "
                f"locks. Received: {error}; choose another."
            ) from error
        if not is_free:
            logging.info("Another process %s %s; waiting for it.", work, path)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""Locks on files and folders; a lock ends with the process that holds it.

The kernel holds the locks (flock), so a killed process leaves no lock behind.
Remote file systems such as gs:// have no locks, so nothing is locked there.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from typing import IO
from typing import Any

from absl import logging

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import paths

# These errors mean that the file system has no locks. NFS has none for folders.
_UNSUPPORTED = (
    errno.EBADF,
    errno.EINVAL,
    errno.ENOLCK,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
)


def try_lock(file: IO[Any] | int) -> bool:
    """Locks an open file until it is closed; False if it is locked already."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_current(descriptor: int, path: str) -> bool:
    """Returns True if an open file is still the file at `path`.

    A lock on a file that another process renamed or removed protects nothing.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _open_locked(name: str, flags: int, path: str, flag: str) -> int | None:
    """Opens and locks a local file or folder, until the descriptor is closed.

    Returns None if another process has renamed or removed it meanwhile. Raises
    `UserError` if another process has the lock. On a file system without locks,
    only logs a warning.
    """
    with contextlib.ExitStack() as stack:
        descriptor = os.open(name, flags, 0o666)
        stack.callback(os.close, descriptor)
        try:
            is_free = try_lock(descriptor)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            logging.warning(
                "%s is on a file system without locks (%s); start no second "
                "process that writes to it.",
                path,
                error.strerror,
            )
            is_free = True
        if not is_free:
            raise UserError(
                f"Another process writes {path}; wait until it has finished, "
                f"or choose another {flag}."
            )
        if is_current(descriptor, name):
            stack.pop_all()
            return descriptor
    return None


@contextlib.contextmanager
def one_writer(
    path: str, flag: str, is_replaced: bool = False
) -> Iterator[None]:
    """Locks an output; a second process that writes to it is refused.

    A missing folder is created, and removed at the end if it is empty. The lock
    is on the folder itself, so there is no lock file. Temporary files of killed
    processes in the folder are removed. Remote outputs are not locked.

    Args:
      path: The flag's value, a folder; with `is_replaced`, a file or folder.
      flag: The name of the flag, for the error.
      is_replaced: Whether the output is a file or folder that is replaced as a
        whole. For such an output, the file `<path>.lock` is locked, and removed
        at the end. A killed process leaves this lock file, but unlocked.

    Raises:
      UserError: If another process has the lock, or the output is not writable.
    """
    if paths.is_remote(path):
        yield
        return
    name, flags, folder = path, os.O_DIRECTORY, path
    if is_replaced:
        name, flags = f"{path.rstrip('/')}.lock", os.O_CREAT | os.O_RDWR
        folder = os.path.dirname(name)
    made: list[str] = []
    descriptor = None
    try:
        try:
            while descriptor is None:
                made += files.make_folders(folder)
                descriptor = _open_locked(name, flags, path, flag)
        except OSError as error:
            raise UserError(
                f"{flag}={path} could not be written ({error}); choose another."
            ) from error
        if not is_replaced:
            files.clear_temporaries(path)
        yield
    finally:
        if is_replaced and descriptor is not None:
            os.remove(name)
        files.remove_empty(made)
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def exclusive(path: str, work: str) -> Iterator[None]:
    """Lets one process at a time make a local `path`; other processes wait.

    The lock is on the file `<path>.lock`. Waiting processes log `work`, such as
    "fetches". Raises `UserError` if the folder is not writable, or if its file
    system does not support locks.
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


class LocalCopy:
    """A local copy of a folder, shared by all processes of this machine.

    The first process that opens the copy copies the files; the last process
    that closes it removes them. Copied or pickled instances share these files.

    Args:
      folder: The folder, which may be remote. Files in it must not change.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._name = f"bert_tf-{secrets.token_hex(8)}"
        self._lock: IO[Any] | None = None

    def open(self) -> str:
        """Returns the path of the copy, which exists until `close`."""
        copy = self._path()
        name = f"{copy}.lock"
        while True:
            self._lock = open(name, "w")  # noqa: SIM115
            lock = self._lock.fileno()
            fcntl.flock(lock, fcntl.LOCK_SH)
            if os.path.exists(copy) and is_current(lock, name):
                return copy
            # While this process waits, another may make the copy: check again.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(copy) and is_current(lock, name):
                with files.atomic_directory(copy) as temporary:
                    files.copy_folder(self._folder, temporary)
            self._lock.close()

    def close(self) -> None:
        """Releases the copy; files that are mapped to memory stay readable."""
        if self._lock is None:
            return
        with self._lock:
            if try_lock(self._lock):  # No other process uses the copy.
                shutil.rmtree(self._path())
                os.remove(self._lock.name)
        self._lock = None

    def _path(self) -> str:
        return os.path.join(tempfile.gettempdir(), self._name)

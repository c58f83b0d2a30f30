"""A copy of a shared folder on this machine, once for all of its processes."""

import fcntl
import os
import secrets
import tempfile
from typing import TextIO

import tensorflow as tf

from bert_tf.io import files


class LocalCopy:
    """Copies a folder of files when it is opened; the last user removes it.

    Instances of other processes that were made by copying or pickling one of
    them use the same copy.

    Args:
      folder: The folder, which may be remote. Its files do not change.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._name = f"bert_tf-{secrets.token_hex(8)}"
        self._lock: TextIO | None = None

    def open(self) -> str:
        """Returns the path of the copy, which stays until `close`."""
        copy = self._path()
        while True:
            self._lock = open(f"{copy}.lock", "w")  # noqa: SIM115
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            if os.path.exists(copy) and self._is_current():
                return copy
            # From one lock to the other, somebody else may have been faster.
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if not os.path.exists(copy) and self._is_current():
                self._fetch(copy)
            self._lock.close()

    def close(self) -> None:
        """Gives the copy up; whoever has mapped its files keeps them."""
        if self._lock is None:
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # Somebody else uses it.
        else:
            tf.io.gfile.rmtree(self._path())
            os.remove(self._lock.name)
        finally:
            self._lock.close()
            self._lock = None

    def _path(self) -> str:
        return os.path.join(tempfile.gettempdir(), self._name)

    def _is_current(self) -> bool:
        """Returns whether nobody has removed the lock's file meanwhile."""
        try:
            there = os.stat(self._lock.name)
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(self._lock.fileno()), there)

    def _fetch(self, copy: str) -> None:
        with files.atomic_directory(copy) as temporary:
            for name in tf.io.gfile.listdir(self._folder):
                tf.io.gfile.copy(
                    os.path.join(self._folder, name),
                    os.path.join(temporary, name),
                )

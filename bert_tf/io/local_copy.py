"""A local copy of a folder that the processes of a machine share."""

import fcntl
import os
import secrets
import tempfile
from typing import TextIO

import tensorflow as tf

from bert_tf.io import files
from bert_tf.io import locks


class LocalCopy:
    """A local copy of a folder, shared by all processes of this machine.

    The first process that opens it copies the files, the last one that closes
    it removes them. Instances made by copying or pickling share one copy.

    Args:
      folder: The folder, which may be remote. Its files must not change.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._name = f"bert_tf-{secrets.token_hex(8)}"
        self._lock: TextIO | None = None

    def open(self) -> str:
        """Returns the path of the copy, which exists until `close`."""
        copy = self._path()
        while True:
            self._lock = open(f"{copy}.lock", "w")  # noqa: SIM115
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            if os.path.exists(copy) and self._is_current():
                return copy
            # Another process may have been faster between the two locks.
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if not os.path.exists(copy) and self._is_current():
                self._fetch(copy)
            self._lock.close()

    def close(self) -> None:
        """Releases the copy; files that are mapped stay readable."""
        if self._lock is None:
            return
        with self._lock:
            if locks.try_lock(self._lock):  # No other process uses the copy.
                tf.io.gfile.rmtree(self._path())
                os.remove(self._lock.name)
        self._lock = None

    def _path(self) -> str:
        return os.path.join(tempfile.gettempdir(), self._name)

    def _is_current(self) -> bool:
        """Returns true if the lock's file was not removed meanwhile."""
        return locks.is_current(self._lock, self._lock.name)

    def _fetch(self, copy: str) -> None:
        with files.atomic_directory(copy) as temporary:
            for name in tf.io.gfile.listdir(self._folder):
                tf.io.gfile.copy(
                    os.path.join(self._folder, name),
                    os.path.join(temporary, name),
                )

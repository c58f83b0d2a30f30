"""Folders that are slow to make: made once, shared by all test processes."""

import atexit
import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Callable

# Names the folder that the processes of a test run share; tests/conftest.py
# sets it.
VARIABLE = "BERT_TF_TESTS_MADE_ONCE"


def folder(name: str, make: Callable[[str], None]) -> str:
    """Returns a folder that `make` has filled; tests must not change it.

    Args:
      name: Distinguishes it from other folders.
      make: Fills the empty folder whose path it gets.
    """
    path = os.path.join(_root(), name)
    # Others wait here; once the folder is complete, the file has contents.
    with open(f"{path}.lock", "a+", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if not lock.read():
            shutil.rmtree(path, ignore_errors=True)
            os.mkdir(path)
            make(path)
            lock.write("complete")
    return path


@functools.cache
def _root() -> str:
    path = os.environ.get(VARIABLE)
    if path is None:
        # Without a shared folder, this process uses its own.
        path = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, path)
    os.makedirs(path, exist_ok=True)
    return path

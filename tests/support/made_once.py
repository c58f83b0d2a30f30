"""Folders that take long to make: once for all tests and their processes."""

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
    # Other processes wait until it is complete.
    with open(f"{path}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path):
            unfinished = tempfile.mkdtemp(dir=_root())
            make(unfinished)
            os.rename(unfinished, path)
    return path


@functools.cache
def _root() -> str:
    path = os.environ.get(VARIABLE)
    if path is None:
        # Of this process alone.
        path = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, path)
    os.makedirs(path, exist_ok=True)
    return path

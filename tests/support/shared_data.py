"""Paths of the goldens and the real data next to the checkout."""

import os
import pathlib
import unittest

_SHARED = pathlib.Path(__file__).resolve().parents[3] / "shared"


def _find(path: pathlib.Path) -> str:
    if path.exists():
        return str(path)
    # The goldens are required in continuous integration, not in a clone.
    if os.environ.get("CI"):
        raise FileNotFoundError(f"{path} must be there in CI.")
    raise unittest.SkipTest(f"{path} is not on this machine.")


def golden(name: str) -> str:
    """Returns the path of a golden, or skips the test if it is missing."""
    return _find(_SHARED / "golden" / name)


def data(name: str) -> str:
    """Returns the path of real data, or skips the test if it is missing."""
    return _find(_SHARED / "data" / name)

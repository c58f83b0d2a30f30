"""Where the tests find the goldens and the real data beside the checkout."""

import os
import pathlib
import unittest

_SHARED = pathlib.Path(__file__).resolve().parents[3] / "shared"


def _find(path: pathlib.Path) -> str:
    if path.exists():
        return str(path)
    # Continuous integration must compare with the goldens, a clone need not.
    if os.environ.get("CI"):
        raise FileNotFoundError(f"{path} must be there in CI.")
    raise unittest.SkipTest(f"{path} is not on this machine.")


def golden(name: str) -> str:
    """Returns the path of a golden, or skips the test where there is none."""
    return _find(_SHARED / "golden" / name)


def data(name: str) -> str:
    """Returns the path of real data, or skips the test where there is none."""
    return _find(_SHARED / "data" / name)

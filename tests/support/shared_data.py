"""Paths of the goldens in the repository and of large data beside the clone."""

import gzip
import json
import os
import unittest

from tests.support import repository

_GOLDEN = repository.ROOT / "tests" / "golden"
_DATA = repository.ROOT.parent / "shared" / "data"


def golden(name: str) -> str:
    """Returns the path of a golden; see tests/golden/NOTICE."""
    return str(_GOLDEN / name)


def squad_articles() -> list[dict]:
    """Returns the 48 articles of SQuAD 1.1's development set."""
    with gzip.open(golden("squad_dev/dev-v1.1.json.gz")) as file:
        return json.load(file)["data"]


def data(name: str) -> str:
    """Returns the path of a corpus or data set; skips the test if missing.

    Raises:
      FileNotFoundError: If it is missing in continuous integration.
    """
    path = _DATA / name
    if path.exists():
        return str(path)
    if os.environ.get("CI"):
        raise FileNotFoundError(f"{path} must be there in CI.")
    raise unittest.SkipTest(f"{path} is not on this machine.")

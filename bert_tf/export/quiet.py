"""Silences log messages about the steps of an export."""

import contextlib
from collections.abc import Iterator

from absl import logging


@contextlib.contextmanager
def below(level: int) -> Iterator[None]:
    """Silences log messages below a level, such as `logging.ERROR`."""
    before = logging.get_verbosity()
    logging.set_verbosity(level)
    try:
        yield
    finally:
        logging.set_verbosity(before)

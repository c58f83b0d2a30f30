"""Writes the log of a run to `train.log` in its output directory."""

import contextlib
import logging as python_logging
import os
import sys
from collections.abc import Iterator
from logging import handlers as logging_handlers

import tensorflow as tf
from absl import logging

from bert_tf.errors import Preempted
from bert_tf.errors import UserError
from bert_tf.io import terminal

FILE = "train.log"

# Log lines stay in memory until the run may write to the output directory.
_CAPACITY = 10_000


class _Recorder(logging_handlers.MemoryHandler):
    """Keeps records until `open_in`, then appends them to a file."""

    def __init__(self) -> None:
        super().__init__(_CAPACITY, flushLevel=python_logging.CRITICAL + 1)

    def open_in(self, output_dir: str) -> None:
        self.close_file()
        tf.io.gfile.makedirs(output_dir)
        path = os.path.join(output_dir, FILE)
        self.setTarget(_Appender(tf.io.gfile.GFile(path, "a")))
        self.flush()
        self.capacity = 1

    def close_file(self) -> None:
        if self.target is not None:
            self.flush()
            self.target.close()
            self.setTarget(None)


class _Appender(python_logging.StreamHandler):
    """Appends lines to a file, and stops at the first error of the disk."""

    def __init__(self, stream) -> None:
        super().__init__(stream)
        self.setFormatter(terminal.LineFormatter("%Y-%m-%d %H:%M:%S"))
        self._has_ended = False
        # After an error, drop all lines, as writing them would fail again.
        self.addFilter(lambda record: not self._has_ended)

    def handleError(self, record: python_logging.LogRecord | None) -> None:  # noqa: N802
        del record
        if not self._has_ended:
            self._has_ended = True
            logging.error("%s ends here: %s", FILE, sys.exc_info()[1])

    def close(self) -> None:
        try:
            self.stream.close()
        except (OSError, tf.errors.OpError):
            self.handleError(None)
        super().close()


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Keeps the log of the block in memory until `open_in` is called.

    If a run is refused before `open_in`, no file is written.
    """
    # Add absl's handler, or Python would not show warnings on the screen.
    logging.use_absl_handler()
    recorder = _Recorder()
    python_logging.getLogger().addHandler(recorder)
    try:
        yield
    except BaseException as error:
        record = python_logging.makeLogRecord({"levelno": python_logging.INFO})
        record.msg = str(error)
        if not isinstance(error, (Preempted, UserError)):
            record.msg = f"Ended by {type(error).__name__}"
            record.exc_info = (type(error), error, error.__traceback__)
        recorder.emit(record)
        raise
    finally:
        python_logging.getLogger().removeHandler(recorder)
        recorder.close_file()


def open_in(output_dir: str) -> None:
    """Appends the log of `recording` to `train.log`; for the chief only."""
    for handler in python_logging.getLogger().handlers:
        if isinstance(handler, _Recorder):
            handler.open_in(output_dir)

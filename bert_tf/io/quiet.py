"""Silences TensorFlow's noise, and messages about the steps of an export."""

import contextlib
import ctypes
import importlib.util
import os
from collections.abc import Iterator

from absl import logging

_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")
# TensorFlow's own Abseil, which no environment variable reaches. In a version
# without these names its messages appear again, which changes nothing else.
_LIBRARY = "libtensorflow_framework.so.2"
_SET_LEVEL = "_ZN4absl12lts_2025012714SetMinLogLevelENS0_18LogSeverityAtLeastE"
_ABSEIL_ERROR = 2


@contextlib.contextmanager
def below(level: int) -> Iterator[None]:
    """Silences log messages below a level, such as `logging.ERROR`."""
    before = logging.get_verbosity()
    logging.set_verbosity(level)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def drop_noise() -> None:
    """Silences C++ messages that are no errors, for scripts.

    Call it before TensorFlow is imported. TF_CPP_MIN_LOG_LEVEL below 2 keeps
    all messages.
    """
    # Where there is no GPU, TensorFlow reports that as an error. At level 3 the
    # last words of a process that is aborted are still written.
    has_gpu = any(map(os.path.exists, _GPU_FILES))
    default = "2" if has_gpu else "3"
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", default) < "2":
        return
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        return
    path = os.path.join(os.path.dirname(spec.origin), _LIBRARY)
    with contextlib.suppress(AttributeError, OSError):
        getattr(ctypes.CDLL(path), _SET_LEVEL)(_ABSEIL_ERROR)

"""Log lines of scripts, above progress bars, and titled sections of a report.

Messages of TensorFlow that help no user are silenced.
"""

import contextlib
import ctypes
import importlib.util
import itertools
import logging as python_logging
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from collections.abc import Mapping

from absl import logging

# A log record with this attribute may be hidden; see `_StepFilter`.
SHOWN = "shown_without_bar"
# Log files get at most one progress line in this number of seconds.
SECONDS_BETWEEN_LINES = 10.0

_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")
# Libraries that log through Abseil, the second one since TensorFlow 2.21. No
# environment variable sets Abseil's log level, so `drop_noise` calls a C++
# function. If a library lacks the function, all its messages appear.
_LIBRARIES = (
    "libtensorflow_framework.so.2",
    "python/profiler/internal/_pywrap_profiler_plugin.so",
)
# absl::SetMinLogLevel has these symbols in TensorFlow 2.20 and 2.21.
_SET_LEVEL = [
    f"_ZN4absl12lts_{release}14SetMinLogLevelENS0_18LogSeverityAtLeastE"
    for release in (20250127, 20250814)
]
_ABSEIL_ERROR = 2


class LineFormatter(python_logging.Formatter):
    """Formats records as "14:03:12 text"; other levels than INFO are named."""

    def __init__(self, date: str = "%H:%M:%S") -> None:
        super().__init__("%(asctime)s %(level)s%(message)s", date)

    def formatMessage(self, record: python_logging.LogRecord) -> str:  # noqa: N802
        is_plain = record.levelno == python_logging.INFO
        record.level = "" if is_plain else f"{record.levelname}: "
        return super().formatMessage(record)


class _AboveBars:
    """A stream that writes above the progress bars of standard error."""

    def write(self, text: str) -> None:
        import tqdm

        tqdm.tqdm.write(wrap(text), file=sys.stderr, end="")

    def flush(self) -> None:
        sys.stderr.flush()

    def close(self) -> None:
        """Does nothing, so that standard error stays open."""


class _StepFilter(python_logging.Filter):
    """Hides the lines of steps on a terminal, where a bar shows the steps.

    A record's attribute `SHOWN` names its kind. Without a terminal, "always"
    lines are shown, and "sometimes" lines at most every ten seconds. With
    --verbosity=1, "in_file" lines are shown, too.
    """

    def __init__(self, verbosity: int) -> None:
        super().__init__()
        self._last = 0.0
        self._shows_details = verbosity >= logging.DEBUG

    def filter(self, record: python_logging.LogRecord) -> bool:
        shown = getattr(record, SHOWN, None)
        if shown is None:
            return True
        if shown == "in_file":
            return self._shows_details
        is_due = record.created - self._last >= SECONDS_BETWEEN_LINES
        if sys.stderr.isatty() or not (is_due or shown == "always"):
            return False
        self._last = record.created
        return True


def detail(message: str, *args: object) -> None:
    """Logs a line to train.log, and with --verbosity=1 to the screen, too."""
    logging.info(message, *args, extra={SHOWN: "in_file"})


def wrap(text: str) -> str:
    """Returns a line, broken between words if standard error is a terminal."""
    line = text.rstrip("\n")
    if "\n" in line or not sys.stderr.isatty():
        return text
    wrapped = textwrap.fill(
        line,
        shutil.get_terminal_size().columns,
        subsequent_indent=" " * 9,  # As wide as the time before the message.
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped + text[len(line) :]


def show_log(verbosity: int) -> None:
    """Shows the log on standard error, from the level `verbosity` of absl.

    Log files get `INFO` and up, whatever `verbosity` is.
    """
    logging.use_absl_handler()
    # On a new machine, Matplotlib would log at INFO that it lists the fonts.
    python_logging.getLogger("matplotlib").setLevel(python_logging.WARNING)
    logging.set_verbosity(max(verbosity, logging.INFO))
    handler = logging.get_absl_handler()
    handler.setLevel(logging.converter.absl_to_standard(verbosity))
    handler.setFormatter(LineFormatter())
    handler.python_handler.addFilter(_StepFilter(verbosity))
    handler.python_handler.stream = _AboveBars()


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
    """Silences C++ messages that report no error, for scripts.

    Call it before TensorFlow's import. TF_CPP_MIN_LOG_LEVEL below 2 keeps all.
    """
    # Without a GPU, TensorFlow logs a needless error, which level 3 hides. A
    # process that aborts still logs why.
    has_gpu = any(map(os.path.exists, _GPU_FILES))
    default = "2" if has_gpu else "3"
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", default) < "2":
        return
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        return
    # TensorFlow 2.21 ignores the log level while libraries load: hide stderr.
    libraries = []
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        stderr = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            for name in _LIBRARIES:
                path = os.path.join(os.path.dirname(spec.origin), name)
                libraries.append(ctypes.CDLL(path))
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
    for library, name in itertools.product(libraries, _SET_LEVEL):
        with contextlib.suppress(AttributeError):
            getattr(library, name)(_ABSEIL_ERROR)


def sections(texts: Mapping[str, str]) -> str:
    """Returns texts, indented, under their titles."""
    return "\n\n".join(
        f"{title}\n\n{textwrap.indent(text.rstrip(), '    ')}"
        for title, text in texts.items()
    )

"""Log lines of scripts, above progress bars, and their closing report."""

import logging as python_logging
import sys
import textwrap
from collections.abc import Mapping

from absl import logging

# Extra attribute of log records: "always" or "sometimes".
SHOWN = "shown_without_bar"
# A log file gets a progress line at most this often.
SECONDS_BETWEEN_LINES = 10.0


class LineFormatter(python_logging.Formatter):
    """Formats a record as "14:03:12 message"; WARNING and above are named.

    Args:
      date: The format of the time.
    """

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

        tqdm.tqdm.write(text, file=sys.stderr, end="")

    def flush(self) -> None:
        sys.stderr.flush()

    def close(self) -> None:
        """Leaves standard error open."""


class _StepFilter(python_logging.Filter):
    """Hides the lines of steps on a terminal, where a bar shows them.

    Elsewhere a line is shown if it must be, or the last one is old enough.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last = 0.0

    def filter(self, record: python_logging.LogRecord) -> bool:
        shown = getattr(record, SHOWN, None)
        if shown is None:
            return True
        is_due = record.created - self._last >= SECONDS_BETWEEN_LINES
        if sys.stderr.isatty() or not (is_due or shown == "always"):
            return False
        self._last = record.created
        return True


def show_log(verbosity: int) -> None:
    """Shows the log of this script on standard error.

    Args:
      verbosity: absl's level of the lines to show; files get all lines from
        `INFO` on, whatever it is.
    """
    logging.use_absl_handler()
    # It reports that it lists the fonts of a new machine.
    python_logging.getLogger("matplotlib").setLevel(python_logging.WARNING)
    logging.set_verbosity(max(verbosity, logging.INFO))
    handler = logging.get_absl_handler()
    handler.setLevel(logging.converter.absl_to_standard(verbosity))
    handler.setFormatter(LineFormatter())
    handler.python_handler.addFilter(_StepFilter())
    handler.python_handler.stream = _AboveBars()


def sections(texts: Mapping[str, str]) -> str:
    """Returns texts, indented, under their titles."""
    return "\n\n".join(
        f"{title}\n\n{textwrap.indent(text.rstrip(), '    ')}"
        for title, text in texts.items()
    )

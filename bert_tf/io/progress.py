"""Progress bars that show rate and remaining time."""

import collections
import statistics
import sys
from collections.abc import Mapping
from typing import Any

import tqdm

from bert_tf.io import terminal

_ON_TERMINAL = "{desc} {n_fmt}/{total_fmt} |{bar}| {rate_fmt}, {time_left}"
_IN_FILE = "{desc}: {n_fmt} of {total_fmt}, {rate_fmt}, {time_left}"


def time_left(units: int, rate: float | None) -> str:
    """Returns a text such as "00:30 left"; `rate` is in units per second."""
    if units > 0 and not rate:
        return "time left unknown"
    return f"{tqdm.tqdm.format_interval(max(units, 0) / (rate or 1))} left"


class Rate:
    """Units per second: the median of recent calls, as some calls compile."""

    def __init__(self) -> None:
        self._recent: collections.deque[float] = collections.deque(maxlen=100)
        self._is_first = True

    def add(self, units: int, seconds: float) -> None:
        """Adds a call that took some seconds for some units."""
        if not self._is_first:
            self._recent.append(units / seconds)
        self._is_first = False

    @property
    def value(self) -> float | None:
        """Units per second; None before call 3, as call 2 may compile, too."""
        if len(self._recent) < 2:
            return None
        return statistics.median_high(self._recent)


class Bar(tqdm.tqdm):
    """A progress bar that can show a rate that was measured elsewhere."""

    # Whether the bar shows `_rate` instead of the rate that tqdm measures.
    _has_rate = False
    _rate: float | None = None

    @property
    def format_dict(self) -> Mapping[str, Any]:
        values = super().format_dict
        if self._has_rate:
            # With no rate, set `elapsed` to 0: otherwise tqdm computes a rate.
            elapsed = values["elapsed"] if self._rate else 0
            values |= {"rate": self._rate, "elapsed": elapsed}
        left = time_left((self.total or 0) - self.n, values["rate"])
        return values | {"time_left": left}

    def move_to(self, n: int, rate: float | None) -> None:
        """Moves the bar to `n`; then shows `rate`, or no rate if it is None."""
        self._has_rate, self._rate = True, rate
        self.update(n - self.n)


class _Lines:
    """A stream for bars that writes each new state of a bar as a line."""

    encoding = "utf-8"
    _last = ""

    def write(self, text: str) -> None:
        line = text.strip()
        if line and line != self._last:
            sys.stderr.write(line + "\n")
            self._last = line

    def flush(self) -> None:
        sys.stderr.flush()


def bar(
    total: int | None,
    description: str,
    unit: str,
    initial: int = 0,
    hidden: bool = False,
    leave: bool = True,
) -> Bar:
    """Returns a bar on standard error; call `update(n)` after `n` units.

    If standard error is a file, a line is written every ten seconds.

    Args:
      total: The number of units, if it is known.
      description: The text before the numbers.
      unit: The name of one unit; "B" for bytes.
      initial: The number of units that an earlier run has done.
      hidden: Whether to show nothing.
      leave: Whether the finished bar stays on the terminal.
    """
    on_terminal = sys.stderr.isatty()
    every = terminal.SECONDS_BETWEEN_LINES
    return Bar(
        total=total,
        desc=description,
        unit=unit,
        unit_scale=unit == "B",
        initial=initial,
        disable=hidden,
        leave=leave,
        bar_format=total
        and (_ON_TERMINAL if on_terminal else _IN_FILE) + "{postfix}",
        dynamic_ncols=on_terminal,
        mininterval=0.2 if on_terminal else every,
        maxinterval=every,
        # A log file gets no line if the work takes less than ten seconds.
        delay=0 if on_terminal else every,
        file=sys.stderr if on_terminal else _Lines(),
    )

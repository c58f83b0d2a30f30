"""Progress bars that show rate and remaining time."""

import sys
from collections.abc import Mapping
from typing import Any

import tqdm

from bert_tf.io import terminal

_BYTES = "B"
_ON_TERMINAL = "{desc} {n_fmt}/{total_fmt} |{bar}| {speed}, {remaining} left"
_IN_FILE = "{desc}: {n_fmt} of {total_fmt}, {speed}, {remaining} left"


class Bar(tqdm.tqdm):
    """A progress bar with whole numbers and rates in words."""

    @property
    def format_dict(self) -> Mapping[str, Any]:
        values = super().format_dict
        rate, elapsed = values["rate"], values["elapsed"]
        if rate is None and elapsed > 0:
            rate = (self.n - self.initial) / elapsed
        return values | {"speed": _speed(rate, self.unit)}

    def restart_clock(self) -> None:
        """Measures the rate from now on, without what took time before."""
        if self.disable:
            return
        self.initial = self.last_print_n = self.n
        self.start_t = self.last_print_t = self._time()
        self._ema_dn = tqdm.std.EMA(self.smoothing)
        self._ema_dt = tqdm.std.EMA(self.smoothing)

    def move_to(self, n: int, counts: bool = True) -> None:
        """Moves the bar; the rate is without a step that does not count."""
        if counts:
            self.update(n - self.n)
            return
        self.n = n
        self.restart_clock()
        self.refresh()


class _Lines:
    """A stream for bars that writes each state of a bar as a line."""

    encoding = "utf-8"

    def write(self, text: str) -> None:
        if text.strip():
            sys.stderr.write(text.strip() + "\n")

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

    A file, in place of a terminal, gets a line every ten seconds.

    Args:
      total: The number of units, if it is known.
      description: A noun or verb before the numbers.
      unit: The name of one unit; "B" for bytes.
      initial: The number of units that were done in an earlier run.
      hidden: Whether to show nothing, because another worker shows it.
      leave: Whether the finished bar stays on the terminal.
    """
    on_terminal = sys.stderr.isatty()
    every = terminal.SECONDS_BETWEEN_LINES
    return Bar(
        total=total,
        desc=description,
        unit=unit,
        unit_scale=unit == _BYTES,
        initial=initial,
        disable=hidden,
        leave=leave,
        bar_format=total
        and (_ON_TERMINAL if on_terminal else _IN_FILE) + "{postfix}",
        dynamic_ncols=on_terminal,
        mininterval=0.2 if on_terminal else every,
        maxinterval=every,
        # A file gets no line of what takes less.
        delay=0 if on_terminal else every,
        file=sys.stderr if on_terminal else _Lines(),
    )


def _speed(rate: float | None, unit: str) -> str:
    """Formats a rate, as "3.2 rows/s", or "1.5 s/row" for slow ones."""
    if unit == _BYTES:
        return f"{tqdm.tqdm.format_sizeof(rate) if rate else '? '}B/s"
    plural = "batches" if unit == "batch" else f"{unit}s"
    if not rate:
        return f"? {plural}/s"
    if rate < 1:
        return f"{1 / rate:.1f} s/{unit}"
    return f"{rate:,.{1 if rate < 100 else 0}f} {plural}/s"


def duration(seconds: float) -> str:
    """Formats a duration as "1:02:03" or "4 days 1:02:03"."""
    days, rest = divmod(round(seconds), 24 * 60 * 60)
    clock = tqdm.tqdm.format_interval(rest)
    return f"{days} days {clock}" if days else clock

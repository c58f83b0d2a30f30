"""Progress bars that show rate and remaining time."""

import sys

import tqdm

# A terminal redraws its line; a log file gets a new line each time.
_SECONDS_BETWEEN_LINES = 10.0


def bar(
    total: int | None,
    description: str,
    unit: str,
    initial: int = 0,
    hidden: bool = False,
) -> tqdm.tqdm:
    """Returns a bar on standard error; call `update(n)` after `n` units.

    `total` may be unknown. `initial` units were done in an earlier run. A
    hidden bar shows nothing, because another worker shows it.
    """
    terminal = sys.stderr.isatty()
    return tqdm.tqdm(
        total=total,
        desc=description,
        unit=f" {unit}",
        unit_scale=True,
        initial=initial,
        disable=hidden,
        dynamic_ncols=terminal,
        mininterval=0.2 if terminal else _SECONDS_BETWEEN_LINES,
        maxinterval=_SECONDS_BETWEEN_LINES,
        file=sys.stderr,
    )


def duration(seconds: float) -> str:
    """Formats a duration as "1:02:03" or "4 days 1:02:03"."""
    days, rest = divmod(round(seconds), 24 * 60 * 60)
    clock = tqdm.tqdm.format_interval(rest)
    return f"{days} days {clock}" if days else clock

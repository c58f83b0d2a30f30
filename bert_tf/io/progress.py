"""Progress bars with rate and time left."""

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
    """Returns a bar on standard error; call `update(n)` as work gets done.

    Args:
      total: How many units there are in all, or None if nobody knows.
      description: What is being done, for instance "tokenizing".
      unit: The name of one unit of work, for instance "token".
      initial: Units that were done before.
      hidden: Whether to show nothing, as another worker shows the same.
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
    """Returns how long something takes, as "1:02:03" or "4 days 1:02:03"."""
    days, rest = divmod(round(seconds), 24 * 60 * 60)
    clock = tqdm.tqdm.format_interval(rest)
    return f"{days} days {clock}" if days else clock

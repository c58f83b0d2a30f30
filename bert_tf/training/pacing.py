"""How many training steps one call into the graph runs."""

import time


class Pacer:
    """Decides how many steps one call into the graph runs.

    A call ends where something is due, and after at most `seconds`, so that
    the progress line moves.

    Args:
      last_step: Where training ends.
      intervals: Steps whose multiples end a call.
      seconds: The most a call may take.
    """

    # A step may be slower than the ones before it.
    _MARGIN = 0.7
    _GROWTH = 4

    def __init__(
        self, last_step: int, intervals: tuple[int, ...], seconds: float = 10.0
    ):
        self._last_step = last_step
        self._intervals = intervals
        self._budget = seconds * self._MARGIN
        self._most = 1
        self._begin = 0.0

    def next_call(self, step: int) -> int:
        """Returns how many steps to run after `step` steps; 0 at the end."""
        if step == 0:
            # The first step has a metrics line of its own.
            return min(1, self._last_step)
        ends = [(step // every + 1) * every for every in self._intervals]
        return min(self._most, min(ends) - step, self._last_step - step)

    def start(self) -> None:
        """Starts the clock."""
        self._begin = time.monotonic()

    def stop(self, num_steps: int) -> float:
        """Takes note of how long a call of `num_steps` took, in seconds."""
        seconds = max(time.monotonic() - self._begin, 1e-6)
        affordable = int(self._budget * num_steps / seconds)
        self._most = max(1, min(affordable, self._most * self._GROWTH))
        return seconds

"""The number of training steps that one call into the graph runs."""

import time


class Pacer:
    """Decides how many steps one call into the graph runs.

    A call ends where a metrics line or checkpoint is due, at multiples of the
    `intervals`, and after at most 10 seconds, so that the progress bar moves.
    """

    # Seconds. A step may be slower than the ones before it.
    _BUDGET = 0.7 * 10.0
    _GROWTH = 4

    def __init__(self, last_step: int, intervals: tuple[int, ...]):
        self._last_step = last_step
        self._intervals = intervals
        self._max_steps = 1
        self._begin = 0.0

    def next_call(self, step: int) -> int:
        """Returns the number of steps of the next call; 0 at the end."""
        if step == 0:
            # The first step gets its own metrics line.
            return min(1, self._last_step)
        ends = [(step // every + 1) * every for every in self._intervals]
        return min(self._max_steps, min(ends) - step, self._last_step - step)

    def start(self) -> None:
        """Starts the clock."""
        self._begin = time.monotonic()

    def stop(self, num_steps: int) -> float:
        """Records and returns the seconds that a call of `num_steps` took."""
        seconds = max(time.monotonic() - self._begin, 1e-6)
        affordable = int(self._BUDGET * num_steps / seconds)
        self._max_steps = max(
            1, min(affordable, self._max_steps * self._GROWTH)
        )
        return seconds

"""SIGTERM, with which a machine is taken away: what is done is kept."""

import contextlib
import signal
import threading
from collections.abc import Iterator

from bert_tf.errors import Preempted


class Preemption:
    """Heeds SIGTERM for as long as the context lasts.

    The first one raises `Preempted` wherever the process is just then, as
    Control-C does; whoever writes files leaves them whole. Within `deferred`
    it is only noted. The second one ends the process at once.

    Python lets the main thread alone heed signals; in another one the context
    does nothing.

    Attributes:
      requested: Whether there was a SIGTERM.
    """

    def __init__(self) -> None:
        self.requested = False
        self._is_deferred = False
        self._before = None

    def __enter__(self) -> "Preemption":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._heed)
        return self

    def __exit__(self, *error) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Lets a stretch of the work see to `requested` itself."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        if self.requested:
            raise _stopped()

    def _heed(self, number, frame) -> None:
        """Handles the signal."""
        del number, frame
        # No log here: the signal may have come while a line was written.
        self.requested = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if not self._is_deferred:
            raise _stopped()


def _stopped() -> Preempted:
    return Preempted(
        "Stopped as asked (SIGTERM); start the same command again to go on."
    )

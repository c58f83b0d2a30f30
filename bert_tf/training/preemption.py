"""Handles SIGTERM, so that a preempted run ends with its work saved."""

import contextlib
import signal
import threading
from collections.abc import Iterator

from bert_tf.distribute import devices as device_setup
from bert_tf.distribute.devices import Devices
from bert_tf.errors import Preempted
from bert_tf.flags.devices import DeviceConfig


class Preemption:
    """A context that handles SIGTERM.

    The first SIGTERM raises `Preempted` wherever the process is, as Control-C
    does; files are written atomically, so they stay whole. Within `deferred`
    the signal only sets `requested`. A second SIGTERM ends the process at once.

    Python handles signals in the main thread only; in another thread the
    context does nothing.

    Attributes:
      requested: Whether SIGTERM was received.
    """

    def __init__(self) -> None:
        self.requested = False
        self._is_deferred = False
        self._before = None

    def __enter__(self) -> "Preemption":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._handle)
        return self

    def __exit__(self, *error) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Delays `Preempted` until the block ends; it may check `requested`."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        if self.requested:
            raise _stopped()

    def _handle(self, number, frame) -> None:
        """Handles the signal."""
        del number, frame
        # No logging here: the signal may interrupt the logging of a line.
        self.requested = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if not self._is_deferred:
            raise _stopped()


@contextlib.contextmanager
def prepare(config: DeviceConfig) -> Iterator[tuple[Devices, Preemption]]:
    """Prepares the devices of a run, and handles SIGTERM in the block."""
    with Preemption() as preemption:
        # Workers must connect before TensorFlow computes anything.
        devices = device_setup.prepare(config)
        with devices.together():
            yield devices, preemption


def _stopped() -> Preempted:
    return Preempted("Stopped on SIGTERM; rerun the same command to resume.")

"""Ends the server on SIGTERM and SIGINT, whatever it is doing."""

import os
import select
import signal
import threading

from absl import logging


def watch(stopped: threading.Event, grace_seconds: float) -> None:
    """Sets `stopped` at the first signal; a second ends the process at once.

    So does the end of the grace period. This works while the main thread waits
    in TensorFlow, where Python would run no handler: the interpreter writes the
    signal's number into a pipe that a thread reads.

    Args:
      stopped: Tells the main thread to end the server.
      grace_seconds: Time from the first signal to the end of the process.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    threading.Thread(
        target=_wait,
        args=(reader, stopped, grace_seconds),
        name="signals",
        daemon=True,
    ).start()


def _wait(reader: int, stopped: threading.Event, grace_seconds: float) -> None:
    os.read(reader, 1)
    stopped.set()
    is_second, _, _ = select.select([reader], [], [], grace_seconds)
    logging.error(
        "Ending at once: %s.",
        "a second signal came"
        if is_second
        else f"stopping took more than {grace_seconds:.0f} seconds",
    )
    logging.flush()
    os._exit(128 + signal.SIGTERM)

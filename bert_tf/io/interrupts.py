"""Ends scripts quietly on Ctrl-C."""

import os
import signal
import types

from bert_tf.errors import INTERRUPTED

_MESSAGE = "Interrupted.\n"


def end_at_once() -> None:
    """Makes Ctrl-C print "Interrupted." and exit, without exit handlers.

    Call this before slow imports, or else Ctrl-C prints a traceback.
    """
    signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: types.FrameType | None) -> None:
    del number, frame
    os.write(2, _MESSAGE.encode())
    os._exit(INTERRUPTED)


class Interrupt:
    """Makes Ctrl-C raise `KeyboardInterrupt`; the second ends the process.

    Attributes:
      received: Whether the user has pressed Ctrl-C.
      message: The text that a script prints when Ctrl-C ends it.
    """

    message = _MESSAGE

    def __init__(self) -> None:
        self.received = False

    def __enter__(self) -> None:
        signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, *error) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        del frame
        self.received = True
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

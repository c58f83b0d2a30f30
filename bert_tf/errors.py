"""Exceptions that end a script early: user errors and preemption."""


class UserError(ValueError):
    """A user's mistake: a bad input, flag, file or combination of them.

    Its message is one sentence: what was expected, what was received, what to
    do. Scripts print it without a traceback and exit with status 1; in Python
    it is an ordinary `ValueError`.
    """


class WorkerEndedError(UserError):
    """A worker process was killed; finished work is kept."""


class NotFiniteError(UserError):
    """A run's loss or weights are no longer finite, so it stops.

    Other trials of the same command continue: only the hyperparameters of this
    one are bad.
    """


# The exit status after Ctrl-C, as shells report it: 128 + SIGINT.
INTERRUPTED = 130


class Preempted(BaseException):
    """The run received SIGTERM or Ctrl-C, saved its state and stops.

    Its message describes that. Scripts log it and exit with `status`. Like
    `KeyboardInterrupt` it is not an `Exception`, so that no handler on the way
    catches it.

    Attributes:
      status: The exit status: 0, or 130 after Ctrl-C.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

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


class Preempted(BaseException):
    """The run received SIGTERM, saved its state and stops.

    Its message describes that. Scripts log it and exit with status 0. Like
    `KeyboardInterrupt` it is not an `Exception`, so that no handler on the way
    catches it.
    """

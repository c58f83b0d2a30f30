"""What ends a script early: a user's mistake, or a request to stop."""


class UserError(ValueError):
    """A mistake of the user: bad input, flag, file or combination of them.

    Its message is one sentence for a person: what was expected, what was
    received, what to do. Scripts print it without a traceback and exit with 1;
    in Python it is a `ValueError` like any other.
    """


class WorkerEndedError(UserError):
    """A process that helped was ended from outside; what is done is kept."""


class NotFiniteError(UserError):
    """What a run computes is not finite any more, so it cannot go on.

    Of several runs the others may: it is the settings of this one that are bad.
    """


class Preempted(BaseException):
    """The run was asked to stop (SIGTERM), and keeps what it has done.

    Its message is a sentence on that. Scripts log it and exit with 0. Like
    `KeyboardInterrupt` it is no `Exception`, as nothing is to catch it on the
    way.
    """

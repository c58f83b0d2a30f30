"""The error that a user can mend."""


class UserError(ValueError):
    """A mistake of the user: bad input, flag, file or combination of them.

    Its message is one sentence for a person: what was expected, what was
    received, what to do. Scripts print it without a traceback and exit with 1;
    in Python it is a `ValueError` like any other.
    """

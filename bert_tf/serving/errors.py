"""Errors of requests, with TensorFlow's codes and HTTP's statuses."""

import functools
from collections.abc import Callable

import grpc
import tensorflow as tf

from bert_tf.flags.serve import ServeLimits

# HTTP statuses by TensorFlow's codes (http_server.cc of TensorFlow Serving);
# other codes have the status 500.
_HTTP_STATUS = {
    tf.errors.CANCELLED: 499,
    tf.errors.INVALID_ARGUMENT: 400,
    tf.errors.DEADLINE_EXCEEDED: 504,
    tf.errors.NOT_FOUND: 404,
    tf.errors.ALREADY_EXISTS: 409,
    tf.errors.PERMISSION_DENIED: 403,
    tf.errors.UNAUTHENTICATED: 401,
    tf.errors.RESOURCE_EXHAUSTED: 429,
    tf.errors.FAILED_PRECONDITION: 400,
    tf.errors.ABORTED: 409,
    tf.errors.OUT_OF_RANGE: 400,
    tf.errors.UNIMPLEMENTED: 501,
    tf.errors.UNAVAILABLE: 503,
}
# Maximum characters of a name and of a message. The rest is cut, because gRPC
# drops an answer with a very long message.
MAX_SHOWN = 200
_MAX_MESSAGE = 1000
# gRPC's codes by number. TensorFlow and gRPC use the same numbers.
GRPC_CODES = {code.value[0]: code for code in grpc.StatusCode}


class RequestError(Exception):
    """A request that is answered with an error.

    Args:
      code: One of the codes in `tf.errors`.
      message: The full text, for logs. The attribute `message` is a shortened
        text in valid Unicode, for the client.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.http_status = _HTTP_STATUS.get(code, 500)
        # Escape surrogates, which UTF-8 cannot encode.
        cut = _cut(message, _MAX_MESSAGE)
        self.message = cut.encode(errors="backslashreplace").decode()

    @property
    def code_name(self) -> str:
        """The code's name, such as "INVALID_ARGUMENT"."""
        return GRPC_CODES[self.code].name


class OverloadError(RequestError):
    """The server is too busy: HTTP status 503, code RESOURCE_EXHAUSTED."""

    def __init__(self, message: str) -> None:
        super().__init__(tf.errors.RESOURCE_EXHAUSTED, message)
        self.http_status = 503


class TooLargeError(RequestError):
    """A limit is exceeded: HTTP status 413, code RESOURCE_EXHAUSTED."""

    def __init__(self, message: str) -> None:
        super().__init__(tf.errors.RESOURCE_EXHAUSTED, message)
        self.http_status = 413


def check_limit(
    size: int, limits: ServeLimits, flag: str, subject: str, unit: str = "bytes"
) -> None:
    """Raises `TooLargeError` if a size exceeds the limit that a flag sets.

    The error's message begins with `subject`, such as "The body".
    """
    limit = getattr(limits, flag)
    if size > limit:
        raise TooLargeError(
            f"{subject} exceeds the limit of {limit} {unit}, set by --{flag}."
        )


def _with_code(code: int) -> Callable[[str], RequestError]:
    return functools.partial(RequestError, code)


# For example, `not_found(message)` returns a `RequestError` with NOT_FOUND.
invalid = _with_code(tf.errors.INVALID_ARGUMENT)
not_found = _with_code(tf.errors.NOT_FOUND)
failed_precondition = _with_code(tf.errors.FAILED_PRECONDITION)
permission_denied = _with_code(tf.errors.PERMISSION_DENIED)
deadline_exceeded = _with_code(tf.errors.DEADLINE_EXCEEDED)
unavailable = _with_code(tf.errors.UNAVAILABLE)
unimplemented = _with_code(tf.errors.UNIMPLEMENTED)
cancelled = _with_code(tf.errors.CANCELLED)


def shortened(name: str) -> str:
    """Returns a name from a request, cut and escaped for a message."""
    escaped = "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape").decode()
        for character in name[: MAX_SHOWN + 1]
    )
    return _cut(escaped, MAX_SHOWN)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "..."


def from_exception(error: BaseException) -> RequestError:
    """Converts any exception to the error that the client receives."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, tf.errors.OpError):
        code = error.error_code if error.error_code in GRPC_CODES else 2
        # Drop the stack trace of the exporting program: no client can use it.
        message = str(error.message).split("\n\nOriginal stack trace", 1)[0]
        return RequestError(code, message)
    if isinstance(error, UnicodeDecodeError):
        # TensorFlow's message quotes bytes of the inputs that are not UTF-8, so
        # Python cannot decode it.
        return invalid("The model cannot read bytes of the inputs.")
    if isinstance(error, MemoryError):
        return RequestError(
            tf.errors.RESOURCE_EXHAUSTED, "The request does not fit in memory."
        )
    return RequestError(tf.errors.INTERNAL, f"{type(error).__name__}: {error}")

"""Checks of request bodies: size, gzip, JSON structure, fields of protos.

Parsing a few bytes may take a lot of time and memory, so all limits are checked
before a body is parsed.
"""

import contextlib
import functools
import zlib
from collections.abc import Callable
from collections.abc import Iterator

import numpy as np
from google.protobuf import descriptor
from starlette import requests

from bert_tf.flags.serve import ServeLimits
from bert_tf.serving import errors
from bert_tf.serving.servable import Arrays

# Bodies above this size are parsed in a thread, so other requests do not wait.
LARGE_BYTES = 1 << 17
# Memory limit of all large bodies, as a multiple of --max_request_bytes.
_MAX_LARGEST_BODIES = 16
# An answer takes this many times its array's bytes: the array plus JSON text.
ANSWER_COPIES = 4
_MARKS = b'"[]{},'
_NO_MARKS = bytes(set(range(256)) - set(_MARKS))
_CHUNK = 1 << 20
# Memory of a Python string in bytes, in addition to its characters.
_STRING_BYTES = 56
NO_PROTO = "The message is not a valid proto."
# In smaller messages, fields cannot fill the memory, so they are not counted.
COUNTED_BYTES = 1 << 14
# A decoded integer takes 8 bytes, far less than other fields, so `count_fields`
# counts 8 integers as one field.
_NUMBERS_PER_FIELD = 8
_FIXED_SIZES = {1: 8, 5: 4}
_FIELD = descriptor.FieldDescriptor
# A field of these types counts as one: decoding does not enlarge its values.
_FLAT = (_FIELD.CPPTYPE_STRING, _FIELD.CPPTYPE_FLOAT, _FIELD.CPPTYPE_DOUBLE)
# Only the last byte of a packed integer is below 128. So delete all other bytes
# to count the integers.
_WITHOUT_END = bytes(range(128, 256))


def _table(dtype: type, **values: int) -> np.ndarray:
    table = np.zeros(256, dtype)
    for character, value in values.items():
        table[ord(character)] = value
    return table


_STEPS = _table(np.int8, **{"[": 1, "{": 1, "]": -1, "}": -1})
# Estimated bytes of memory per JSON character: 32 per quote, so 64 per string.
_COSTS = _table(np.int32, **{"[": 64, "{": 64, '"': 32, ",": 16})


class Bodies:
    """Limits the memory of the bodies and answers of requests in progress.

    The methods must be called in the event loop, because no lock guards them.
    """

    def __init__(self, limits: ServeLimits) -> None:
        self._limits = limits
        self._room = (
            _MAX_LARGEST_BODIES * limits.max_request_bytes
            + ANSWER_COPIES * limits.max_response_bytes
        )
        self._num_bytes = 0

    @contextlib.contextmanager
    def room(self) -> Iterator[Callable[[int], None]]:
        """Yields a function that reserves bytes until the `with` block ends.

        This function raises `RequestError` if too many bytes are in use.
        """
        reserved = 0

        def reserve(num_bytes: int) -> None:
            nonlocal reserved
            if self._num_bytes + num_bytes > self._room:
                raise errors.OverloadError(
                    "Too many large requests are in progress; try again later."
                )
            self._num_bytes += num_bytes
            reserved += num_bytes

        try:
            yield reserve
        finally:
            self._num_bytes -= reserved

    async def read(
        self, request: requests.Request, reserve: Callable[[int], None]
    ) -> bytes:
        """Returns the body of a request, still compressed if it was gzip.

        Raises:
          RequestError: If the body is too large or the client disconnects.
        """
        for coding in request.headers.getlist("transfer-encoding"):
            if coding.strip().lower() != "chunked":
                raise errors.unimplemented(
                    "The only transfer coding is chunked; send gzip with the "
                    "header content-encoding."
                )
        length = request.headers.get("content-length", "0")
        if length.isdecimal():
            self._check_size(int(length[:19]))
        chunks = []
        size = 0
        try:
            async for chunk in request.stream():
                size += len(chunk)
                self._check_size(size)
                if size > LARGE_BYTES:
                    reserve(len(chunk))
                chunks.append(chunk)
        except requests.ClientDisconnect as error:
            raise errors.cancelled("The client has gone away.") from error
        return b"".join(chunks)

    def _check_size(self, size: int) -> None:
        subject = "The body of the request"
        errors.check_limit(size, self._limits, "max_request_bytes", subject)


def gunzip(body: bytes, max_bytes: int) -> bytes:
    """Returns the contents of a gzip file, cut after `max_bytes + 1` bytes.

    Raises:
      RequestError: If the body is not a complete gzip file of one member.
    """
    file = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        # Allow one byte more than the limit, to detect larger contents. If zlib
        # stopped at the limit, it might not read the trailer and set `eof`.
        contents = file.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise errors.invalid(f"The body is not gzip: {error}") from error
    # Refuse several gzip members: unpacking thousands would take seconds.
    if len(contents) <= max_bytes and (not file.eof or file.unused_data):
        raise errors.invalid("The body is not a gzip file of one member.")
    return contents


def check_unpacked(size: int, limits: ServeLimits) -> None:
    """Raises `RequestError` if an unpacked body is too large."""
    subject = "The body without compression"
    errors.check_limit(size, limits, "max_unpacked_bytes", subject)


def check_json(text: bytes, limits: ServeLimits) -> None:
    """Raises `RequestError` if parsed JSON would be too large or too deep.

    The size is estimated from the quotes, and from brackets and commas outside
    strings. So `[["a"],"["]` has depth 2 and takes 2 * 64 + 4 * 32 + 16 bytes.
    """
    check_unpacked(len(text), limits)
    if (
        len(text) <= LARGE_BYTES
        and text.count(b"[") + text.count(b"{") <= limits.max_json_depth
    ):
        return
    # Remove escapes, so that every quote begins or ends a string.
    marks = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = np.frombuffer(marks.translate(None, _NO_MARKS), np.uint8)
    depth = cost = in_string = 0
    for first in range(0, len(marks), _CHUNK):
        chunk = marks[first : first + _CHUNK]
        is_quote = chunk == ord('"')
        inside = (np.cumsum(is_quote, dtype=np.uint8) + in_string) & 1
        in_string = int(inside[-1])
        is_outside = is_quote | (inside == 0)
        depths = depth + np.cumsum(_STEPS[chunk] * is_outside, dtype=np.int32)
        depth = int(depths[-1])
        cost += int((_COSTS[chunk] * is_outside).sum())
        errors.check_limit(
            depths.max(),
            limits,
            "max_json_depth",
            "The depth of the JSON",
            "lists and objects",
        )
        check_unpacked(cost, limits)


def check_rows(num_rows: int, limits: ServeLimits) -> None:
    """Raises `RequestError` if a request has too many rows."""
    subject = f"A request of {num_rows} rows"
    errors.check_limit(num_rows, limits, "max_request_rows", subject, "rows")


def num_bytes(values: Arrays) -> int:
    """Returns the bytes that a model's inputs or outputs take in memory."""
    size = 0
    for value in values.values():
        size += value.nbytes
        if value.dtype.hasobject:
            size += sum(_STRING_BYTES + len(x) for x in value.flat)
    return size


def check_response(num_bytes: int, limits: ServeLimits) -> None:
    """Raises `RequestError` if the outputs of a request are too large."""
    errors.check_limit(num_bytes, limits, "max_response_bytes", "The answer")


@functools.cache
def _kinds(kind: descriptor.Descriptor) -> dict:
    """Returns message types by field number; None means a field of integers."""
    return {
        field.number: field.message_type
        for field in kind.fields
        if field.cpp_type not in _FLAT
    }


def count_fields(
    content: bytes, kind: descriptor.Descriptor, limits: ServeLimits
) -> int:
    """Returns the number of fields of a serialized message, at all depths.

    Count before decoding: 2 encoded bytes may become an object of 100 bytes.

    Raises:
      RequestError: If there are too many fields, or `content` is invalid.
    """
    count = 0
    parts = [(kind, 0, len(content))]

    def varint(position: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = content[position]
            value |= (byte & 127) << shift
            position += 1
            shift += 7
            if byte < 128 or shift == 70:
                return value, position

    while parts:
        kind, position, end = parts.pop()
        kinds = _kinds(kind)
        while position < end:
            count += 1
            try:
                tag, position = varint(position)
                wire_type = tag & 7
                size = _FIXED_SIZES.get(wire_type)
                if size is None:
                    size, position = varint(position)
            except IndexError:
                raise errors.invalid(NO_PROTO) from None
            if wire_type == 0:  # A varint: `size` holds its value.
                size = 0
            elif wire_type == 2 and tag >> 3 in kinds:
                child = kinds[tag >> 3]
                if child is not None:
                    parts.append((child, position, position + size))
                else:
                    numbers = content[position : position + size]
                    ends = len(numbers.translate(None, _WITHOUT_END))
                    count += ends // _NUMBERS_PER_FIELD
            elif wire_type not in _FIXED_SIZES and wire_type != 2:
                raise errors.invalid(NO_PROTO)  # Our protos have no groups.
            position += size
            if count > limits.max_message_fields:
                flag, subject = "max_message_fields", "The message"
                errors.check_limit(count, limits, flag, subject, "fields")
        if position > end:
            raise errors.invalid(NO_PROTO)
    return count

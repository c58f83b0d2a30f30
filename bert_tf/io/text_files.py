"""Reads text and JSON files from users: UTF-8, CRLF, byte order mark, .gz."""

import contextlib
import contextvars
import glob
import hashlib
import json
import os
import re
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from bert_tf.errors import UserError
from bert_tf.io import compression
from bert_tf.io import files

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# JSON writes a character above U+FFFF as two escapes, a surrogate pair.
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CHARACTERS_SHOWN = 20

_KINDS = {str: "a string", int: "a whole number", list: "a list"}
_hashes: contextvars.ContextVar[dict[str, str] | None] = contextvars.ContextVar(
    "hashes", default=None
)


@contextlib.contextmanager
def collect_hashes() -> Iterator[dict[str, str]]:
    """Collects the SHA-256 of files while the block reads them to their ends.

    Yields a dict from path to hash, in hexadecimal.
    """
    hashes: dict[str, str] = {}
    token = _hashes.set(hashes)
    try:
        yield hashes
    finally:
        _hashes.reset(token)


def read_lines(path: str) -> Iterator[tuple[int, str]]:
    r"""Yields the lines of a UTF-8 text file with their numbers, from 1.

    The line end, \n or \r\n, is removed, and so is a byte order mark at the
    start of the file. A file with an ending such as ".gz" is decompressed.

    Raises:
      UserError: If the file does not exist, is damaged or not UTF-8, or its
        lines end with \r alone.
    """
    files.require_file(path, "The path")
    hashes = _hashes.get()
    digest = hashlib.sha256()
    on_block = None if hashes is None else digest.update
    with compression.open_decompressed(path, on_block) as file:
        for number, contents in enumerate(file, start=1):
            if number == 1:
                contents = contents.removeprefix(_BYTE_ORDER_MARK)
                _check_first(contents, path)
            yield number, _decode(contents, path, number)
        if hashes is not None:
            hashes[path] = digest.hexdigest()


def check_starts(
    patterns: str, read: Callable[[str], Iterator[Any]] = read_lines
) -> None:
    """Raises `UserError` if local files begin with no text; skips pipes."""
    for pattern in map(str.strip, patterns.split(",")):
        for path in filter(os.path.isfile, glob.iglob(pattern)):
            next(read(path), None)


def _check_first(contents: bytes, path: str) -> None:
    if b"\0" in contents:
        raise UserError(
            f"{path}, line 1 has characters of value 0, as UTF-16 and binary "
            "files have; give a file of text in UTF-8."
        )
    if b"\r" in contents[:-1] and not contents.endswith(b"\n"):
        raise UserError(
            f"{path} ends its lines with CR alone; save it with LF or CRLF."
        )


def _decode(contents: bytes, path: str, number: int) -> str:
    contents = contents.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return contents.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number} is not UTF-8 at byte {error.start} of the "
            "line; save the file as UTF-8."
        ) from error


def read_json(path: str) -> Any:
    """Returns the parsed contents of a UTF-8 JSON file, compressed or not.

    Raises `UserError` if the file is missing, damaged or not valid JSON.
    """
    text = "\n".join(line for _, line in read_lines(path))
    values = parse_json(text, path)
    check_characters(text, values, path)
    return values


def parse_json(text: str, path: str, line: int = 1, advice: str = "") -> Any:
    """Returns the value of the JSON that begins in a line of a file.

    Raises `UserError` if it is not valid JSON; the message ends with `advice`.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line += error.lineno - 1
        reason = f"{error.msg} at column {error.colno}"
        raise UserError(
            f"{path}, line {line} is not valid JSON: {reason}{advice}."
        ) from error
    # Python raises these errors for very long numbers and very deep nesting.
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}, line {line} is not readable JSON: {error}."
        ) from error


def check_characters(text: str, values: Any, where: str) -> None:
    r"""Raises `UserError` if JSON has half of a surrogate pair.

    For example, a program that cuts an emoji in two writes "\ud83d" without
    "\ude00". UTF-8 cannot encode half of a pair.
    """
    if not _SURROGATE_ESCAPE.search(text):
        return
    characters = json.dumps(values, ensure_ascii=False)
    if half := _SURROGATE.search(characters):
        start = max(0, half.start() - _CHARACTERS_SHOWN)
        raise UserError(
            f"{where} has half of a character, {half[0]!a}, after "
            f"{characters[start : half.start()]!r}; remove it or add the "
            "other half."
        )


def require_value(entry: Any, key: str, kind: type, where: str) -> Any:
    """Returns `entry[key]`, which is of the type `kind`: str, int or list.

    Raises `UserError`, which begins with `where`, if there is no such value.
    """
    if not isinstance(entry, dict):
        received = type(entry).__name__
    elif key not in entry:
        received = f"the keys {sorted(entry)[:9]}" if entry else "no keys"
    elif type(entry[key]) is not kind:
        received = f"{entry[key]!r:.40}"
    else:
        return entry[key]
    raise UserError(
        f"{where} must be an object with {key!r}, {_KINDS[kind]}. Received: "
        f"{received}."
    )

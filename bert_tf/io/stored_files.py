"""Reads the files of models and exports: regular files, strict JSON, schemas.

A model may come from anyone, so its files are checked before use: only regular
files are opened, and each value in their JSON must be of the expected kind.
Symbolic links to regular files are followed, because Hugging Face's cache
consists of links. TensorFlow is imported for remote files only.
"""

import json
import math
import os
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from bert_tf.errors import UserError
from bert_tf.io import paths

_MAX_NUMBER = 2**31 - 1
_SHOWN = 200
# Larger files are refused, because they are read into memory as a whole. The
# tokenizer.json of a large vocabulary has a seventh of this size.
MAX_BYTES = 1 << 27


class Kind(NamedTuple):
    """The values that a key of a JSON object may have.

    Attributes:
      expected: A description of the allowed values, for error messages.
      fits: Returns True for an allowed value.
    """

    expected: str
    fits: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) < 1e38 and math.isfinite(value)


FLAG = Kind("true or false", lambda value: isinstance(value, bool))
TEXT = Kind("a text", _is_text)
NUMBER = Kind("a finite number", _is_number)
OBJECT = Kind("an object", lambda value: isinstance(value, Mapping))


def integer(least: int = 1, most: int = _MAX_NUMBER) -> Kind:
    """Returns the kind of integers from `least` to `most`, both included."""
    return Kind(
        f"an integer from {least} to {most}",
        lambda value: type(value) is int and least <= value <= most,
    )


def names(least: int = 1) -> Kind:
    """Returns the kind of lists of at least `least` different texts."""

    def fits(value):
        is_list = isinstance(value, list | tuple) and all(map(_is_text, value))
        return is_list and len(set(value) - {""}) == len(value) >= least

    return Kind("a list of different texts", fits)


def choice(*values: str) -> Kind:
    """Returns the kind that allows the given texts only."""
    return Kind(
        f"one of {', '.join(values)}",
        lambda value: isinstance(value, str) and value in values,
    )


def either(*kinds: Kind) -> Kind:
    """Returns the kind that allows each value that one of `kinds` allows."""
    return Kind(
        " or ".join(kind.expected for kind in kinds),
        lambda value: any(kind.fits(value) for kind in kinds),
    )


def optional(kind: Kind) -> Kind:
    """Returns a kind that also allows null."""
    return either(kind, Kind("null", lambda value: value is None))


def list_of(kind: Kind) -> Kind:
    """Returns the kind that allows lists of values of the given kind."""
    return Kind(
        f"a list of which each is {kind.expected}",
        lambda value: (
            isinstance(value, list | tuple) and all(map(kind.fits, value))
        ),
    )


def object_of(
    required: Mapping[str, Kind], others: Mapping[str, Kind] | None = None
) -> Kind:
    """Returns the kind of objects with `required` and maybe `others` keys."""
    kinds = {**required, **(others or {})}
    words = [f"{key}: {kind.expected}" for key, kind in kinds.items()]

    def fits(value):
        return (
            isinstance(value, Mapping)
            and set(required) <= set(value) <= set(kinds)
            and all(kinds[key].fits(value[key]) for key in value)
        )

    return Kind(f"an object of {', '.join(words)}", fits)


def check(
    values: Mapping[str, Any],
    schema: Mapping[str, Kind],
    source: str,
    required: tuple[str, ...] = (),
) -> None:
    """Raises `UserError` if a value is not of the kind that its key requires.

    Args:
      values: A JSON object; keys that the schema lacks are not checked.
      schema: Key to kind.
      source: The path of the file, for error messages.
      required: Keys that must be present.
    """
    for key, kind in schema.items():
        if key not in values and key in required:
            raise UserError(
                f"{source} lacks the key {key!r}, {kind.expected}; copy the "
                "model again."
            )
        if key in values and not kind.fits(values[key]):
            raise UserError(
                f"{source}: {key!r} must be {kind.expected}. Received: "
                f"{shown(values[key])}; copy the model again or correct the "
                "file."
            )


def shown(value: Any) -> str:
    """Returns the `repr` of a value, cut to a length for messages."""
    try:
        text = repr(value)
    except ValueError:  # Python formats no integer of thousands of digits.
        text = f"an {type(value).__name__} of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def exists(path: str) -> bool:
    """Returns True for a regular file, and False if nothing exists there.

    Raises `UserError` for directories, pipes, devices and loops of links.
    """
    if paths.is_remote(path):
        from bert_tf.io import files

        return files.is_file(path)
    if os.path.isfile(path):
        return True
    try:
        if not os.path.lexists(path):
            return False
    except ValueError as error:  # The path has a NUL.
        raise UserError(f"{path!r} is no path: {error}.") from error
    raise UserError(
        f"{path} must be a regular file, or a link to one. Received: another "
        "kind of file; copy the model again."
    )


def require(path: str) -> str:
    """Returns the path of a regular file; `UserError` if there is none."""
    if not exists(path):
        raise UserError(f"There is no {path}; copy the model again.")
    return path


def is_base_name(name: Any) -> bool:
    """Returns True for the name of a file without any folder."""
    return (
        _is_text(name)
        and name not in ("", ".", "..")
        and name == os.path.basename(name)
    )


def is_inside(name: Any) -> bool:
    """Returns True for a relative path that does not leave its folder."""
    return _is_text(name) and all(map(is_base_name, name.split("/")))


def read_object(path: str) -> dict[str, Any]:
    """Returns the JSON object in a regular file; else raises `UserError`."""
    require(path)
    from bert_tf.io import files

    return files.read_json_object(path)


def peek_object(path: str) -> dict[str, Any]:
    """Returns the JSON object in a local file; {} if it cannot be read."""
    try:
        return read_object(path)
    except (OSError, UserError):
        return {}


def parse_json(contents: bytes | str, source: str) -> Any:
    """Returns the value of UTF-8 JSON without repeated keys.

    Raises `UserError` for damaged JSON, a repeated key, or very deep nesting.
    """

    def to_object(pairs):
        values = dict(pairs)
        if len(values) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"the key {shown(twice)} stands twice")
        return values

    try:
        if isinstance(contents, bytes):
            contents = contents.decode("utf-8")
        values = json.loads(contents, object_pairs_hook=to_object)
        if "\\u" in contents:  # Half of a surrogate pair raises an error here.
            json.dumps(values, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{source} is not valid JSON: {str(error)[:_SHOWN]}."
        ) from error
    return values

"""JSON files that people hand in, and what is expected in them."""

import json
import re
from typing import Any

from bert_tf.errors import UserError
from bert_tf.io import text_lines

# What stands for half of a character beyond U+FFFF, and that half.
_ESCAPE_OF_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")
_CHARACTERS_SHOWN = 20

_KINDS = {str: "a string", int: "a whole number", list: "a list"}


def read_json(path: str) -> Any:
    """Returns what a UTF-8 JSON file holds; ".gz" at its end is unpacked.

    Raises:
      UserError: If there is no such file, it is damaged, or no JSON.
    """
    text = "\n".join(line for _, line in text_lines.read_lines(path))
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {error.lineno} is not valid JSON: {error.msg} at "
            f"column {error.colno}."
        ) from error
    except RecursionError as error:
        raise UserError(
            f"{path} is not valid JSON: lists in lists without end."
        ) from error
    except ValueError as error:  # A number that is too long for Python.
        raise UserError(f"{path} cannot be read: {error}.") from error
    check_characters(text, values, path)
    return values


def check_characters(text: str, values: Any, where: str) -> None:
    r"""Raises `UserError` if JSON holds half of a character.

    Such as "\ud83d" without the "\ude00" that makes an emoji of it, where a
    program has cut a text in the middle of one. It cannot be written in UTF-8.

    Args:
      text: The JSON.
      values: What it holds.
      where: The file and the place in it, for the error.
    """
    if not _ESCAPE_OF_HALF.search(text):
        return
    characters = json.dumps(values, ensure_ascii=False)
    if half := _HALF.search(characters):
        start = max(0, half.start() - _CHARACTERS_SHOWN)
        raise UserError(
            f"{where} holds half of a character, {half[0]!a}, behind "
            f"{characters[start : half.start()]!r}; remove it or put in the "
            "other half."
        )


def get(entry: Any, key: str, kind: type, where: str) -> Any:
    """Returns `entry[key]`, a value of this kind.

    Args:
      entry: What the file holds at this place.
      key: The key that must be there.
      kind: str, int or list.
      where: The file and the place in it, for the error.

    Raises:
      UserError: If `entry` is no object or has no such value.
    """
    if not isinstance(entry, dict):
        received = type(entry).__name__
    elif key not in entry:
        received = f"the keys {sorted(entry)[:9]}" if entry else "no keys"
    elif not isinstance(entry[key], kind) or isinstance(entry[key], bool):
        received = f"{entry[key]!r:.40}"
    else:
        return entry[key]
    raise UserError(
        f"{where} must be an object with {key!r}, {_KINDS[kind]}. Received: "
        f"{received}."
    )

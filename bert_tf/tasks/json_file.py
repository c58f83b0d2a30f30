"""JSON files that people hand in, and what is expected in them."""

import json
from typing import Any

from bert_tf.errors import UserError
from bert_tf.tasks import text_lines

_KINDS = {str: "a string", int: "a whole number", list: "a list"}


def read_json(path: str) -> Any:
    """Returns what a UTF-8 JSON file holds; ".gz" at its end is unpacked.

    Raises:
      UserError: If there is no such file, it is damaged, or no JSON.
    """
    text = "\n".join(line for _, line in text_lines.read_lines(path))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {error.lineno} is not valid JSON: {error.msg} at "
            f"column {error.colno}."
        ) from error
    except RecursionError as error:
        raise UserError(
            f"{path} is not valid JSON: lists in lists without end."
        ) from error


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

"""Finds and reads the files of `--flagfile`, including the recipes."""

import os
from collections.abc import Iterator
from collections.abc import Sequence

from bert_tf import recipes
from bert_tf.errors import UserError

_RECIPES = os.path.dirname(recipes.__file__)
_NAMES = ("--flagfile", "-flagfile")
_COMMENTS = ("#", "//")


def expand(words: Sequence[str]) -> list[str]:
    """Replaces each `--flagfile=FILE` by the flags in the file.

    A relative path is looked up in the current folder, then in the folder of
    the flag file that names it, then among the recipes of the package. So
    `--flagfile=base.flags` works in any folder. A flag file may name other flag
    files; its lines that begin with # or // are comments.

    Args:
      words: The words of a command line, without the program. `--` ends flags.

    Raises:
      UserError: If a file does not exist or includes itself.
    """
    return list(_expand(words, ()))


def _expand(words: Sequence[str], including: tuple[str, ...]) -> Iterator[str]:
    remaining = iter(words)
    for word in remaining:
        name, equals, path = word.partition("=")
        if name not in _NAMES:
            yield word
            if word == "--":
                yield from remaining
            continue
        path = path if equals else next(remaining, "")
        if path:  # As in absl, an empty path reads no file.
            yield from _read(_find(path.strip(), including), including)


def _read(path: str, including: tuple[str, ...]) -> Iterator[str]:
    if path in including:
        raise UserError(f"--flagfile={path}: the file includes itself.")
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = [line.strip() for line in file]
    except UnicodeDecodeError as error:
        raise UserError(
            f"--flagfile={path}: not a text in UTF-8 ({error.reason}); name a "
            "file with a flag in each line."
        ) from error
    flags = [x for x in lines if x and not x.startswith(_COMMENTS)]
    if wrong := [x for x in flags if not x.startswith("-")]:
        raise UserError(
            f"--flagfile={path}: expected --flag=value in each line. Received: "
            f"{wrong[0]!r:.80}."
        )
    return _expand(flags, (*including, path))


def _find(path: str, including: tuple[str, ...]) -> str:
    """Returns the path of an existing flag file."""
    folders = ["", *(os.path.dirname(x) for x in including[-1:]), _RECIPES]
    for folder in folders:
        candidate = os.path.join(folder, os.path.expanduser(path))
        if os.path.isfile(candidate):
            return candidate
    names = sorted(x for x in os.listdir(_RECIPES) if x.endswith(".flags"))
    raise UserError(
        f"--flagfile={path}: no such file. The package has the recipes "
        f"{', '.join(names)}."
    )

"""Refuses titles of modules, classes and functions that are no plain phrases.

python tools/check_titles.py FOLDER ...
"""

import ast
import pathlib
import re
import sys
from collections.abc import Iterator

_BAD_START = re.compile(r"(What|Whether|Which|Of|By)\b")
_TITLED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def bad_titles(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each docstring's bad first line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, _TITLED) and (text := ast.get_docstring(node)):
            if _BAD_START.match(text):
                yield getattr(node, "lineno", 1), text.splitlines()[0]


def main(folders: list[str]) -> int:
    """Prints every bad title; returns the exit status."""
    found = [
        f"{path}:{line}: {title}"
        for folder in folders
        for path in sorted(pathlib.Path(folder).rglob("*.py"))
        for line, title in bad_titles(path)
    ]
    print("\n".join(found) or "All titles are plain phrases.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

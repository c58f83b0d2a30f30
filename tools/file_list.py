"""Writes docs/files.md, the list of files: each with its docstring's start.

python tools/file_list.py
"""

import ast
import pathlib

_ROOT = pathlib.Path(__file__).resolve().parents[1]
PATH = _ROOT / "docs" / "files.md"
_HEADING = "# What is where\n"
_FOLDERS = ("run", "export", "bert_tf", "benchmarks", "tools")
_OTHERS = {
    "base.flags, base_phase2.flags": "The paper's recipe, length 128 and 512.",
    "large.flags, large_phase2.flags": "The same with BERT-large.",
    "tiny.flags, tiny_phase2.flags": "The same in minutes, with 2 layers.",
    "lamb.flags, lamb_phase2.flags": "BERT-large in large batches, LAMB.",
    "configs/": "The shapes of these models.",
    "requirements.in": "Pins; requirements.txt adds the project itself.",
    "requirements-gpu.txt": "The same with CUDA.",
    "Makefile, .ci/run": "The commands of CONTRIBUTING.md, and all of them.",
    "BUILD, MODULE.bazel": "The same libraries, scripts and tests for Bazel.",
    "tests/": "As the folders below; repository_test.py is about all of it.",
}


def first_sentence(path: pathlib.Path) -> str:
    """Returns what a module says of itself, on one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return " ".join((docstring or "").split("\n\n")[0].split())


def modules() -> dict[str, str]:
    """Returns what each module is for, by its path from the root."""
    lines = {}
    for folder in _FOLDERS:
        paths = (_ROOT / folder).rglob("*.py")
        for path in sorted(paths, key=lambda path: (path.parent, path.name)):
            if path.name != "__init__.py":
                lines[str(path.relative_to(_ROOT))] = first_sentence(path)
    return lines


def text() -> str:
    """Returns what docs/files.md should hold."""
    lines = _OTHERS | modules()
    width = max(map(len, lines)) + 2
    body = "".join(f"{name:{width}}{said}\n" for name, said in lines.items())
    return f"{_HEADING}\n```\n{body}```\n"


def main() -> None:
    PATH.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()

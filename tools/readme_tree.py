"""Writes the list of files in README.md: each with its docstring's start.

python tools/readme_tree.py
"""

import ast
import pathlib

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_HEADING = "## What is where\n"
_FOLDERS = ("run", "export", "bert_tf", "benchmarks", "tools")
_OTHERS = {
    "base.flags, base_phase2.flags": "The paper's recipe, length 128 and 512.",
    "large.flags, large_phase2.flags": "The same with BERT-large.",
    "tiny.flags, tiny_phase2.flags": "The same in minutes, with 2 layers.",
    "configs/": "The shapes of these models.",
    "docs/finetuning.md": "A command for each task, the columns of its files.",
    "docs/adding_a_task.md": "A whole task as an example.",
    "docs/serving.md": "Exports, the embedded server and TensorFlow Serving.",
    "docs/interop.md": "Models of other projects, in and out.",
    "docs/results.md": "What was measured, and with which command.",
    "requirements.in": "Pins; requirements.txt adds the project itself.",
    "requirements-gpu.txt": "The same with CUDA.",
    "Makefile, .ci/run": "The commands of CONTRIBUTING.md, and all of them.",
    "BUILD, MODULE.bazel": "The same libraries, scripts and tests for Bazel.",
    "tests/": "As the folders below; repository_test.py is about all of it.",
}


def _first_sentence(path: pathlib.Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return " ".join((docstring or "").split("\n\n")[0].split())


def tree() -> str:
    """Returns the section of README.md, from its heading on."""
    lines = dict(_OTHERS)
    for folder in _FOLDERS:
        paths = (_ROOT / folder).rglob("*.py")
        for path in sorted(paths, key=lambda path: (path.parent, path.name)):
            if path.name != "__init__.py":
                lines[str(path.relative_to(_ROOT))] = _first_sentence(path)
    width = max(map(len, lines)) + 2
    body = "".join(f"{name:{width}}{text}\n" for name, text in lines.items())
    return f"{_HEADING}\n```\n{body}```\n"


def main() -> None:
    readme = _ROOT / "README.md"
    text = readme.read_text(encoding="utf-8").split(_HEADING)[0]
    readme.write_text(text + tree(), encoding="utf-8")


if __name__ == "__main__":
    main()

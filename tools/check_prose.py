"""Refuses prose that has to be read twice, by its form.

    python -m tools.check_prose        `make lint`

- Titles of modules, classes and functions are no clauses: "What it reads.".
- Comments are no fragments: "# Those of all parts.", "# Perhaps.".
- Names of tests have at least three words after `test_`.
- Sentences have at most 35 words. A colon ends a sentence of comments and
  docstrings, but not of pages.
- Pages have no phrase of _PHRASES.
- A module has one name wherever it is imported.
"""

import ast
import collections
import io
import os
import pathlib
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_FOLDERS = ("bert_tf", "run", "export", "benchmarks", "tools", "tests")
_PAGES = ("*.md", "docs/**/*.md", "export/**/*.md", ".github/*.md")
_MOST_WORDS = 35
_TITLED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BAD_TITLE = re.compile(r"(What|Whether|Which|Of|By)\b")
_FRAGMENT = re.compile(r"(Of|Those|That of|Not \w+, which|Whose|Perhaps)\b")
# Comments for tools, not for readers, need no sentence.
_PRAGMA = re.compile(
    r"!|noqa|type:|pragma|fmt:|pylint|%%|\[START|Copyright|https?://|\w+=\S+$"
)
_PHRASES = re.compile(
    r"(?i)\b(that of|those of|by heart|telephone|goes on|go on|went on|anew|"
    r"nobody|the likes? of|so many|for want of|good for nothing)\b"
)
_LIST_ITEM = re.compile(r"\s*([-*|]|\d+\.|\*{0,2}[\w.,\[\]`' ]{1,40}:)\s")
# "e.g. This" and "J. Devlin" end no sentence.
_SENTENCE_END = r"(?<![ (.][A-Z])(?<!e\.g|i\.e)[%s][)\"'*`]*(?:\s+|$)"

Finding = tuple[int, str]


def bad_titles(tree: ast.Module) -> Iterator[Finding]:
    """Yields the line and the text of each docstring's bad first line."""
    for node in ast.walk(tree):
        if isinstance(node, _TITLED) and (text := ast.get_docstring(node)):
            if _BAD_TITLE.match(text):
                yield getattr(node, "lineno", 1), text.splitlines()[0]


def comments(source: str) -> Iterator[Finding]:
    """Yields the first line and the text of each comment of whole lines."""
    lines: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if (
            token.type == tokenize.COMMENT
            and not token.line[: token.start[1]].strip()
        ):
            if token.start[0] != last + 1 and lines:
                yield last - len(lines) + 1, "\n".join(lines)
                lines = []
            lines.append(token.string.lstrip("#").removeprefix(" "))
            last = token.start[0]
    if lines:
        yield last - len(lines) + 1, "\n".join(lines)


def bad_comments(source: str) -> Iterator[Finding]:
    """Yields comments that are fragments."""
    for line, text in comments(source):
        if not _PRAGMA.match(text) and (
            _FRAGMENT.match(text) or len(text.split()) < 3
        ):
            yield line, f"# {text}"


def bad_test_names(tree: ast.Module) -> Iterator[Finding]:
    """Yields tests with fewer than three words after `test_`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            if len(node.name.split("_")) < 4:
                yield node.lineno, node.name


def paragraphs(text: str) -> Iterator[Finding]:
    r"""Yields runs of prose: no code, which is indented, no items of one list.

    "Reads rows.\n\n    run.py x\n\nArgs:\n  path: A file.\n" has the runs
    "Reads rows." and "path: A file.".
    """
    lines: list[str] = []
    begin = 1
    for number, line in enumerate([*text.splitlines(), ""], 1):
        is_code = line.startswith("    ") and not lines
        if not line.strip() or is_code or _LIST_ITEM.match(line):
            if lines:
                yield begin, " ".join(lines)
            lines = []
        is_code = is_code or re.search(r"\S {3,}\S|^\s*\|", line)
        if line.strip() and not is_code:
            begin = begin if lines else number
            lines.append(line.strip())


def long_sentences(
    text: str, first_line: int = 1, ends: str = ".!?:"
) -> Iterator[Finding]:
    """Yields sentences of more than _MOST_WORDS words."""
    for line, paragraph in paragraphs(text):
        for sentence in re.split(_SENTENCE_END % ends, paragraph):
            if len(sentence.split()) > _MOST_WORDS:
                yield first_line + line - 1, sentence


def bad_prose(path: pathlib.Path) -> Iterator[Finding]:
    """Yields the bad titles, comments, names and sentences of a program."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    yield from bad_titles(tree)
    yield from bad_comments(source)
    if path.name.endswith("_test.py"):
        yield from bad_test_names(tree)
    for line, text in comments(source):
        yield from long_sentences(text, line)
    for node in ast.walk(tree):
        if isinstance(node, _TITLED) and (text := ast.get_docstring(node)):
            begin = node.body[0].lineno
            yield from long_sentences(textwrap.dedent(text), begin)


def bad_page(text: str) -> Iterator[Finding]:
    """Yields bad phrases and sentences of a Markdown page, except in code."""

    def blank(match):
        return "\n" * match[0].count("\n")

    text = re.sub(r"(?ms)^(`{3,}|~{3,}).*?^\1[ ]*$", blank, text)
    text = re.sub(r"(?s)<!--.*?-->", blank, text)
    for number, line in enumerate(text.splitlines(), 1):
        for match in _PHRASES.finditer(line):
            yield number, match[0]
    text = re.sub(r"\]\([^)]*\)", "]", text)
    yield from long_sentences(text, ends=".!?")


def aliases(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Yields each of our modules that a file imports, its alias and line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for x in node.names:
                module = f"{node.module}.{x.name}"
                path = _ROOT / module.replace(".", "/")
                if path.with_suffix(".py").exists():
                    yield module, x.asname or x.name, node.lineno


def bad_aliases(paths: list[pathlib.Path]) -> Iterator[tuple[str, str]]:
    """Yields imports under another name than in most files.

    A file may use another name if its usual name means something else there.
    """
    names = {}
    uses = collections.defaultdict(lambda: collections.defaultdict(list))
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names[path] = {
            getattr(x, "id", None) or getattr(x, "arg", None)
            for x in ast.walk(tree)
        }
        for module, name, line in aliases(tree):
            uses[module][name].append((path, line))
    for module, files in uses.items():
        usual = max(files, key=lambda name: len(files[name]))
        for name in set(files) - {usual}:
            for path, line in files[name]:
                if usual not in names[path]:
                    yield f"{path}:{line}", f"{module} as {name}, not {usual}"


def main() -> int:
    """Prints everything found; returns the exit status."""
    os.chdir(_ROOT)
    programs = [
        path
        for folder in _FOLDERS
        for path in sorted(pathlib.Path(folder).rglob("*.py"))
    ]
    pages = [y for x in _PAGES for y in sorted(pathlib.Path().glob(x))]
    found = [
        (f"{path}:{line}", text)
        for path in programs
        for line, text in bad_prose(path)
    ]
    found += [
        (f"{path}:{line}", text)
        for path in pages
        for line, text in bad_page(path.read_text(encoding="utf-8"))
    ]
    found += bad_aliases(programs)
    for place, text in found:
        print(f"{place}: {text}")
    print(f"{len(found)} places to rewrite.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

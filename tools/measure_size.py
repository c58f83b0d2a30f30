"""Measures the repository's size, and lowers its ceilings.

python tools/measure_size.py           prints every size beside its ceiling
python tools/measure_size.py --lower   lowers the ceilings to today's sizes

Ceilings are in tests/repository/size.json, and tests/repository/size_test.py
fails if a size exceeds its ceiling. Anyone may lower ceilings. Raising one
takes an entry with the reason in "raised" of that file.
"""

import ast
import collections
import io
import json
import math
import pathlib
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parents[1]
CEILINGS = ROOT / "tests" / "repository" / "size.json"

# Sizes are rounded up to multiples of these, so that a fix of a few lines needs
# no new ceiling.
_STEPS = {"files": 1, "lines": 100, "tokens": 1000, "words": 100}
_MIN_LINES_FOR_ONE_IMPORTER = 120
_MAX_MODULE_LINES = 700
_IGNORED_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def measure() -> dict[str, dict[str, int]]:
    """Returns each folder's size: files, lines and code tokens, or words."""
    sizes: dict[str, collections.Counter] = collections.defaultdict(
        collections.Counter
    )
    for top in ("bert_tf", "tests", "benchmarks", "tools"):
        for path in _paths(ROOT / top, ".py"):
            source = path.read_text(encoding="utf-8")
            size = collections.Counter(
                files=1, lines=source.count("\n"), tokens=count_tokens(source)
            )
            sizes[top] += size
            if top == "bert_tf":
                sizes[_folder(path.relative_to(ROOT))] += size
    for path in _paths(ROOT / "docs", ".md"):
        words = len(path.read_text(encoding="utf-8").split())
        sizes["docs"] += collections.Counter(words=words)
    return {folder: dict(size) for folder, size in sorted(sizes.items())}


def count_tokens(source: str) -> int:
    """Returns the number of tokens without comments and docstrings.

    Neither longer lines nor shorter docstrings make the number smaller.
    """
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    counted = sum(token.type not in _IGNORED_TOKENS for token in tokens)
    documented = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, _DOCUMENTED)
    )
    return counted - sum(ast.get_docstring(x) is not None for x in documented)


def exceptional_modules() -> dict[str, list[str]]:
    """Returns the modules of bert_tf that break a rule about their size.

    A module needs two importers among the modules of bert_tf, run and export,
    unless it is an entry point or has 120 lines. It has at most 700 lines.
    """
    importers = _importers()
    lonely, long = [], []
    for name, path in _modules().items():
        num_lines = path.read_text(encoding="utf-8").count("\n")
        if num_lines > _MAX_MODULE_LINES:
            long.append(name)
        is_entry = name.startswith("bert_tf.commands.") or "__" in path.stem
        if (
            not is_entry
            and len(importers[name]) < 2
            and num_lines < _MIN_LINES_FOR_ONE_IMPORTER
        ):
            lonely.append(name)
    return {"with_one_importer": lonely, "with_over_700_lines": long}


def ceilings() -> dict[str, dict[str, int]]:
    """Returns the ceilings, including raises, each of which needs a reason."""
    contents = json.loads(CEILINGS.read_text(encoding="utf-8"))
    limits = contents["ceilings"]
    for entry in contents["raised"]:
        if not entry["reason"].strip():
            raise ValueError(f"{CEILINGS.name}: {entry} has no reason.")
        for unit in entry.keys() - {"folder", "reason"}:
            limits[entry["folder"]][unit] += entry[unit]
    return limits


def lower_ceilings() -> None:
    """Lowers the ceilings to today's sizes, and removes all raises."""
    contents = json.loads(CEILINGS.read_text(encoding="utf-8"))
    limits = ceilings()
    contents["ceilings"] = {
        folder: {
            unit: min(_round_up(unit, value), old.get(unit, math.inf))
            for unit, value in size.items()
        }
        for folder, size in measure().items()
        for old in [limits.get(folder, {})]
    }
    contents["raised"] = []
    for rule, modules in exceptional_modules().items():
        contents[rule] = [x for x in contents[rule] if x in modules]
    CEILINGS.write_text(json.dumps(contents, indent=1) + "\n")


def _round_up(unit: str, value: int) -> int:
    return math.ceil(value / _STEPS[unit]) * _STEPS[unit]


def _paths(folder: pathlib.Path, suffix: str) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob(f"*{suffix}") if path.is_file())


def _folder(path: pathlib.Path) -> str:
    """Returns a module's package: bert_tf/io for bert_tf/io/files.py."""
    parts = path.parts
    return "/".join(parts[:2]) if len(parts) > 2 else "bert_tf/*.py"


def _modules() -> dict[str, pathlib.Path]:
    """Returns the modules of bert_tf by name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in _paths(ROOT / "bert_tf", ".py")
    }


def _importers() -> dict[str, set[str]]:
    """Returns the files of bert_tf, run and export that import each module."""
    modules = _modules()
    importers: dict[str, set[str]] = collections.defaultdict(set)
    for folder in ("bert_tf", "run", "export"):
        for path in _paths(ROOT / folder, ".py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                for name in _imported(node):
                    if name in modules:
                        importers[name].add(str(path))
    return importers


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        return [node.module, *names]
    return []


def main(arguments: list[str]) -> None:
    if arguments == ["--lower"]:
        lower_ceilings()
    limits = ceilings()
    for folder, size in measure().items():
        columns = (
            f"{unit} {value:,} of {limits[folder][unit]:,}"
            for unit, value in size.items()
        )
        print(f"{folder:24}", *(f"{column:28}" for column in columns))
    for rule, modules in exceptional_modules().items():
        print(f"{rule}: {len(modules)}")


if __name__ == "__main__":
    main(sys.argv[1:])

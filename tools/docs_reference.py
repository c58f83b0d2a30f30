"""Generates the site's reference pages of the commands and the Python API.

Commands are read from the dataclasses of their modules, the API from the
sources, so nothing here imports TensorFlow.
"""

import ast
import dataclasses
import importlib
import inspect
import pathlib
import re
import textwrap
import typing
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from bert_tf import __main__ as program
from bert_tf.config import GROUPS
from bert_tf.config import IGNORED
from bert_tf.flags import cli

ROOT = pathlib.Path(__file__).resolve().parents[1]
COMMANDS = "reference/commands/"
API = "reference/api/"
_DOOR = re.compile(r'commands\.run\("(\w+)"\)')

# The public names by subject; every name of `bert_tf.__all__` has one.
_SUBJECTS = {
    "models": ("Load and save", ("load_model", "save_model", "load_tokenizer")),
    "classes": (
        "Models",
        (
            "BertConfig",
            "BertModel",
            "BertForPretraining",
            "BertForClassification",
            "BertForQuestionAnswering",
            "BertForTagging",
            "BertForMultipleChoice",
            "BertForEmbeddings",
        ),
    ),
    "text": ("Text", ("BertTokenizer", "preprocess", "pack")),
    "training": ("Training", ("build_optimizer",)),
    "export": ("Export", ("export_savedmodel", "export_tflite")),
}
# docs/adding_a_task.md uses these names, so they have a page, too.
_EXTENSION = (
    "bert_tf.tasks.task.Task",
    "bert_tf.tasks.task.Features",
    "bert_tf.tasks.task.SoftTargets",
    "bert_tf.config.option",
)


class UndocumentedError(Exception):
    """A public name without a docstring, or without a page."""


def scripts() -> dict[str, str]:
    """Returns the module in `bert_tf.commands` of each script, by path.

    The order follows a user's work: {"run/demo.py": "demo", ...}.
    """
    doors = {}
    for path in [*ROOT.glob("run/*.py"), *ROOT.glob("export/*.py")]:
        for name in _DOOR.findall(path.read_text(encoding="utf-8")):
            doors[name] = path.relative_to(ROOT).as_posix()
    ordered = (name.replace("-", "_") for name in program.names())
    return {doors[name]: name for name in ordered}


def pages() -> dict[str, str]:
    """Returns the Markdown of each generated page, by its path on the site.

    The first page of a folder is its overview.

    Raises:
      UndocumentedError: If a public name has no docstring.
    """
    return {**_command_pages(), **_api_pages()}


def _command_pages() -> dict[str, str]:
    rows, commands = [], {}
    for path, name in scripts().items():
        module = importlib.import_module(f"bert_tf.commands.{name}")
        subcommand = name.replace("_", "-")
        title, _, description = inspect.getdoc(module).partition("\n")
        config_cls = inspect.get_annotations(module.main)["config"]
        commands[f"{COMMANDS}{name}.md"] = "\n".join(
            [
                f"# {subcommand}\n",
                f"{_escape(title)} The script `python {path}` and the command "
                f"`bert-tf {subcommand}` are the same program.\n",
                _markdown(description),
                *_flag_tables(config_cls),
            ]
        )
        rows.append(f"| [{subcommand}]({name}.md) | `{path}` | {title} |")
    overview = (
        "# Commands\n\nEach command is a script of the repository and a "
        "subcommand of `bert-tf`. `--help` prints the flags by subject, as on "
        "these pages; `--flagfile=FILE` reads flags from a file, one a line.\n"
    )
    overview = "\n".join([overview, *_table("command", "script", rows=rows)])
    return {f"{COMMANDS}index.md": f"{overview}\n", **commands}


def _table(*names: str, rows: Iterable[str]) -> list[str]:
    """Returns the lines of a table; its last column has no name."""
    header = [*names, ""]
    return [f"| {' | '.join(header)}|", "|---" * len(header) + "|", *rows]


def _flag_tables(config_cls: type) -> Iterator[str]:
    """Yields a heading and a table for each subject of flags."""
    annotations = typing.get_type_hints(config_cls)
    fields = sorted(
        dataclasses.fields(config_cls),
        key=lambda x: x.default is not dataclasses.MISSING,
    )
    for group in GROUPS:
        members = [x for x in fields if x.metadata["group"] == group]
        if not members:
            continue
        yield f"## {group[0].upper()}{group[1:]}\n"
        if group == IGNORED:
            names = (f"`{_form(x, annotations[x.name])}`" for x in members)
            yield ", ".join(names) + "\n"
            continue
        rows = []
        for field in members:
            form = _form(field, annotations[field.name])
            text = _cell(field.metadata["help"])
            if choices := field.metadata["choices"]:
                text += " One of " + ", ".join(f"`{x}`" for x in choices) + "."
            rows.append(f"| `{form}` | {_default(field)} | {text} |")
        yield from [*_table("flag", "default", rows=rows), ""]


def _form(field: dataclasses.Field, annotation: Any) -> str:
    """Returns the usage of a flag, such as `--seed=INTEGER`."""
    name, kind = cli.flag_name(field), cli.value_type(annotation)
    if kind is bool:
        return f"--[no]{name}"
    return f"--{name}={cli.VALUE_NAMES[kind]}"


def _default(field: dataclasses.Field) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return "" if field.default in (None, "") else f"`{field.default}`"


def _cell(text: str) -> str:
    """Returns a flag's help as a cell of a table, with flags as code."""
    text = re.sub(r"(?<![\w`-])--\w[\w=.*/]*\w", r"`\g<0>`", _escape(text))
    return text.replace("|", "\\|").replace("*", "\\*")


def _escape(text: str) -> str:
    return text.replace("<", "&lt;")


def _markdown(docstring: str) -> str:
    """Converts a docstring to Markdown; its indented blocks become code."""
    blocks = []
    for block in re.split(r"\n\s*\n", docstring.strip("\n")):
        if block.startswith("  "):
            blocks.append(f"```\n{textwrap.dedent(block)}\n```")
        elif block:
            blocks.append(_escape(block))
    return "\n\n".join(blocks) + "\n"


def public_names() -> dict[str, str]:
    """Returns the module of each name in `bert_tf.__all__`."""
    for node in _parse("bert_tf").body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "_HOMES":
            return ast.literal_eval(node.value)
    raise UndocumentedError("bert_tf/__init__.py must define _HOMES.")


def _module_path(module: str) -> pathlib.Path:
    path = ROOT / f"{module.replace('.', '/')}.py"
    return path if path.exists() else path.with_suffix("") / "__init__.py"


def _parse(module: str) -> ast.Module:
    return ast.parse(_module_path(module).read_text(encoding="utf-8"))


def _title(module: str, name: str = "") -> str:
    """Returns the first line of the docstring of a module or a name in it."""
    tree = _parse(module)
    nodes = [x for x in tree.body if getattr(x, "name", None) == name]
    for node in nodes if name else [tree]:
        if docstring := ast.get_docstring(node):
            return docstring.partition("\n")[0]
    where = f"{module}.{name}".rstrip(".")
    raise UndocumentedError(f"{where} has no docstring.")


def _api_pages() -> dict[str, str]:
    homes = public_names()
    listed = [name for _, names in _SUBJECTS.values() for name in names]
    if sorted(listed) != sorted(homes):
        different = ", ".join(sorted(set(listed) ^ set(homes)))
        raise UndocumentedError(
            "tools/docs_reference.py must list every name of bert_tf.__all__ "
            f"once. Received: {different}."
        )
    rows: dict[str, list[str]] = {"name": [], "to extend it": [], "package": []}
    found = {}
    for page, (heading, names) in _SUBJECTS.items():
        paths = [f"{homes[name]}.{name}" for name in names]
        for name, path in zip(names, paths, strict=True):
            title = _cell(_title(homes[name], name))
            rows["name"].append(f"| [`{name}`]({page}.md#{path}) | {title} |")
        found[f"{API}{page}.md"] = _objects(heading, paths)
    for path in _EXTENSION:
        title = _cell(_title(*path.rsplit(".", 1)))
        row = f"| [`{path}`](extension.md#{path}) | {title} |"
        rows["to extend it"].append(row)
    found[f"{API}extension.md"] = _objects("Extension", _EXTENSION)
    for room in _rooms():
        found[f"{API}rooms/{room}.md"] = _room_page(room)
        title = _cell(_title(f"bert_tf.{room}"))
        row = f"| [`bert_tf.{room}`](rooms/{room}.md) | {title} |"
        rows["package"].append(row)
    overview = [
        "# Python API\n\n`import bert_tf` gives the names of the first table. "
        "The others are in the modules that their paths name."
    ]
    for name, lines in rows.items():
        overview += ["", *_table(name, rows=lines)]
    return {f"{API}index.md": "\n".join(overview) + "\n", **found}


def _objects(heading: str, paths: typing.Iterable[str]) -> str:
    return "\n".join([f"# {heading}\n", *(f"::: {x}\n" for x in paths)])


def _rooms() -> list[str]:
    """Returns the packages and modules that docs/architecture.md describes."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = page.split("| packages | contents |")[1].split("\n\n")[0]
    names = re.findall(r"`(\w+)`", re.sub(r"(?m)\|[^|]*\|$", "", table))
    # Commands have other pages, so they get none here.
    return sorted(set(names) - {"__main__", "commands"})


def _room_page(room: str) -> str:
    """Returns a page with the modules of a package and their public names."""
    lines = [f"# bert_tf.{room}\n", _escape(_title(f"bert_tf.{room}"))]
    path = _module_path(f"bert_tf.{room}")
    paths = (
        sorted(path.parent.rglob("*.py")) if path.stem == "__init__" else [path]
    )
    for path in paths:
        module = path.relative_to(ROOT).with_suffix("").as_posix()
        module = module.replace("/", ".").removesuffix(".__init__")
        if module != f"bert_tf.{room}":
            lines += [f"\n## {module}\n", _escape(_title(module))]
        ends = {ast.ClassDef: "", ast.FunctionDef: "()"}
        rows = [
            f"| `{node.name}{ends[type(node)]}` | "
            f"{_cell(_title(module, node.name))} |"
            for node in _parse(module).body
            if type(node) in ends and not node.name.startswith("_")
        ]
        if rows:
            lines += ["", *_table("name", rows=rows)]
    return "\n".join(lines) + "\n"

"""The program `bert-tf`, or `python -m bert_tf`: scripts as subcommands."""

import ast
import pathlib
import pkgutil
import sys
import textwrap

import bert_tf
from bert_tf import commands
from bert_tf import errors
from bert_tf.io import interrupts

_WIDTH = 80
# The order of commands in the help; all other commands come last.
_ORDER = (
    "demo",
    "models",
    "finetune_classifier",
    "finetune_squad",
    "finetune_multiple_choice",
    "finetune_tagger",
    "finetune_embeddings",
    "distill",
    "predict",
    "export_savedmodel",
    "serve",
    "export_tflite",
    "verify_export",
    "extract_text",
    "learn_vocabulary",
    "tokenize_file",
    "create_pretraining_data",
    "pretrain",
    "fill_mask",
    "extract_features",
    "convert_checkpoint",
    "extend_vocabulary",
    "glue_submission",
    "experiments",
)
_END = f"""
`{errors.PROGRAM} COMMAND -h` lists the flags of a command. With a clone of the
repository, `python run/COMMAND.py` with underscores is the same program.
--version prints the version.
"""


def names() -> list[str]:
    """Returns the commands in the order of the help.

    >>> names()[:2]
    ['demo', 'models']
    """
    modules = {x.name for x in pkgutil.iter_modules(commands.__path__)}
    ranks = {name: rank for rank, name in enumerate(_ORDER)}
    ordered = sorted(modules, key=lambda x: (ranks.get(x, len(ranks)), x))
    return [name.replace("_", "-") for name in ordered]


def help_text() -> str:
    """Returns the text of `bert-tf --help`: a line for each command."""
    (folder,) = commands.__path__
    width = max(map(len, names()))
    lines = []
    for name in names():
        # Parse the file for its docstring: importing the file would be slow.
        path = pathlib.Path(folder, f"{name.replace('-', '_')}.py")
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        title = errors.name_programs(docstring.partition("\n")[0])
        lines.append(
            textwrap.fill(
                title,
                _WIDTH,
                initial_indent=f"  {name:<{width}}  ",
                subsequent_indent=" " * (width + 4),
                break_on_hyphens=False,
            )
        )
    usage = f"Usage: {errors.PROGRAM} COMMAND [--FLAG=VALUE ...]\n\n"
    return usage + "\n".join(lines) + "\n" + _END


def main() -> None:
    """Runs the command that the first word of the command line names."""
    interrupts.end_at_once()
    if sys.argv[1:2] == ["help"]:
        sys.argv[1:] = [*sys.argv[2:3], "--help"]
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("-h", "-?", "-help", "--help"):
        sys.argv[0] = f"{errors.PROGRAM} {name}"  # `errors.program` reads it.
        sys.stdout.write(help_text())
    elif name in ("-version", "--version"):
        sys.stdout.write(f"bert_tf {bert_tf.__version__}\n")
    elif name.replace("_", "-") in names():
        module = name.replace("-", "_")
        sys.argv = [f"{errors.PROGRAM} {name}", *rest]
        commands.run(module)
    else:
        problem = (
            "Expected a command before the flags, as in "
            f"`{errors.PROGRAM} predict --help`. Received: {name}."
            if name.startswith("-")
            else f"{name} is no command of {errors.PROGRAM}"
            f"{errors.did_you_mean(name, names())}"
        )
        sys.exit(f"ERROR: {problem} `{errors.PROGRAM} -h` lists the commands.")


if __name__ == "__main__":
    main()

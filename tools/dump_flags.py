"""Prints the flags of all commands, sorted, one line for each flag.

  python tools/dump_flags.py > flags.txt

A line has the command, the flag, its type, default, choices, effect on
training, kind of input, group and help. The dumps of two commits, compared by
diff, show every changed flag.
"""

import dataclasses
import importlib
import sys
import typing

from bert_tf import __main__ as program


def lines() -> list[str]:
    """Returns the lines of all commands."""
    found = []
    for command in program.names():
        name = command.replace("-", "_")
        main = importlib.import_module(f"bert_tf.commands.{name}").main
        config = typing.get_type_hints(main)["config"]
        types = typing.get_type_hints(config)
        for field in dataclasses.fields(config):
            metadata = field.metadata
            columns = (
                metadata["name"] or field.name,
                getattr(types[field.name], "__name__", types[field.name]),
                "required"
                if field.default is dataclasses.MISSING
                else repr(field.default),
                *(metadata[x] for x in ("choices", "affects", "reads")),
                *(metadata[x] for x in ("group", "help")),
            )
            found.append(f"{command} --{' | '.join(map(str, columns))}")
    return sorted(found)


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines()) + "\n")

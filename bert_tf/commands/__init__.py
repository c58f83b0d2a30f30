"""One module per script: its flags, and the `main` that runs it.

Modules import their libraries inside functions, so --help prints at once.
"""

import importlib

from bert_tf.io import interrupts


def run(command: str) -> None:
    """Runs a script with the flags of the command line.

    Ctrl-C prints one word instead of a traceback, even during imports.

    Args:
      command: The name of a module of this package.
    """
    interrupts.end_at_once()
    # Import `cli` after end_at_once(), or else Ctrl-C would print a traceback.
    from bert_tf.flags import cli

    cli.run(importlib.import_module(f"bert_tf.commands.{command}").main)

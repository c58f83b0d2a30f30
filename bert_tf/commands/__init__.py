"""One module per script: its flags, and what it does with them.

Each imports what it calls inside functions, so that --help answers at once.
"""

import importlib

from bert_tf.io import interrupts


def run(command: str) -> None:
    """Runs a script with the flags of the command line.

    Ctrl-C ends it quietly from the beginning.

    Args:
      command: The name of a module of this package.
    """
    interrupts.end_at_once()
    # Later, as these imports take a tenth of a second.
    from bert_tf.flags import cli

    cli.run(importlib.import_module(f"bert_tf.commands.{command}").main)

"""Starts scripts, so that Ctrl-C ends them quietly from the beginning."""

import importlib

from bert_tf.io import interrupts


def run(command: str) -> None:
    """Runs a script with the flags of the command line.

    Args:
      command: The name of a module in `bert_tf.commands`.
    """
    interrupts.end_at_once()
    # Later, as these imports take a tenth of a second.
    from bert_tf.flags import cli

    cli.run(importlib.import_module(f"bert_tf.commands.{command}").main)

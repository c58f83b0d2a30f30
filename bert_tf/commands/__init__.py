"""One module per script: its flags, and the `main` that runs it.

Modules import their libraries inside functions, so --help prints at once.

Most scripts that fine-tune have these two functions:
  find_files(config, stored): Returns the task's files, not yet read except to
    find labels. `stored`, the contents of the model's task.json, sets labels
    and default columns; it is {} if the run trains.
  build_task(config, stored_task, task_files): Returns the task. `stored_task`
    is as `stored`, but None if the run trains. If `task_files` is None,
    `find_files` is called.
Both raise `UserError` if a file is missing or invalid, or does not fit the
model.
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

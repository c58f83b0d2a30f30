"""Runs scripts as users do, in processes that share TensorFlow's import."""

import dataclasses
import os
import subprocess
import sys
import tempfile

from tests.support import forked_process
from tests.support.repository import ROOT


@dataclasses.dataclass(frozen=True)
class Ended:
    """A process that has ended.

    Attributes:
      status: Its exit status.
      stdout: Its standard output.
      stderr: Its standard error.
    """

    status: int
    stdout: str
    stderr: str


def python(*words, variables=(), **options):
    """Runs Python with this library, unforked; returns the ended process."""
    return subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | dict(variables),
        capture_output=True,
        text=True,
        **options,
    )


def command_line(script, flags):
    """Returns the words of a command line."""
    words = [script]
    for name, value in flags.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no{name}")
        else:
            words.append(f"--{name}={value}")
    return words


def run(*command_lines: tuple[list[str], str]) -> list[Ended]:
    """Runs scripts one after another.

    Args:
      *command_lines: The path of a script and its flags, and the folder to
        start in.

    Returns:
      The processes, in the same order.
    """
    return [_run(*command_line) for command_line in command_lines]


def _run(words, folder):
    environment = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        process = forked_process.ForkedProcess(
            words, os.environ | environment, out, error, str(folder)
        )
        return Ended(process.wait(), _text(out), _text(error))


def _text(file):
    file.seek(0)
    return file.read().decode()

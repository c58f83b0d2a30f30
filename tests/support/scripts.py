"""Runs scripts as users do, in processes that share TensorFlow's import.

As a program it reads [[words of a command line, folder], ...] as JSON from
standard input and writes [status, standard output, standard error] of each.
"""

import dataclasses
import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


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


def run(*command_lines: tuple[list[str], str]) -> list[Ended]:
    """Runs scripts one after another.

    Args:
      *command_lines: The path of a script and its flags, and the folder to
        start in.

    Returns:
      The processes, in the same order.
    """
    result = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(command_lines),
        env=os.environ | {"PYTHONPATH": _ROOT, "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return [Ended(*values) for values in json.loads(result.stdout)]


def _main():
    command_lines = json.load(sys.stdin)
    # Its functions start no thread before a script calls them.
    import tensorflow  # noqa: F401, ICN001

    # Or each process would copy all memory when it ends, which takes a second.
    gc.freeze()
    ended = []
    for words, folder in command_lines:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
            process = os.fork()
            if not process:
                os.dup2(out.fileno(), 1)
                os.dup2(error.fileno(), 2)
                os.chdir(folder)
                sys.argv = words
                sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
                runpy.run_path(words[0], run_name="__main__")
                sys.exit(0)
            _, status = os.waitpid(process, 0)
            ended.append(
                (os.waitstatus_to_exitcode(status), _text(out), _text(error))
            )
    json.dump(ended, sys.stdout)


def _text(file):
    file.seek(0)
    return file.read().decode()


if __name__ == "__main__":
    _main()

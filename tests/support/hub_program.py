"""Fetches the models named on standard input, one JSON object a line.

Answers each with a line of JSON: the path or the error, and the log. The hubs'
libraries read their variables at import, so each setting needs a new process.
"""

import contextlib
import io
import json
import os
import subprocess
import sys

from bert_tf.checkpoints import names
from bert_tf.errors import UserError


class Fetcher:
    """Starts this module as a process and sends it requests."""

    def __init__(self, **variables):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.hub_program"],
            env=os.environ
            | variables
            | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __call__(self, name, offline=False):
        """Returns the path or None, the error or None, and the log."""
        request = json.dumps({"name": name, "offline": offline})
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer.get("path"), answer.get("error"), answer["log"]

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _main():
    answers = sys.stdout
    for line in sys.stdin:
        request = json.loads(line)
        log = io.StringIO()
        with contextlib.redirect_stderr(log):
            try:
                answer = {
                    "path": names.resolve(
                        request["name"], offline=request["offline"]
                    )
                }
            except UserError as error:
                answer = {"error": str(error)}
        answer["log"] = log.getvalue()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    _main()

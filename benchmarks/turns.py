"""Programs that take turns, shared by several benchmarks.

Each program is a process that reads a request as a line of JSON, and answers
with a line of JSON. So the machine is in the same state for all programs, and
no program is slowed by another program's threads and memory.
"""

import csv
import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

# Arguments of `BertConfig` and of transformers' configuration, by size.
SHAPES = {
    "minilm": {
        "vocab_size": 30522,
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
    "base": {"vocab_size": 30522},
}


class Server:
    """A process that answers requests.

    Args:
      command: The program and its arguments.
      environment: The process's environment variables.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Returns the answer; exits if the server's process has ended."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self._process.args} ended.")
        return json.loads(line)

    def end(self) -> None:
        """Ends the input, and waits until the process has ended."""
        self._process.stdin.close()
        self._process.wait()


def serve(run: Callable[..., dict[str, Any]]) -> None:
    """Answers requests, in the server's process, until the input ends."""
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


def read_examples(path: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """Returns texts and labels as `text`, `text_pair` (of pairs) and `label`.

    Args:
      path: A TSV with a header, as in GLUE; may end in .gz.
      columns: Names of its columns: the text, a second text if there is one,
        and the label.
    """
    opener = gzip.open if path.endswith(".gz") else open
    *texts, label = columns
    keys = ("text", "text_pair")[: len(texts)]
    with opener(path, "rt", encoding="utf-8") as file:
        rows = [*csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    return [
        {key: row[column] for key, column in zip(keys, texts, strict=True)}
        | {"label": row[label]}
        for row in rows
    ]

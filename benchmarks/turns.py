"""Programs that take turns, shared by several benchmarks.

Each program is a process that reads a request as a line of JSON, does it, and
answers with one: so all see the machine in the same state, and none another's
threads and memory.
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

# What `BertConfig` and transformers' configuration are told.
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
    """A process that does what it is asked for.

    Args:
      command: What to run.
      environment: Its variables.
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
        """Returns the answer; ends this program if that one has ended."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self._process.args} ended.")
        return json.loads(line)

    def end(self) -> None:
        """Waits until the process has ended."""
        self._process.stdin.close()
        self._process.wait()


def serve(run: Callable[..., dict[str, Any]]) -> None:
    """Answers requests until there are no more: what runs in the process."""
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


def read_examples(path: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """Returns texts and labels as `text`, `text_pair` (of pairs) and `label`.

    Args:
      path: A TSV with a header, as GLUE's; may end in .gz.
      columns: Its columns: the text, the second one of a pair if there is one,
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

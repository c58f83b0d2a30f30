"""Programs that take turns, shared by several benchmarks.

Each program is a process that reads a request as a line of JSON, and answers
with a line of JSON. So the machine is in the same state for all programs, and
no program is slowed by another program's threads and memory.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from collections.abc import Iterable
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


# The packages of the other engines' environment.
LATENCY_PEERS = (
    "torch==2.13.0",
    "transformers==5.23.0",
    "onnx==1.23.2",
    "onnxscript==0.7.2",
    "onnxruntime==1.31.1",
    "openvino==2026.4.1",
)


def order(ways: Sequence[Any], turn: int) -> Sequence[Any]:
    """Returns the ways in a turn's order.

    The order alternates, in case a turn heats the CPU for the next one.
    """
    return ways[:: -1 if turn % 2 else 1]


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


def start(
    program: str,
    settings: Mapping[str, Any],
    python: str | None = None,
    **variables: str,
) -> Server:
    """Starts a program of this folder, with its settings as the argument.

    Args:
      program: The name of the file.
      settings: The program's settings.
      python: The Python of a peer's environment, which lacks this project.
      **variables: Environment variables of a program of this project.
    """
    folder = os.path.dirname(os.path.abspath(__file__))
    path = {"PYTHONPATH": "" if python else os.path.dirname(folder)}
    return Server(
        [
            python or sys.executable,
            os.path.join(folder, program),
            json.dumps(settings),
        ],
        os.environ | path | variables,
    )


def serve(run: Callable[..., dict[str, Any]]) -> None:
    """Answers requests, in the server's process, until the input ends."""
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


def time_calls(
    call: Callable[[Any], Any], batches: Iterable[Sequence[Any]]
) -> dict[str, list[float]]:
    """Returns the seconds of each call with a batch of rows.

    Raises:
      ValueError: If an answer does not have two probabilities for each row.
    """
    seconds = []
    for rows in batches:
        begin = time.perf_counter()
        answer = call(rows)
        seconds.append(time.perf_counter() - begin)
        if answer.shape != (len(rows), 2):
            raise ValueError(
                f"Expected answers of shape {(len(rows), 2)}. Received: "
                f"{answer.shape}."
            )
    return {"seconds": seconds}


def write_model(folder: str, model: Any, task: Any, vocab_file: str) -> None:
    """Writes the directory of a model with random weights."""
    from bert_tf.checkpoints import model_directory
    from bert_tf.modeling.bert import named_variables
    from bert_tf.text.tokenizer import BertTokenizer
    from bert_tf.text.vocabulary import Vocabulary

    vocabulary = Vocabulary.from_file(vocab_file)
    model_directory.write(
        folder,
        model.bert_config,
        {name: x.numpy() for name, x in named_variables(model).items()},
        vocabulary,
        BertTokenizer(vocabulary).settings(),
        {"kind": task.kind} | task.to_json(),
        "# Random weights\n",
    )


def write_classifier(
    folder: str, size: str, max_seq_length: int, num_texts: int, vocab_file: str
) -> None:
    """Writes a classifier with two labels and random weights.

    Args:
      folder: The model directory.
      size: A key of `SHAPES`.
      max_seq_length: Tokens of a row.
      num_texts: 2 to classify pairs of texts, else 1.
      vocab_file: The vocabulary.
    """
    from bert_tf.config import BertConfig
    from bert_tf.modeling.task_models import BertForClassification
    from bert_tf.tasks.classification.examples import Columns
    from bert_tf.tasks.classification.task import ClassificationTask

    task = ClassificationTask(
        name="custom",
        max_seq_length=max_seq_length,
        labels=("no", "yes"),
        metric_names=("accuracy",),
        columns=Columns(
            "text", "text_pair" if num_texts > 1 else None, ("label",)
        ),
    )
    config = BertConfig(type_vocab_size=2, **SHAPES[size])
    model = BertForClassification(config, labels=task.labels)
    write_model(folder, model, task, vocab_file)


def latency_ratios(
    seconds: Mapping[Any, Sequence[Sequence[float]]], ours: Any
) -> str:
    """Returns the ratios of other engines' latency to one of ours, as text.

    Args:
      seconds: (framework, precision) -> the seconds of each turn's calls.
      ours: The key of our engine.
    """
    ratios = []
    for way, theirs in seconds.items():
        if way[0] != ours[0]:
            ratio = statistics.median(
                statistics.median(y) / statistics.median(x)
                for x, y in zip(seconds[ours], theirs, strict=True)
            )
            ratios.append(f"{ratio:.2f} {' '.join(way)}")
    return f"latency / {' '.join(ours)}'s: {', '.join(ratios)}"

"""The demo's classifier: predicts the library that a sentence documents.

The label of a docstring is the library that contains it. The last step exports
the classifier and serves it over HTTP; the exporter and the server run as
separate programs, as users run them.
"""

import collections
import contextlib
import dataclasses
import json
import os
import shlex
import socket
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf import errors
from bert_tf.checkpoints import model_directory
from bert_tf.demo import corpus as demo_corpus
from bert_tf.errors import UserError
from bert_tf.finetuning import evaluate as task_evaluation
from bert_tf.flags import cli
from bert_tf.flags.classifier import ClassifierConfig
from bert_tf.flags.export import SavedModelConfig
from bert_tf.flags.predict import PredictConfig
from bert_tf.flags.serve import ServeConfig
from bert_tf.io import files
from bert_tf.io import tables
from bert_tf.training import output as training_output

TEXT_COLUMN, LABEL_COLUMN = demo_corpus.COLUMNS
# Required margin of the held-out accuracy over always predicting the most
# common library; docs/results.md has the measured accuracy.
ACCURACY_MARGIN = 0.30

# Typical of Python, numpy, Keras and TensorFlow, in this order.
SENTENCES = (
    "Opens the file and returns an iterator over its lines as strings.",
    "Returns the indices that would sort the elements of the ndarray.",
    "A layer that normalizes the activations of the previous layer.",
    "Runs the graph in a session and fetches the values of the ops.",
)

EXPORT_SCRIPT = "export/savedmodel.py"
SERVE_SCRIPT = "run/serve.py"
_PROGRAM = ("-m", "bert_tf")
# Name of the exported model and of its folder.
_NAME = "library"
_FIRST_VERSION = "1"

# Seconds to load a small model, or to stop, on a busy machine.
_TIMEOUT = 300
_POLL_SECONDS = 0.2


def configure(
    model_dir: str, train_file: str, dev_file: str, output_dir: str
) -> ClassifierConfig:
    """Returns the flags of the demo's fine-tuning."""
    return ClassifierConfig(
        task_name="custom",
        train_file=train_file,
        dev_file=dev_file,
        text_column=TEXT_COLUMN,
        label_column=LABEL_COLUMN,
        pretrained_model_dir=model_dir,
        output_dir=output_dir,
        do_train=True,
        do_eval=True,
        max_seq_length=64,
        eval_batch_size=64,
        # Higher than in the paper, because the model is narrow; one epoch over
        # this many sentences is enough.
        learning_rate="5e-4",
        num_train_epochs="1",
        # Few lengths, because compiling each one costs more than it saves.
        num_length_buckets=3,
        save_checkpoints_steps=250,
        iterations_per_loop=50,
    )


def is_done(output_dir: str) -> bool:
    """Returns true if a run has finished; it writes the model last."""
    path = os.path.join(output_dir, task_evaluation.RESULTS_FILE)
    return os.path.exists(path) and training_output.model_is_written(
        output_dir, files.read_json(path)["global_step"]
    )


def read_accuracy(output_dir: str) -> float:
    """Returns the dev accuracy of a run."""
    path = os.path.join(output_dir, task_evaluation.RESULTS_FILE)
    return files.read_json(path)["dev"]["accuracy"]


def measure_majority(path: str) -> tuple[str, float]:
    """Returns the most common library of a table, and its share."""
    labels = collections.Counter(
        row.values[LABEL_COLUMN] for row in tables.read_table(path).rows
    )
    ((label, count),) = labels.most_common(1)
    return label, count / labels.total()


def write_inputs(output_dir: str) -> PredictConfig:
    """Writes sentences to predict and returns the flags for prediction."""
    path = os.path.join(output_dir, "sentences.csv")
    header = f"{TEXT_COLUMN}\n"
    files.write_text(path, header + "".join(f'"{x}"\n' for x in SENTENCES))
    return PredictConfig(
        model_dir=os.path.join(output_dir, model_directory.MODEL_FOLDER),
        input_file=path,
        output_file=os.path.join(output_dir, "sentences.jsonl"),
    )


def describe(output_dir: str, dev_file: str, predictions: str) -> str:
    """Formats the results for the screen."""
    label, share = measure_majority(dev_file)
    matrix = os.path.join(output_dir, "confusion_matrix.txt")
    picture = os.path.splitext(matrix)[0] + ".png"
    lines = [
        "Which library does a sentence document? On held-out documents:",
        f"  {'accuracy':<28}{read_accuracy(output_dir):>9.3f}",
        f"  {f'always {label}':<28}{share:>9.3f}",
        "",
        textwrap.indent(_read(matrix).rstrip(), "  "),
        "",
        f"  As a picture: {picture}",
        "",
    ]
    for sentence, line in zip(
        SENTENCES, _read(predictions).splitlines(), strict=True
    ):
        lines += [f"  {sentence}", f"      {_describe(json.loads(line))}"]
    return "\n".join(lines)


def judge(accuracy: float, share: float) -> None:
    """Checks that a classifier is well above guessing.

    Raises:
      UserError: If it is not.
    """
    needed = share + ACCURACY_MARGIN
    if accuracy < needed:
        raise UserError(
            f"The demo's classifier must reach an accuracy of {needed:.3f}, "
            f"{ACCURACY_MARGIN:.2f} above guessing. Received: {accuracy:.3f}; "
            "this is a bug, please report it."
        )


def _read(path: str) -> str:
    return files.read_bytes(path).decode("utf-8")


def _describe(prediction: Mapping[str, Any]) -> str:
    """Formats the three most probable libraries."""
    ranked = sorted(
        prediction["probabilities"].items(), key=lambda pair: -pair[1]
    )
    return ", ".join(f"{label} {p:.0%}" for label, p in ranked[:3])


@dataclasses.dataclass(frozen=True)
class Served:
    """The answers of a server.

    Attributes:
      predictions: `label` and `probabilities` of each text.
    """

    url: str
    predictions: tuple[Mapping[str, Any], ...]


def configure_export(model_dir: str, output_dir: str) -> SavedModelConfig:
    """Returns the flags to export a model."""
    return SavedModelConfig(
        model_dir=model_dir,
        output_dir=os.path.join(output_dir, "served", _NAME),
    )


def is_exported(config: SavedModelConfig) -> bool:
    """Returns true if there is an exported version; they appear whole."""
    return os.path.exists(os.path.join(config.output_dir, _FIRST_VERSION))


def configure_server(export: SavedModelConfig) -> ServeConfig:
    """Returns the flags to serve an export on free ports."""
    port, rest_api_port = _free_ports(2)
    return ServeConfig(
        model_base_path=export.output_dir,
        port=port,
        rest_api_port=rest_api_port,
    )


def run_script(script: str, config: Any) -> None:
    """Runs one of the project's scripts.

    Raises:
      UserError: If it fails.
    """
    result = subprocess.run(_command(script, config), check=False)
    if result.returncode:
        raise UserError(
            f"{script} must exit with 0. Received: {result.returncode}; see "
            "its output above."
        )


def ask(config: ServeConfig, texts: Sequence[str], log_file: str) -> Served:
    """Starts a server, requests predictions, and stops it.

    Raises:
      UserError: If the server does not start, answer or stop as expected.
    """
    url = f"http://localhost:{config.rest_api_port}/v1/models/{_NAME}"
    with _running(config, log_file) as process:
        _wait_until_available(url, process, log_file)
        body = {"instances": [{"text": text} for text in texts]}
        answer = _request(f"{url}:predict", body)
    return Served(url, tuple(answer["predictions"]))


def judge_served(served: Served, predictions: str) -> None:
    """Checks that the server predicts the same labels as run/predict.py.

    Raises:
      UserError: If a label differs.
    """
    lines = _read(predictions).splitlines()
    expected = [json.loads(line)["label"] for line in lines]
    received = [answer["label"] for answer in served.predictions]
    if received != expected:
        raise UserError(
            f"The demo's served model must answer {', '.join(expected)}, as "
            f"run/predict.py does. Received: {', '.join(received)}; this is a "
            "bug, please report it."
        )


def describe_served(
    served: Served, config: SavedModelConfig, texts: Sequence[str]
) -> str:
    """Formats the requests and answers for the screen."""
    lines = [
        "The classifier as a SavedModel, served over HTTP for raw text:",
        f"  POST {served.url}:predict",
        "",
    ]
    for text, answer in zip(texts, served.predictions, strict=True):
        best = max(answer["probabilities"])
        lines += [f"  {text}", f"      {answer['label']} {best:.0%}"]
    again = ServeConfig(model_base_path=config.output_dir)
    body = shlex.quote(json.dumps({"instances": [{"text": texts[0]}]}))
    url = f"http://localhost:{again.rest_api_port}/v1/models/{_NAME}:predict"
    return "\n".join(
        [
            *lines,
            "",
            "Serve it, and try it at "
            f"http://localhost:{again.rest_api_port}/ or with curl:",
            f"  {cli.command_line(SERVE_SCRIPT, again)}",
            f"  curl -d {body} {url}",
        ]
    )


def _command(script: str, config: Any) -> list[str]:
    """Returns the command line that is printed, as a list."""
    _, _, *flags = shlex.split(cli.command_line(script, config))
    return [sys.executable, *_PROGRAM, errors.command(script), *flags]


@contextlib.contextmanager
def _running(
    config: ServeConfig, log_file: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Yields a server's process and stops it like a user would."""
    with open(log_file, "wb") as log:
        process = subprocess.Popen(
            _command(SERVE_SCRIPT, config), stdout=log, stderr=log
        )
    try:
        yield process
        process.terminate()
        process.wait(_TIMEOUT)
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise UserError(
            f"{SERVE_SCRIPT} must exit with 0 when it is stopped. "
            f"Received: {process.returncode}; see {log_file}."
        )


def _wait_until_available(
    url: str, process: subprocess.Popen[bytes], log_file: str
) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not _is_available(url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise UserError(
                f"{SERVE_SCRIPT} must serve {url}. Received: a server that "
                f"does not; see {log_file}."
            )
        time.sleep(_POLL_SECONDS)


def _is_available(url: str) -> bool:
    """Returns true if a version of the model is available."""
    try:
        status = _request(url)
    except urllib.error.URLError:  # No server yet, or status 404.
        return False
    versions = status["model_version_status"]
    return any(version["state"] == "AVAILABLE" for version in versions)


def _request(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode("utf-8")
    with urllib.request.urlopen(url, data, timeout=_TIMEOUT) as response:
        return json.load(response)


def _free_ports(count: int) -> list[int]:
    """Returns unused ports."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]

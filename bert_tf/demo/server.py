"""The demo's last step: exports the classifier and serves it over HTTP.

The exporter and the server run as separate programs, as users run them.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf.errors import UserError
from bert_tf.flags import cli
from bert_tf.flags.export import SavedModelConfig
from bert_tf.flags.serve import ServeConfig
from bert_tf.io import files

EXPORT_SCRIPT = "export/savedmodel.py"
SERVE_SCRIPT = "run/serve.py"
# Name of the exported model and of its folder.
_NAME = "library"
_FIRST_VERSION = "1"

_ROOT = pathlib.Path(__file__).resolve().parents[2]
# Seconds to load a small model, or to stop, on a busy machine.
_TIMEOUT = 300
_POLL_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Served:
    """The answers of a server.

    Attributes:
      url: URL of the model.
      predictions: `label` and `probabilities` of each text.
    """

    url: str
    predictions: tuple[Mapping[str, Any], ...]


def configure_export(model_dir: str, output_dir: str) -> SavedModelConfig:
    """Returns the flags to export a model.

    Args:
      model_dir: The model.
      output_dir: A folder for exports.
    """
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

    Args:
      config: The flags of the server.
      texts: The texts to classify.
      log_file: File for the server's log.

    Raises:
      UserError: If the server does not start, answer or stop as expected.
    """
    url = f"http://localhost:{config.rest_api_port}/v1/models/{_NAME}"
    with _running(config, log_file) as process:
        _wait_until_available(url, process, log_file)
        body = {"instances": [{"text": text} for text in texts]}
        answer = _request(f"{url}:predict", body)
    return Served(url, tuple(answer["predictions"]))


def judge(served: Served, predictions: str) -> None:
    """Checks that the server predicts the same labels as run/predict.py.

    Args:
      served: The answers of the server.
      predictions: A file of JSON lines.

    Raises:
      UserError: If a label differs.
    """
    lines = files.read_bytes(predictions).decode("utf-8").splitlines()
    expected = [json.loads(line)["label"] for line in lines]
    received = [answer["label"] for answer in served.predictions]
    if received != expected:
        raise UserError(
            f"The demo's served model must answer {', '.join(expected)}, as "
            f"run/predict.py does. Received: {', '.join(received)}; this is a "
            "bug, please report it."
        )


def describe(
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
    return [sys.executable, str(_ROOT / script), *flags]


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

"""Files beside the graph of an export, with model cards and usage examples.

The exporter calls `complete` with the temporary directory, renames it to the
version directory, then calls `publish`.
"""

import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from urllib import parse

import tensorflow as tf
from absl import logging

from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.export import artifact as artifacts
from bert_tf.export import serving_module
from bert_tf.export import warmup
from bert_tf.export.artifact import Artifact
from bert_tf.export.heads.head import ServingHead
from bert_tf.export.verify import run as verification
from bert_tf.export.verify.run import Report
from bert_tf.flags import cli
from bert_tf.io import files
from bert_tf.io import terminal

MARKDOWN_FILE = os.path.join(artifacts.EXTRAS, "MODEL_CARD.md")
# Calls per length; the card has their median.
_NUM_TIMINGS = 20

# tests/export/operators_test.py compares the operators of exports with a list.
_SERVING = "2.12 and later"
_HEADING = re.compile(r"## +(.+)")
_CELLS = re.compile(r"\| (.*?) \| (.*) \|")
# Sections of the model's card that the export's card replaces.
_LEFT_OUT = ("Versions",)

GRPC_PORT, REST_PORT = 8500, 8501
# The newest image with TensorFlow Text 2.12.1, as in all images since 2.12.
IMAGE = "tensorflow/serving:2.19.1"
CONFIG_FILE = "models.config"
BATCHING_FILE = "batching_parameters.txt"
# TensorFlow Serving reads it with --enable_per_model_batching_parameters.
_BATCHING_OF_MODEL = "batching_params.pbtxt"
_BATCHING = """\
# How requests of different clients are merged into one call of the model:
# requests that wait while all threads (one per core) are busy form a batch. No
# request waits for a batch to fill up, and a request that finds the queue full
# is refused at once.
# Do not set pad_variable_length_inputs, which pads masks with ones; strings
# need no padding.
max_batch_size { value: 64 }
batch_timeout_micros { value: 0 }
max_enqueued_batches { value: 10 }
"""
# Rows per warm-up request; with batching, calls often have several.
_WARMUP_BATCHES = (1, 4)


def complete(
    directory: str,
    artifact: Artifact,
    head: ServingHead,
    stored: StoredModel,
    exact_litert: bytes | None = None,
) -> dict[str, Any]:
    """Adds the files beside the graph and verifies the whole export.

    Args:
      directory: A version directory with graph and variables, under its
        temporary name. Adds assets.extra/ (warm-up requests, vocabulary,
        labels, model cards) and batching_params.pbtxt to it.
      artifact: Its description.
      head: Its head.
      stored: The model that was exported.
      exact_litert: For an export with litert/, the .tflite file of the model
        in float32.

    Returns:
      One row for serving_default, JSON values by name.

    Raises:
      UserError: If the outputs of the export differ from the model's.
    """
    texts = {
        artifacts.VOCAB_FILE: stored.vocabulary.to_text(),
        artifacts.LABELS_FILE: "".join(f"{name}\n" for name in head.labels),
        _BATCHING_OF_MODEL: _BATCHING,
    }
    for name, text in texts.items():
        if text:
            files.write_text(os.path.join(directory, name), text)
    warmup.write(
        os.path.join(directory, artifacts.WARMUP_FILE),
        artifact.model_name,
        warmup.requests(head, artifact.ids_only, _WARMUP_BATCHES),
    )
    example = warmup.example(head, artifact.ids_only)
    report = verification.examine(
        directory,
        artifact,
        stored,
        num_timings=_NUM_TIMINGS,
        exact_litert=exact_litert,
    )
    logging.info("%s", report.text().rstrip())
    report.require_correct()
    curl = curl_line(artifact, example)
    _write_cards(directory, artifact, stored, head.labels, report, curl)
    return example


def publish(
    version_directory: str, artifact: Artifact, example: Mapping[str, Any]
) -> None:
    """Writes the server configuration and prints how to use the new version.

    The version directory has its final name; the example is that of `complete`.
    """
    output_dir = os.path.dirname(version_directory.rstrip("/"))
    for name, text in (
        (CONFIG_FILE, _config(artifact)),
        (BATCHING_FILE, _BATCHING),
    ):
        path = os.path.join(output_dir, name)
        if not tf.io.gfile.exists(path):
            files.write_text(path, text)
        elif _settings(files.read_bytes(path)) != _settings(text.encode()):
            logging.warning(
                "%s was edited and is kept; delete it and export again to "
                "restore the default.",
                path,
            )
    commands = {
        "To serve it here:": embedded_line(output_dir, artifact),
        "To serve it with TensorFlow Serving:": docker_line(
            output_dir, artifact
        ),
        "To send a request:": curl_line(artifact, example),
        "To send a request from Python:": python_snippet(artifact, example),
    }
    sys.stdout.write(f"{terminal.sections(commands)}\n")
    sys.stdout.flush()


def _settings(text: bytes) -> list[bytes]:
    """Returns the lines of a configuration that are no comments."""
    return [line for line in text.splitlines() if not line.startswith(b"#")]


def _config(artifact: Artifact) -> str:
    """Returns a ModelServerConfig: the newest version of the model."""
    # JSON quotes strings as the text format of protocol buffers does.
    name = json.dumps(artifact.model_name)
    base_path = json.dumps(f"/models/{artifact.model_name}")
    return f"""\
# For TensorFlow Serving's --model_config_file. The path is in the container.
model_config_list {{
  config {{
    name: {name}
    base_path: {base_path}
    model_platform: "tensorflow"
    model_version_policy {{ latest {{ num_versions: 1 }} }}
  }}
}}
"""


def _write_cards(
    directory: str,
    artifact: Artifact,
    stored: StoredModel,
    labels: Sequence[str],
    report: Report,
    curl: str,
) -> None:
    """Writes model_card.json and MODEL_CARD.md, after all other files."""
    paths = _files(directory)
    card = {
        "export": artifact.to_json(),
        "model": {
            "path": stored.source,
            "config": stored.config.to_dict(),
            "task": dict(stored.task),
            "card": read_sections(_readme(stored)),
        },
        "labels": list(labels),
        "signatures": {
            name: {
                "inputs": _specs(signature.inputs),
                "outputs": _specs(signature.outputs),
            }
            for name, signature in sorted(
                serving_module.read_signatures(directory).items()
            )
        },
        "operators": serving_module.count_operators(directory),
        "tensorflow_serving": _SERVING,
        "latency": {
            "machine": f"{os.cpu_count()} cores, {platform.machine()}",
            "p50_ms": [
                {"length": length, "rows": 1, "milliseconds": value}
                for length, value in zip(
                    artifact.buckets, report.latencies, strict=True
                )
            ],
        },
        "verification": [
            {
                "check": check.name,
                "detail": check.detail,
                "largest_difference": check.largest,
            }
            for check in report.checks
        ],
        "bytes": {
            name: tf.io.gfile.stat(path).length for name, path in paths.items()
        },
        "sha256": {name: files.sha256(path) for name, path in paths.items()},
        "versions": model_directory.versions(),
    }
    markdown = _markdown(card, artifact, curl)
    files.write_text(os.path.join(directory, MARKDOWN_FILE), markdown)
    files.write_json(os.path.join(directory, artifacts.CARD_FILE), card)


def _markdown(card: Mapping[str, Any], artifact: Artifact, curl: str) -> str:
    shape = f"{artifact.head}, {artifact.precision}"
    reads = "ids" if artifact.ids_only else "strings"
    return model_directory.build_card(
        f"{artifact.model_name}, version {artifact.version}",
        f"A BERT ({shape}) as a SavedModel that reads {reads}, exported from "
        f"{card['model']['path']} with export/savedmodel.py of bert_tf. "
        f"TensorFlow Serving {card['tensorflow_serving']} run it.",
        {
            "Export": {
                name: _to_text(value) for name, value in card["export"].items()
            },
            "Labels": dict(enumerate(card["labels"])),
            "Signatures": {
                name: f"{_to_text(both['inputs'])} -> "
                f"{_to_text(both['outputs'])}"
                for name, both in card["signatures"].items()
            },
            "Shape of the model": card["model"]["config"],
            **{
                f"The model's own card: {heading}": rows
                for heading, rows in card["model"]["card"].items()
            },
            f"Latency in ms (p50, one row, {card['latency']['machine']})": {
                f"{row['length']} tokens": row["milliseconds"]
                for row in card["latency"]["p50_ms"]
            },
            "Verification": {
                check["check"]: check["detail"]
                for check in card["verification"]
            },
            "Operators": card["operators"],
            "Bytes": card["bytes"],
            "SHA-256": card["sha256"],
        },
        curl,
    )


def read_sections(readme: str) -> dict[str, dict[str, str]]:
    """Parses the tables of a Markdown card that this project wrote.

    Returns:
      Heading to table rows, each a name and a value.
    """
    sections: dict[str, dict[str, str]] = {}
    heading = ""
    for line in readme.splitlines():
        if match := _HEADING.fullmatch(line):
            heading = match[1]
        elif heading and (match := _CELLS.fullmatch(line)):
            rows = sections.setdefault(heading, {})
            rows[match[1]] = match[2].replace("\\|", "|")
    return {
        name: rows for name, rows in sections.items() if name not in _LEFT_OUT
    }


def _readme(stored: StoredModel) -> str:
    """Returns the README of the model; "" without one."""
    for folder in (
        stored.path,
        os.path.join(stored.path, model_directory.MODEL_FOLDER),
    ):
        path = os.path.join(folder, model_directory.README_FILE)
        if tf.io.gfile.exists(path):
            return files.read_bytes(path).decode("utf-8", "replace")
    return ""


def _specs(specs: Mapping[str, tf.TensorSpec]) -> dict[str, str]:
    return {
        name: f"<{spec.dtype.name}>{spec.shape.as_list()}"
        for name, spec in sorted(specs.items())
    }


def _files(directory: str) -> dict[str, str]:
    """Returns the paths of all files except the cards, by relative path."""
    paths = {}
    for folder, _, names in tf.io.gfile.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            paths[os.path.relpath(path, directory)] = path
    for card in (artifacts.CARD_FILE, MARKDOWN_FILE):
        paths.pop(card, None)
    return dict(sorted(paths.items()))


def _to_text(value: Any) -> str:
    """Formats a value for a table cell, without JSON punctuation."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def embedded_line(output_dir: str, artifact: Artifact) -> str:
    """Returns the command that serves an export without TensorFlow Serving."""
    words = [
        cli.program("run/serve.py"),
        f"--model_base_path={shlex.quote(output_dir)}",
        f"--port={GRPC_PORT}",
        f"--rest_api_port={REST_PORT}",
    ]
    if os.path.basename(os.path.abspath(output_dir)) != artifact.model_name:
        words.append(f"--model_name={shlex.quote(artifact.model_name)}")
    if artifact.litert is not None:
        words.append("--engine=litert")
    return " ".join(words)


def docker_line(output_dir: str, artifact: Artifact) -> str:
    """Returns the command that serves an export with TensorFlow Serving."""
    inside = f"/models/{artifact.model_name}"
    mount = f"{os.path.abspath(output_dir)}:{inside}:ro"
    words = [
        "docker run --rm",
        f"-p {GRPC_PORT}:{GRPC_PORT} -p {REST_PORT}:{REST_PORT}",
        f"-v {shlex.quote(mount)}",
        IMAGE,
        shlex.quote(f"--model_config_file={inside}/{CONFIG_FILE}"),
        "--enable_batching",
        shlex.quote(f"--batching_parameters_file={inside}/{BATCHING_FILE}"),
    ]
    return " ".join(words)


def curl_line(artifact: Artifact, example: Mapping[str, Any]) -> str:
    """Returns a curl command that requests a prediction for one row."""
    body = json.dumps({"instances": [example]}, ensure_ascii=False)
    name = parse.quote(artifact.model_name)
    url = f"http://localhost:{REST_PORT}/v1/models/{name}:predict"
    return f"curl -s -d {shlex.quote(body)} {shlex.quote(url)}"


def python_snippet(artifact: Artifact, example: Mapping[str, Any]) -> str:
    """Returns a Python program that sends one row to an export over gRPC."""
    dtype = ", tf.int32" if artifact.ids_only else ""
    inputs = "\n".join(
        f'request.inputs["{name}"].CopyFrom('
        f"tf.make_tensor_proto([{value!r}]{dtype}))"
        for name, value in example.items()
    )
    return f"""\
import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis import prediction_service_pb2_grpc

channel = grpc.insecure_channel("localhost:{GRPC_PORT}")
stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
request = predict_pb2.PredictRequest()
request.model_spec.name = {artifact.model_name!r}
{inputs}
reply = stub.Predict(request, timeout=10)
for name, tensor in reply.outputs.items():
    print(name, tf.make_ndarray(tensor))"""

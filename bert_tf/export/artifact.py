"""Exports: the version directory, and all of its files except the graph.

Servers load each directory with a number as its name, so a version has another
name until the export is complete and verified. A model card describes the
version, and `publish` prints how to use the version.
"""

import collections
import dataclasses
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from urllib import parse

import tensorflow as tf
from absl import logging
from google.protobuf import message
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.core.protobuf import saved_model_pb2

from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import UserError
from bert_tf.export import serving_module
from bert_tf.flags import cli
from bert_tf.flags.export import HEADS
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.io import stored_files
from bert_tf.io import terminal
from bert_tf.text.vocabulary import Vocabulary

EXTRAS = "assets.extra"
CARD_FILE = os.path.join(EXTRAS, "model_card.json")
VOCAB_FILE = os.path.join(EXTRAS, "vocab.txt")
LABELS_FILE = os.path.join(EXTRAS, "labels.txt")
WARMUP_FILE = os.path.join(EXTRAS, "tf_serving_warmup_requests")
MARKDOWN_FILE = os.path.join(EXTRAS, "MODEL_CARD.md")

# Versions of TensorFlow Serving that have all operators of our exports; see
# tests/export/operators_test.py.
_SERVING = "2.12 and later"
_HEADING = re.compile(r"## +(.+)")
_CELLS = re.compile(r"\| (.*?) \| (.*) \|")

GRPC_PORT, REST_PORT = 8500, 8501
# Image 2.20.0 has TensorFlow Text 2.20; images 2.12 to 2.19 have Text 2.12.1.
IMAGE = "tensorflow/serving:2.20.0"
CONFIG_FILE = "models.config"
BATCHING_FILE = "batching_parameters.txt"
# Servers with --enable_per_model_batching_parameters read this file.
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

# tf.saved_model.save adds this internal signature; cards do not describe it.
_INTERNAL = "__saved_model_init_op"
# Checks for the fields of an `Artifact`; a card that fails a check is refused.
_ARTIFACT = {
    "model_name": stored_files.TEXT,
    "version": stored_files.integer(most=(1 << 63) - 1),
    "head": stored_files.choice(*HEADS),
    "precision": stored_files.choice("float32", "bfloat16"),
    "ids_only": stored_files.FLAG,
    "max_seq_length": stored_files.integer(),
    "buckets": stored_files.list_of(stored_files.integer()),
    "settings": stored_files.OBJECT,
    "command": stored_files.TEXT,
    "litert": stored_files.optional(stored_files.TEXT),
}


@dataclasses.dataclass(frozen=True)
class Artifact:
    """The settings that an export was made with.

    Attributes:
      model_name: The name under which servers load the model.
      version: The number of the version, which names its directory.
      head: The name of the head, a key of `savedmodel.HEADS`.
      precision: "float32" or "bfloat16".
      ids_only: Whether the signatures take token ids instead of strings.
      max_seq_length, buckets: See `ServingHead`.
      settings: The other settings of the head as JSON values by name, such as
        `top_k`, `pooling`, `layer` and `doc_stride`.
      command: The command line that reproduces the export.
      litert: How the weights in litert/ are quantized, one of
        `flags.export.LITERT_QUANTIZATIONS`; None without litert/.
    """

    model_name: str
    version: int
    head: str
    precision: str
    ids_only: bool
    max_seq_length: int
    buckets: tuple[int, ...]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    command: str = ""
    litert: str | None = None

    @classmethod
    def from_json(cls, values: Any, source: str) -> "Artifact":
        """Returns the artifact that a model card has under "export".

        Raises:
          UserError: If `values` lacks a field, has another field, or has an
            invalid value. The message names the card by its path, `source`.
        """
        if isinstance(values, dict):
            # Add the field that older cards lack, or they would be refused.
            values = {"litert": None} | values
        if not isinstance(values, dict) or set(values) != set(_ARTIFACT):
            raise UserError(
                f'{source} must hold under "export" '
                f"{', '.join(sorted(_ARTIFACT))}. Received: {values!r:.80}."
            )
        stored_files.check(values, _ARTIFACT, source)
        return cls(**values | {"buckets": tuple(values["buckets"])})


def read(version_directory: str) -> Artifact:
    """Reads the artifact from the model card of a version directory."""
    path = os.path.join(version_directory, CARD_FILE)
    card = stored_files.read_object(files.require_file(path, "--export_dir"))
    return Artifact.from_json(card.get("export"), path)


def read_graph(version_directory: str) -> meta_graph_pb2.MetaGraphDef:
    """Returns the graph that servers load."""
    path = os.path.join(version_directory, serving_module.FILE)
    files.require_file(path, "--export_dir")
    saved_model = saved_model_pb2.SavedModel()
    try:
        saved_model.ParseFromString(files.read_bytes(path))
    except message.DecodeError as error:
        raise UserError(f"{path} is not a SavedModel: {error}.") from error
    if len(saved_model.meta_graphs) != 1:
        raise UserError(
            f"{path} must hold one graph. Received: "
            f"{len(saved_model.meta_graphs)}."
        )
    return saved_model.meta_graphs[0]


def read_signatures(
    version_directory: str,
) -> dict[str, dict[str, dict[str, str]]]:
    """Returns the specs of each signature's "inputs" and "outputs", by name.

    A spec is a string such as "<int32>[None]". Internal signatures are omitted.
    """
    definitions = read_graph(version_directory).signature_def
    return {
        name: {"inputs": _specs(one.inputs), "outputs": _specs(one.outputs)}
        for name, one in sorted(definitions.items())
        if name != _INTERNAL
    }


def _specs(tensors: Mapping[str, meta_graph_pb2.TensorInfo]) -> dict[str, str]:
    return {
        name: f"<{tf.as_dtype(info.dtype).name}>"
        f"{tf.TensorShape(info.tensor_shape).as_list()}"
        for name, info in sorted(tensors.items())
    }


def count_operators(version_directory: str) -> dict[str, int]:
    """Counts the operators of a SavedModel; function calls do not count."""
    graph = read_graph(version_directory).graph_def
    counts = collections.Counter(node.op for node in graph.node)
    for function in graph.library.function:
        counts.update(node.op for node in function.node_def)
    own = {function.signature.name for function in graph.library.function}
    return {name: counts[name] for name in sorted(counts.keys() - own)}


def publish(
    version_directory: str, artifact: Artifact, example: Mapping[str, Any]
) -> None:
    """Writes the server configuration and prints how to use the new version.

    The directory must have its final name. The printed commands send `example`.
    """
    output_dir = os.path.dirname(version_directory.rstrip("/"))
    texts = {CONFIG_FILE: _config(artifact), BATCHING_FILE: _BATCHING}
    for name, text in texts.items():
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
    """Returns the lines of a configuration, without the comments."""
    return [line for line in text.splitlines() if not line.startswith(b"#")]


def _config(artifact: Artifact) -> str:
    """Returns a ModelServerConfig that serves the model's newest version."""
    # Quote as JSON, which the text format of protocol buffers accepts.
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


def write_texts(
    directory: str, vocabulary: Vocabulary, labels: Sequence[str]
) -> None:
    """Writes the vocabulary, the labels if any, and batching_params.pbtxt."""
    texts = {
        VOCAB_FILE: vocabulary.to_text(),
        LABELS_FILE: "".join(f"{name}\n" for name in labels),
        _BATCHING_OF_MODEL: _BATCHING,
    }
    for name, text in texts.items():
        if text:
            files.write_text(os.path.join(directory, name), text)


def write_cards(
    directory: str,
    artifact: Artifact,
    stored: StoredModel,
    labels: Sequence[str],
    measured: Mapping[str, Any],
    example: Mapping[str, Any],
) -> None:
    """Writes model_card.json and MODEL_CARD.md, with hashes of all other files.

    `measured` is the result of `verify.run.Report.to_json`, and `example` one
    row for serving_default, as a dict of JSON values by name.
    """
    paths_of = _files(directory)
    curl = curl_line(artifact, example)
    card = {
        "export": dataclasses.asdict(artifact),
        "model": {
            "path": paths.base_names(stored.source),
            "config": stored.config.to_dict(),
            "task": dict(stored.task),
            "card": read_sections(model_directory.read_card(stored.path)),
        },
        "labels": list(labels),
        "signatures": read_signatures(directory),
        "operators": count_operators(directory),
        "tensorflow_serving": _SERVING,
        **measured,
        "bytes": {
            name: tf.io.gfile.stat(path).length
            for name, path in paths_of.items()
        },
        "sha256": {name: files.sha256(path) for name, path in paths_of.items()},
        "versions": model_directory.versions(),
    }
    markdown = _markdown(card, artifact, curl)
    files.write_text(os.path.join(directory, MARKDOWN_FILE), markdown)
    files.write_json(os.path.join(directory, CARD_FILE), card)


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
      A dict from each heading to a table, which is a dict of values by name.
    """
    sections: dict[str, dict[str, str]] = {}
    heading = ""
    for line in readme.splitlines():
        if match := _HEADING.fullmatch(line):
            heading = match[1]
        elif heading and (match := _CELLS.fullmatch(line)):
            rows = sections.setdefault(heading, {})
            rows[match[1]] = match[2].replace("\\|", "|")
    sections.pop("Versions", None)  # The export's card has its own.
    return sections


def _files(directory: str) -> dict[str, str]:
    """Returns the paths of all files except the cards, by relative path."""
    found = {}
    for folder, _, names in tf.io.gfile.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, directory)] = path
    for card in (CARD_FILE, MARKDOWN_FILE):
        found.pop(card, None)
    return dict(sorted(found.items()))


def _to_text(value: Any) -> str:
    """Formats a value for a table cell, without JSON punctuation."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    if isinstance(value, list | tuple):
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

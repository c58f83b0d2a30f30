"""What a user is told of an export: how to serve it, and how to ask it."""

import json
import os
import shlex
from collections.abc import Mapping
from typing import Any
from urllib import parse

from bert_tf.export.artifact import Artifact

GRPC_PORT, REST_PORT = 8500, 8501
# The newest that links TensorFlow Text 2.12.1, as all since 2.12 do.
IMAGE = "tensorflow/serving:2.19.1"
CONFIG_FILE = "models.config"
BATCHING_FILE = "batching_parameters.txt"


def text(
    output_dir: str, artifact: Artifact, example: Mapping[str, Any]
) -> str:
    """Returns what is printed when an export is published.

    Args:
      output_dir: Where its version directory is.
      artifact: The export.
      example: One row for serving_default, JSON values by name.
    """
    return "\n\n".join(
        [
            "To serve it here:",
            _indent(embedded_line(output_dir, artifact)),
            "To serve it with TensorFlow Serving:",
            _indent(docker_line(output_dir, artifact)),
            "To ask it:",
            _indent(curl_line(artifact, example)),
            "To ask it from Python:",
            _indent(python_snippet(artifact, example)),
        ]
    )


def embedded_line(output_dir: str, artifact: Artifact) -> str:
    """Returns the command that serves an export without TensorFlow Serving."""
    words = [
        "python run/serve.py",
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
    """Returns the command that asks an export for one row."""
    body = json.dumps({"instances": [example]}, ensure_ascii=False)
    name = parse.quote(artifact.model_name)
    url = f"http://localhost:{REST_PORT}/v1/models/{name}:predict"
    return f"curl -s -d {shlex.quote(body)} {shlex.quote(url)}"


def python_snippet(artifact: Artifact, example: Mapping[str, Any]) -> str:
    """Returns a Python program that asks an export for one row, over gRPC."""
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


def _indent(lines: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in lines.split("\n"))

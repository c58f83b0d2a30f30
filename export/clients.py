"""Three ways to call an export: in a fresh process, over REST, over gRPC."""

import abc
import base64
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import message
from tensorflow_serving.apis import predict_pb2
from tensorflow_serving.apis import prediction_service_pb2_grpc

from bert_tf.errors import UserError
from export import graph_file
from export import replay

Arrays = Mapping[str, np.ndarray]
# How long one call may take, in seconds; long texts on slow machines do.
_TIMEOUT = 300
# TensorFlow Serving has no limit of its own, gRPC 4 MiB.
_MAX_MESSAGE = 1 << 30


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a signature.

    Attributes:
      signature: Its name.
      inputs: Numbers, or bytes in arrays of objects, by name.
      repeats: How many more calls are timed, where the client can.
    """

    signature: str
    inputs: Arrays
    repeats: int = 0


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a call gave.

    Attributes:
      outputs: By name.
      error: Why there are none, or None.
      milliseconds: How long each repetition took.
    """

    outputs: Arrays
    error: str | None = None
    milliseconds: tuple[float, ...] = ()


class Client(abc.ABC):
    """Calls the signatures of an export.

    Attributes:
      name: What reports call it.
    """

    name: str

    @abc.abstractmethod
    def ask(self, calls: Sequence[Call]) -> list[Answer]:
        """Returns the answer to each call.

        Raises:
          UserError: If nobody is there to answer.
        """


class FreshProcess(Client):
    """Runs export/replay.py, which knows TensorFlow alone.

    Args:
      version_directory: The SavedModel.
      has_text_operators: Whether it needs TensorFlow Text.
      python: The Python that runs it; by default this one.
    """

    name = "a fresh process"

    def __init__(
        self,
        version_directory: str,
        has_text_operators: bool,
        python: str = sys.executable,
    ) -> None:
        self._directory = os.path.abspath(version_directory)
        self._has_text_operators = has_text_operators
        self._python = python

    def ask(self, calls: Sequence[Call]) -> list[Answer]:
        with tempfile.TemporaryDirectory() as folder:
            request = os.path.join(folder, "request.json")
            answer = os.path.join(folder, "answer.json")
            with open(request, "w", encoding="utf-8") as file:
                json.dump(self._request(calls, answer), file)
            result = subprocess.run(
                # Without the folder of the program, and so without us.
                [self._python, "-I", replay.__file__, request],
                check=False,
                capture_output=True,
                text=True,
                cwd=folder,
                env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2"),
            )
            if result.returncode:
                lines = result.stderr.strip().splitlines() or ["nothing"]
                raise UserError(
                    f"{self._directory} cannot be loaded and called in a "
                    f"process of its own, which ended with "
                    f"{result.returncode} and said: {lines[-1]}"
                )
            with open(answer, encoding="utf-8") as file:
                answers = json.load(file)["calls"]
        return [_decode_answer(answer) for answer in answers]

    def _request(self, calls: Sequence[Call], answer: str) -> dict[str, Any]:
        return {
            "directory": self._directory,
            "answer": answer,
            "has_text_ops": self._has_text_operators,
            "calls": [
                {
                    "signature": call.signature,
                    "repeats": call.repeats,
                    "inputs": {
                        name: replay.encode(values)
                        for name, values in call.inputs.items()
                    },
                }
                for call in calls
            ],
        }


def _decode_answer(answer: Mapping[str, Any]) -> Answer:
    if "error" in answer:
        return Answer({}, answer["error"])
    outputs = {
        name: replay.decode(tensor)
        for name, tensor in answer["outputs"].items()
    }
    return Answer(outputs, None, tuple(answer["milliseconds"]))


class Rest(Client):
    """TensorFlow Serving's REST.

    Args:
      url: http://HOST:PORT/v1/models/NAME, maybe with /versions/N.
      signatures: Those of the export, which say what the numbers of JSON are.
    """

    name = "REST"

    def __init__(
        self, url: str, signatures: Mapping[str, graph_file.Signature]
    ) -> None:
        self._url = url.rstrip("/")
        self._signatures = signatures

    def ask(self, calls: Sequence[Call]) -> list[Answer]:
        return [self._ask(call) for call in calls]

    def _ask(self, call: Call) -> Answer:
        body = {
            "signature_name": call.signature,
            "inputs": {
                name: _to_json(values) for name, values in call.inputs.items()
            },
        }
        status, reply = self._post(json.dumps(body).encode())
        if status != 200 or not isinstance(reply, dict):
            return Answer({}, f"{status}: {reply}")
        outputs = reply.get("outputs")
        specs = self._signatures[call.signature].outputs
        if len(specs) == 1:
            outputs = dict.fromkeys(specs, outputs)
        if not isinstance(outputs, dict) or set(outputs) != set(specs):
            return Answer({}, f"an unexpected answer, {str(reply)[:200]}")
        return Answer(
            {
                name: _from_json(outputs[name], spec)
                for name, spec in specs.items()
            }
        )

    def _post(self, body: bytes) -> tuple[int, Any]:
        """Returns the status and what the answer holds."""
        request = urllib.request.Request(
            f"{self._url}:predict",
            data=body,
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply:
                status, text = reply.status, reply.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        except OSError as error:
            raise UserError(
                f"--url={self._url} does not answer: {error}."
            ) from error
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text[:200]


def _to_json(values: np.ndarray) -> Any:
    """Returns a tensor as TensorFlow Serving reads it."""
    if values.dtype != object:
        return values.tolist()
    encoded = np.empty(values.shape, object)
    for index in np.ndindex(values.shape):
        data = base64.b64encode(values[index]).decode("ascii")
        encoded[index] = {"b64": data}
    return encoded.tolist()


def _from_json(values: Any, spec: tf.TensorSpec) -> np.ndarray:
    """Returns a tensor that TensorFlow Serving wrote."""
    dtype = spec.dtype.as_numpy_dtype
    if isinstance(values, list) and not values:
        # JSON keeps no more of the shape.
        return np.empty([0, *(size or 0 for size in spec.shape[1:])], dtype)
    if spec.dtype != tf.string:
        return np.array(values, dtype)
    shape = np.shape(_lengths_alone(values, spec.shape.rank))
    flat = values
    for _ in shape[1:]:
        flat = [value for row in flat for value in row]
    array = np.empty(len(flat), object)
    array[:] = [_to_bytes(value) for value in flat]
    return array.reshape(shape)


def _lengths_alone(values: Any, rank: int) -> Any:
    """Returns nested lists with zeros in place of what they hold."""
    if rank == 0:
        return 0
    return [_lengths_alone(value, rank - 1) for value in values]


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, dict):
        return base64.b64decode(value["b64"])
    return value.encode("utf-8")


class Grpc(Client):
    """TensorFlow Serving's PredictionService.

    Args:
      address: HOST:PORT.
      model_name: What the server calls the model.
    """

    name = "gRPC"

    def __init__(self, address: str, model_name: str) -> None:
        self._address = address
        self._model_name = model_name

    def ask(self, calls: Sequence[Call]) -> list[Answer]:
        options = [
            ("grpc.max_receive_message_length", _MAX_MESSAGE),
            ("grpc.max_send_message_length", _MAX_MESSAGE),
        ]
        with grpc.insecure_channel(self._address, options) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            return [self._ask(stub, call) for call in calls]

    def _ask(self, stub: Any, call: Call) -> Answer:
        request = predict_request(self._model_name, call)
        try:
            reply = stub.Predict(request, timeout=_TIMEOUT)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                raise UserError(
                    f"--url={self._address} does not answer: {error.details()}."
                ) from error
            return Answer({}, f"{error.code().name}: {error.details()}")
        return Answer(
            {
                name: tf.make_ndarray(proto)
                for name, proto in reply.outputs.items()
            }
        )


def predict_request(model_name: str, call: Call) -> message.Message:
    """Returns the PredictRequest that makes a call."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model_name
    request.model_spec.signature_name = call.signature
    for name, values in call.inputs.items():
        dtype = tf.string if values.dtype == object else None
        request.inputs[name].CopyFrom(
            tf.make_tensor_proto(values, dtype, values.shape)
        )
    return request


def to_url(
    url: str,
    model_name: str,
    signatures: Mapping[str, graph_file.Signature],
) -> Client:
    """Returns the client that --url means.

    Raises:
      UserError: If it is neither a URL of a model nor an address.
    """
    if url.startswith(("http://", "https://")):
        if "/v1/models/" not in url:
            raise UserError(
                "--url must be http://HOST:PORT/v1/models/NAME, or HOST:PORT "
                f"of gRPC. Received: {url!r}."
            )
        return Rest(url, signatures)
    host, _, port = url.removeprefix("grpc://").rpartition(":")
    if not host or not port.isdigit():
        raise UserError(
            "--url must be http://HOST:PORT/v1/models/NAME, or HOST:PORT of "
            f"gRPC. Received: {url!r}."
        )
    return Grpc(f"{host}:{port}", model_name)

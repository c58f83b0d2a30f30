"""Verifies an export on a live server, by TensorFlow Serving's REST or gRPC."""

import abc
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow_serving.apis import classification_pb2
from tensorflow_serving.apis import get_model_metadata_pb2
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import prediction_service_pb2_grpc
from tensorflow_serving.apis import regression_pb2

from bert_tf.errors import UserError
from bert_tf.export import graph_file
from bert_tf.export import tensor_json
from bert_tf.export.artifact import Artifact
from bert_tf.export.graph_file import Signature
from bert_tf.export.verify import clients
from bert_tf.export.verify import compare as comparison
from bert_tf.export.verify.calls import METHODS
from bert_tf.export.verify.calls import Planned
from bert_tf.export.verify.clients import Answer
from bert_tf.export.verify.clients import Arrays
from bert_tf.export.verify.clients import Call
from bert_tf.export.verify.report import Check

# In seconds; long texts on slow machines take long.
_TIMEOUT = 300
# TensorFlow Serving has no limit; gRPC's default is 4 MiB.
_MAX_MESSAGE = 1 << 30
_SIGNATURES = "signature_def"

_AVAILABLE = "AVAILABLE"


class RefusedError(Exception):
    """Raised when a server answers with an error; the text is its reason."""


class LiveServer(abc.ABC):
    """A server that serves the export.

    Attributes:
      name: The name of its interface in reports.
    """

    name: str

    def can_send(self, call: Call) -> bool:
        """Returns whether this interface can encode a call."""
        del call
        return True

    def send(self, calls: Sequence[Call]) -> list[Answer]:
        """Returns the answer to each call.

        Raises:
          UserError: If the server does not answer.
        """
        return [_try(self._predict, call) for call in calls]

    def send_methods(self, calls: Sequence[Call]) -> list[Answer]:
        """Returns the answers of the interfaces for `METHODS`.

        Args:
          calls: Calls of signatures in `METHODS`: `inputs` are tf.Examples.
        """
        return [_try(self._call_method, call) for call in calls]

    @abc.abstractmethod
    def _predict(self, call: Call) -> Arrays:
        """Returns the outputs of a call, or raises `RefusedError`."""

    @abc.abstractmethod
    def _call_method(self, call: Call) -> Arrays:
        """Returns the outputs of a call by the interface of its method."""

    @abc.abstractmethod
    def signatures(self) -> dict[str, Signature]:
        """Returns the signatures that the server reports.

        Raises:
          RefusedError: If the server refuses the request.
        """

    @abc.abstractmethod
    def states(self) -> dict[int, str]:
        """Returns the state of each version, such as "AVAILABLE".

        Raises:
          RefusedError: If the server refuses the request.
        """


class Rest(LiveServer):
    """TensorFlow Serving's REST interface.

    Args:
      url: http://HOST:PORT/v1/models/NAME, optionally with /versions/N.
      signatures: The signatures of the export, for the dtypes of JSON numbers.
    """

    name = "REST"

    def __init__(self, url: str, signatures: Mapping[str, Signature]) -> None:
        self._url = url.rstrip("/")
        self._signatures = signatures

    def can_send(self, call: Call) -> bool:
        # In JSON, the empty list is a vector whatever the rank was.
        return all(x.size or x.ndim == 1 for x in call.inputs.values())

    def _predict(self, call: Call) -> Arrays:
        inputs = {
            name: tensor_json.to_json(values)
            for name, values in call.inputs.items()
        }
        reply = self._fetch(
            ":predict", {"signature_name": call.signature, "inputs": inputs}
        )
        outputs = reply.get("outputs")
        specs = self._signatures[call.signature].outputs
        if len(specs) == 1:
            outputs = dict.fromkeys(specs, outputs)
        if not isinstance(outputs, dict) or set(outputs) != set(specs):
            raise _unexpected(reply)
        return {
            name: tensor_json.from_json(outputs[name], spec)
            for name, spec in specs.items()
        }

    def _call_method(self, call: Call) -> Arrays:
        (serialized,) = call.inputs.values()
        reply = self._fetch(
            f":{call.signature}",
            {
                "signature_name": call.signature,
                "examples": [
                    tensor_json.example_to_json(x) for x in serialized
                ],
            },
        )
        rows = reply.get("results")
        if not isinstance(rows, list):
            raise _unexpected(reply)
        if call.signature == "regress":
            return {"outputs": np.array(rows, np.float32)}
        return _classes(
            [[(label.encode(), x) for label, x in row] for row in rows]
        )

    def signatures(self) -> dict[str, Signature]:
        reply = self._fetch("/metadata")
        try:
            found = json_format.ParseDict(
                reply["metadata"][_SIGNATURES],
                get_model_metadata_pb2.SignatureDefMap(),
            )
        except (KeyError, TypeError, json_format.ParseError) as error:
            raise _unexpected(reply) from error
        return graph_file.to_signatures(found.signature_def)

    def states(self) -> dict[int, str]:
        reply = self._fetch("")
        try:
            return {
                int(version["version"]): version["state"]
                for version in reply["model_version_status"]
            }
        except (KeyError, TypeError, ValueError) as error:
            raise _unexpected(reply) from error

    def _fetch(self, path: str, body: Any = None) -> dict[str, Any]:
        """Fetches a JSON object from the server.

        Args:
          path: The path to append to the URL.
          body: JSON values to POST; without them the method is GET.

        Raises:
          RefusedError: If the server answers with an error.
          UserError: If the server does not answer.
        """
        request = urllib.request.Request(
            f"{self._url}{path}",
            data=None if body is None else json.dumps(body).encode(),
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
        reply = text[:200]
        with contextlib.suppress(ValueError):
            reply = json.loads(text)
        if status != 200 or not isinstance(reply, dict):
            raise RefusedError(f"{status}: {reply}")
        return reply


class Grpc(LiveServer):
    """TensorFlow Serving's PredictionService and ModelService.

    Args:
      address: HOST:PORT.
      model_name: The name under which the server serves the model.
    """

    name = "gRPC"

    def __init__(self, address: str, model_name: str) -> None:
        self._address = address
        self._model_name = model_name
        options = [
            ("grpc.max_receive_message_length", _MAX_MESSAGE),
            ("grpc.max_send_message_length", _MAX_MESSAGE),
        ]
        channel = grpc.insecure_channel(address, options)
        self._model = model_service_pb2_grpc.ModelServiceStub(channel)
        self._prediction = prediction_service_pb2_grpc.PredictionServiceStub(
            channel
        )

    def _predict(self, call: Call) -> Arrays:
        request = clients.predict_request(self._model_name, call)
        outputs = self._fetch(self._prediction.Predict, request).outputs
        return {name: tf.make_ndarray(x) for name, x in outputs.items()}

    def _call_method(self, call: Call) -> Arrays:
        is_regression = call.signature == "regress"
        request = (
            regression_pb2.RegressionRequest()
            if is_regression
            else classification_pb2.ClassificationRequest()
        )
        request.model_spec.name = self._model_name
        request.model_spec.signature_name = call.signature
        (serialized,) = call.inputs.values()
        for one in serialized:
            request.input.example_list.examples.add().ParseFromString(one)
        if is_regression:
            reply = self._fetch(self._prediction.Regress, request)
            rows = reply.result.regressions
            return {"outputs": np.array([x.value for x in rows], np.float32)}
        reply = self._fetch(self._prediction.Classify, request)
        return _classes(
            [
                [(x.label.encode(), x.score) for x in row.classes]
                for row in reply.result.classifications
            ]
        )

    def signatures(self) -> dict[str, Signature]:
        request = get_model_metadata_pb2.GetModelMetadataRequest()
        request.model_spec.name = self._model_name
        request.metadata_field.append(_SIGNATURES)
        reply = self._fetch(self._prediction.GetModelMetadata, request)
        found = get_model_metadata_pb2.SignatureDefMap()
        if not reply.metadata[_SIGNATURES].Unpack(found):
            raise _unexpected(reply)
        return graph_file.to_signatures(found.signature_def)

    def states(self) -> dict[int, str]:
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = self._model_name
        reply = self._fetch(self._model.GetModelStatus, request)
        name = get_model_status_pb2.ModelVersionStatus.State.Name
        return {x.version: name(x.state) for x in reply.model_version_status}

    def _fetch(self, method: Callable, request: Any) -> Any:
        """Returns the reply to a request.

        Raises:
          RefusedError: If the server answers with an error.
          UserError: If the server does not answer.
        """
        try:
            return method(request, timeout=_TIMEOUT)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                raise UserError(
                    f"--url={self._address} does not answer: {error.details()}."
                ) from error
            raise RefusedError(
                f"{error.code().name}: {error.details()}"
            ) from error


def to_url(
    url: str,
    model_name: str,
    signatures: Mapping[str, Signature],
) -> LiveServer:
    """Returns a client for the server at --url.

    Raises:
      UserError: If the value is neither the URL of a model nor an address.
    """
    if url.startswith(("http://", "https://")):
        if "/v1/models/" in url:
            return Rest(url, signatures)
    else:
        host, _, port = url.removeprefix("grpc://").rpartition(":")
        if host and port.isdigit():
            return Grpc(f"{host}:{port}", model_name)
    raise UserError(
        "--url must be http://HOST:PORT/v1/models/NAME, or HOST:PORT of gRPC. "
        f"Received: {url!r}."
    )


def _try(function: Callable[[Call], Arrays], call: Call) -> Answer:
    """Returns the outputs of a function, or the error of the server."""
    try:
        return Answer(function(call))
    except RefusedError as error:
        return Answer({}, str(error))


def _unexpected(reply: Any) -> RefusedError:
    return RefusedError(f"an unexpected answer, {str(reply)[:200]}")


def _classes(rows: Sequence[Sequence[tuple[bytes, float]]]) -> Arrays:
    """Splits pairs into `classes` <string> and `scores` <float32>."""
    if len({len(row) for row in rows}) > 1:
        raise _unexpected(rows)
    classes = np.empty((len(rows), len(rows[0]) if rows else 0), object)
    scores = np.zeros(classes.shape, np.float32)
    for number, row in enumerate(rows):
        classes[number] = [label for label, _ in row]
        scores[number] = [score for _, score in row]
    return {"classes": classes, "scores": scores}


def check(
    url: str,
    artifact: Artifact,
    signatures: Mapping[str, Signature],
    planned: Sequence[Planned],
    tolerance: float,
) -> list[Check]:
    """Verifies an export on a live server.

    Makes all calls that the interface can encode, those of `classify` and
    `regress` also by their own interfaces, and checks the signatures and the
    state that the server reports.

    Raises:
      UserError: If the server does not answer.
    """
    server = to_url(url, artifact.model_name, signatures)
    planned = [one for one in planned if server.can_send(one.call)]
    answers = server.send([one.call for one in planned])
    of_methods = [one for one in planned if one.call.signature in METHODS]
    own = server.send_methods([one.call for one in of_methods])
    return [
        *comparison.check_answers(planned, answers, server.name, tolerance),
        *comparison.check_answers(
            of_methods, own, f"{server.name}, its own method", tolerance
        ),
        _check_signatures(server, signatures),
        _check_state(server, artifact.version),
    ]


def _check_signatures(
    server: LiveServer, signatures: Mapping[str, Signature]
) -> Check:
    name = f"metadata by {server.name}"
    try:
        found = server.signatures()
    except RefusedError as error:
        return Check(name, "no answer", (str(error),))
    wrong = [
        one
        for one in sorted(found.keys() | signatures.keys())
        if found.get(one) != signatures.get(one)
    ]
    return Check(
        name,
        f"{len(found)} signatures",
        tuple(f"{one} differs from the export" for one in wrong),
    )


def _check_state(server: LiveServer, version: int) -> Check:
    name = f"status by {server.name}"
    try:
        states = server.states()
    except RefusedError as error:
        return Check(name, "no answer", (str(error),))
    detail = ", ".join(
        f"version {number} {state}" for number, state in states.items()
    )
    faults = ()
    if states.get(version) != _AVAILABLE:
        faults = (f"version {version} is not {_AVAILABLE}",)
    return Check(name, detail or "no version", faults)

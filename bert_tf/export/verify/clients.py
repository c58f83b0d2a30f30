"""Clients that call an export: the interface, and one in a fresh process."""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import message
from tensorflow_serving.apis import predict_pb2

from bert_tf.errors import UserError
from bert_tf.export.verify import replay

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a signature.

    Attributes:
      signature: The name of the signature.
      inputs: Numbers, or bytes in arrays of objects, by name.
      repeats: The number of further calls to time, if the client can.
    """

    signature: str
    inputs: Arrays
    repeats: int = 0


@dataclasses.dataclass(frozen=True)
class Answer:
    """The outputs of a call, or its error.

    Attributes:
      outputs: The outputs by name.
      error: The error message if the call failed, or None.
      milliseconds: The time of each repeated call.
    """

    outputs: Arrays
    error: str | None = None
    milliseconds: tuple[float, ...] = ()


class FreshProcess:
    """Calls an export in a process without bert_tf, by verify/replay.py.

    Args:
      version_directory: The SavedModel.
      has_text_operators: Whether it needs TensorFlow Text.
      python: The Python interpreter; by default this one.
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

    def send(self, calls: Sequence[Call]) -> list[Answer]:
        """Returns the answer to each call.

        Raises:
          UserError: If the process fails.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "request.json")
            request = {
                "directory": self._directory,
                "answer": os.path.join(folder, "answer.json"),
                "has_text_ops": self._has_text_operators,
                "calls": [
                    {
                        "signature": call.signature,
                        "repeats": call.repeats,
                        "inputs": _convert(replay.encode, call.inputs),
                    }
                    for call in calls
                ],
            }
            with open(path, "w", encoding="utf-8") as file:
                json.dump(request, file)
            self._run(path)
            with open(request["answer"], encoding="utf-8") as file:
                answers = json.load(file)["calls"]
        return [
            Answer({}, answer["error"])
            if "error" in answer
            else Answer(
                _convert(replay.decode, answer["outputs"]),
                None,
                tuple(answer["milliseconds"]),
            )
            for answer in answers
        ]

    def _run(self, request: str) -> None:
        """Runs the request in a file."""
        result = subprocess.run(
            # -I leaves out the program's folder, and so bert_tf.
            [self._python, "-I", replay.__file__, request],
            check=False,
            capture_output=True,
            text=True,
            cwd=os.path.dirname(request),
            env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2"),
        )
        if result.returncode:
            lines = result.stderr.strip().splitlines() or ["nothing"]
            raise UserError(
                f"{self._directory} cannot be loaded and called in a "
                f"separate process, which exited with status "
                f"{result.returncode} and printed: {lines[-1]}"
            )


def _convert(
    function: Callable[[Any], Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    return {name: function(value) for name, value in values.items()}


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

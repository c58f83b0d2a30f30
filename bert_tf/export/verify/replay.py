r"""Calls the signatures of a SavedModel in a process without bert_tf.

  python replay.py REQUEST.json

A standalone program. It needs Python 3.8, numpy, TensorFlow 2.12 and, for
models that read strings, TensorFlow Text 2.12, or later versions. It fails if
any module of bert_tf has been imported. The request is a JSON object:

  directory       the version directory
  answer          the file to write
  has_text_ops    whether to import tensorflow_text
  calls           a list of {"signature", "inputs", "repeats"}: inputs are
                  tensors by name, as `encode` writes them; `repeats` is the
                  number of further calls to time

The answer is a JSON object, too:

  versions        of python, numpy, tensorflow, tensorflow_text
  signatures      their names
  calls           a list of {"outputs", "milliseconds"}, or {"error"} where
                  the call failed
"""

from __future__ import annotations

import base64
import json
import os
import platform
import sys
import time

import numpy as np
import tensorflow as tf

# Modules that a SavedModel must not need.
_FORBIDDEN = ("bert_tf", "export", "run")


def encode(values: np.ndarray) -> dict:
    """Returns a tensor as JSON values.

    Args:
      values: Numbers, or bytes as an array of objects.
    """
    values = np.asarray(values)
    tensor = {"shape": list(values.shape)}
    if values.dtype == object:
        return dict(
            tensor,
            dtype="string",
            values=[
                base64.b64encode(value).decode("ascii")
                for value in values.ravel().tolist()
            ],
        )
    data = np.ascontiguousarray(values).tobytes()
    return dict(
        tensor,
        dtype=values.dtype.name,
        values=base64.b64encode(data).decode("ascii"),
    )


def decode(tensor: dict) -> np.ndarray:
    """Returns the array that `encode` received."""
    shape = tensor["shape"]
    if tensor["dtype"] == "string":
        values = np.empty(len(tensor["values"]), object)
        values[:] = [base64.b64decode(value) for value in tensor["values"]]
        return values.reshape(shape)
    data = base64.b64decode(tensor["values"])
    return np.frombuffer(data, tensor["dtype"]).reshape(shape)


def _to_tensor(values: np.ndarray) -> tf.Tensor:
    if values.dtype == object:
        flat = tf.constant(values.ravel().tolist(), tf.string)
        return tf.reshape(flat, values.shape)
    return tf.constant(values)


def _call(function, call: dict) -> dict:
    """Calls a signature, then repeats the call to time it."""
    inputs = {
        name: _to_tensor(decode(tensor))
        for name, tensor in call["inputs"].items()
    }
    try:
        outputs = {k: v.numpy() for k, v in function(**inputs).items()}
    except (tf.errors.OpError, TypeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    times = []
    for _ in range(call.get("repeats", 0)):
        start = time.perf_counter()
        for value in function(**inputs).values():
            value.numpy()
        times.append((time.perf_counter() - start) * 1000)
    return {
        "outputs": {name: encode(value) for name, value in outputs.items()},
        "milliseconds": times,
    }


def main(path: str) -> None:
    """Makes the calls of a request and writes the answer."""
    with open(path, encoding="utf-8") as file:
        request = json.load(file)
    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tensorflow": tf.__version__,
    }
    if request["has_text_ops"]:
        import tensorflow_text

        versions["tensorflow_text"] = tensorflow_text.__version__
    loaded = tf.saved_model.load(request["directory"])
    calls = []
    for call in request["calls"]:
        function = loaded.signatures.get(call["signature"])
        if function is None:
            name = call["signature"]
            answer = {"error": f"There is no signature {name}."}
        else:
            answer = _call(function, call)
        calls.append(answer)
    imported = sorted(set(_FORBIDDEN) & set(sys.modules))
    if imported:
        sys.exit(f"ERROR: The process has imported {', '.join(imported)}.")
    temporary = request["answer"] + ".tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(
            {
                "versions": versions,
                "signatures": sorted(loaded.signatures),
                "calls": calls,
            },
            file,
        )
    os.replace(temporary, request["answer"])


if __name__ == "__main__":
    main(sys.argv[1])

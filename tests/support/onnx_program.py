"""Answers requests of ids_requests.py with onnxruntime.

    python onnx_program.py PACKAGES REQUESTS.json

A program for this project's Python, whose TensorFlow tf2onnx needs.
PACKAGES is the folder with tf2onnx and onnxruntime, searched last.
"""

import json
import sys

import numpy as np


def convert(directory, path):
    """Converts a SavedModel to ONNX like the command line of tf2onnx."""
    from tf2onnx import convert as tf2onnx_convert

    sys.argv = ["tf2onnx", "--saved-model", directory, "--output", path]
    sys.argv += ["--opset", "18"]
    tf2onnx_convert.main()


def answer(request):
    """Writes the outputs of one SavedModel."""
    import onnxruntime

    path = request["outputs"] + ".onnx"
    convert(request["directory"], path)
    session = onnxruntime.InferenceSession(
        path, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    calls = {}
    with np.load(request["inputs"]) as arrays:
        for key in arrays:
            number, _, name = key.partition(":")
            calls.setdefault(number, {})[name] = arrays[key]
    outputs = {}
    for number, inputs in calls.items():
        for name, array in zip(names, session.run(None, inputs), strict=True):
            outputs[f"{number}:{name}"] = array
    np.savez(request["outputs"], **outputs)


def main(packages, path):
    sys.path.append(packages)
    with open(path, encoding="utf-8") as file:
        for request in json.load(file):
            answer(request)


if __name__ == "__main__":
    main(*sys.argv[1:])

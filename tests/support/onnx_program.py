"""Answers requests, as ids_requests.py writes them, with onnxruntime.

    python onnx_program.py PACKAGES REQUESTS.json

A program for our Python, whose TensorFlow tf2onnx needs to read SavedModels.
PACKAGES is the folder of those of tf2onnx and onnxruntime, behind our own.
"""

import json
import sys

import numpy as np


def convert(directory, path):
    """Writes a SavedModel as ONNX, as the command line of tf2onnx does."""
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

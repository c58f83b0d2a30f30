"""Answers requests of ids_requests.py with OpenVINO.

    python openvino_program.py REQUESTS.json

A program for an environment with OpenVINO, and without TensorFlow.
"""

import json
import sys

import numpy as np
import openvino


def answer(core, request):
    """Writes the outputs of one model."""
    # Otherwise some processors compute matrix products in bfloat16.
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    saved = core.read_model(request["directory"])
    model = core.compile_model(saved, "CPU", options)
    # Signature name to tensor name of a .tflite file.
    names = request.get("names", {})
    calls = {}
    with np.load(request["inputs"]) as arrays:
        for key in arrays:
            number, _, name = key.partition(":")
            calls.setdefault(number, {})[names.get(name, name)] = arrays[key]
    original = {tensor: name for name, tensor in names.items()}
    outputs = {}
    for number, inputs in calls.items():
        for output, array in model(inputs).items():
            outputs[f"{number}:{_name(output, original)}"] = array
    np.savez(request["outputs"], **outputs)


def _name(output, original):
    """Returns the signature name of an output tensor."""
    known = [original[name] for name in output.names if name in original]
    return known[0] if known else output.any_name


def main(path):
    core = openvino.Core()
    with open(path, encoding="utf-8") as file:
        for request in json.load(file):
            answer(core, request)


if __name__ == "__main__":
    main(sys.argv[1])

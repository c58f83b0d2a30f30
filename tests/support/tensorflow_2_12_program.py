"""Calls a SavedModel in a process with TensorFlow 2.12 and TensorFlow Text.

  python tensorflow_2_12_program.py DIRECTORY CALLS.json ANSWERS.json

Calls are a list of [signature, inputs] and answers a list of outputs: tensors
by name, each a serialized TensorProto in base64.
"""

import base64
import json
import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401


def encode(values):
    """Returns a tensor as text."""
    proto = tf.make_tensor_proto(values, shape=values.shape)
    return base64.b64encode(proto.SerializeToString()).decode("ascii")


def decode(text):
    """Returns the array that `encode` received."""
    proto = type(tf.make_tensor_proto(0)).FromString(base64.b64decode(text))
    return tf.make_ndarray(proto)


def main(directory, calls, answers):
    """Makes all calls."""
    with open(calls, encoding="utf-8") as file:
        calls = json.load(file)
    signatures = tf.saved_model.load(directory).signatures
    found = []
    for name, inputs in calls:
        outputs = signatures[name](
            **{x: tf.constant(decode(text)) for x, text in inputs.items()}
        )
        found.append({x: encode(y.numpy()) for x, y in outputs.items()})
    with open(answers, "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])

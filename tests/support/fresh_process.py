"""Calls SavedModels in a process with only TensorFlow and its text operators.

As a program, it reads {directory: [[signature, inputs], ...]} as JSON from a
file and prints the outputs in the same form.
"""

import json
import os
import sys
import tempfile

_FORBIDDEN = ("bert_tf", "export", "tests", "transformers")


def call(calls):
    """Returns the outputs of signatures, as nested lists.

    Args:
      calls: Directory to pairs of a signature's name and its inputs, which are
        nested lists of strings or whole numbers.
    """
    # Imported here: the program must import nothing else of ours.
    from tests.support import scripts

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "calls.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(calls, file)
        command = [__file__, path]
        (ended,) = scripts.run((command, folder))
    if ended.status:
        raise RuntimeError(ended.stderr[-3000:])
    return json.loads(ended.stdout)


def _main():
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    def to_tensor(values, spec):
        tensor = tf.constant(values, spec.dtype)
        return (
            tf.reshape(tensor, [0] * len(spec.shape)) if not values else tensor
        )

    def to_json(values):
        if isinstance(values, list):
            return [to_json(value) for value in values]
        return values.decode("utf-8") if isinstance(values, bytes) else values

    answers = {}
    with open(sys.argv[1], encoding="utf-8") as file:
        calls = json.load(file)
    for directory, signatures in calls.items():
        loaded = tf.saved_model.load(directory)
        answers[directory] = []
        for name, inputs in signatures:
            function = loaded.signatures[name]
            specs = function.structured_input_signature[1]
            tensors = {x: to_tensor(inputs[x], specs[x]) for x in inputs}
            outputs = function(**tensors)
            answers[directory].append(
                {x: to_json(outputs[x].numpy().tolist()) for x in outputs}
            )
    imported = [name for name in _FORBIDDEN if name in sys.modules]
    if imported:
        sys.exit(f"The process has imported {imported}.")
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    _main()

"""Runs .tflite files with tflite-runtime.

python tflite_runtime_program.py REQUESTS.json ANSWERS.json
"""

import json
import sys

import numpy as np
from tflite_runtime.interpreter import Interpreter


def run(path, rows):
    """Returns the outputs for each row of ids, or the error."""
    try:
        runner = Interpreter(path).get_signature_runner()
    except ValueError as error:
        return str(error)
    return [
        {
            name: values.tolist()
            for name, values in runner(
                **{key: np.array(x, np.int32) for key, x in row.items()}
            ).items()
        }
        for row in rows
    ]


def main(requests_path, answers_path):
    with open(requests_path, encoding="utf-8") as file:
        requests = json.load(file)
    answers = [run(request["path"], request["rows"]) for request in requests]
    with open(answers_path, "w", encoding="utf-8") as file:
        json.dump(answers, file)


if __name__ == "__main__":
    main(*sys.argv[1:])

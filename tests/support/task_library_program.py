"""Runs .tflite files with the TensorFlow Lite Task Library.

    python task_library_program.py REQUESTS.json ANSWERS.json

A program for an environment with tflite-support. Requests are files with texts,
or with questions and contexts; answers are the outputs of the library, and
the metadata that it reads.
"""

import ctypes
import json
import sys

import libusb_package

# The library needs libusb, which bare machines lack, so load a package's.
ctypes.CDLL(str(libusb_package.get_library_path()), ctypes.RTLD_GLOBAL)

from tflite_support import metadata  # noqa: E402
from tflite_support.task import text  # noqa: E402


def classify(path, texts):
    """Returns the scores of each text by category."""
    classifier = text.BertNLClassifier.create_from_file(path)
    answers = []
    for one in texts:
        (head,) = classifier.classify(one).classifications
        answers.append({c.category_name: c.score for c in head.categories})
    return answers


def answer(path, texts):
    """Returns the answers to each question, the best first."""
    answerer = text.BertQuestionAnswerer.create_from_file(path)
    return [
        [
            {
                "text": found.text,
                "start": found.pos.start,
                "end": found.pos.end,
                "logit": found.pos.logit,
            }
            for found in answerer.answer(context, question).answers
        ]
        for question, context in texts
    ]


def describe(path, _):
    """Returns the metadata and the appended files."""
    displayer = metadata.MetadataDisplayer.with_model_file(path)
    return {
        "json": json.loads(displayer.get_metadata_json()),
        "files": {
            name: displayer.get_associated_file_buffer(name).decode()
            for name in displayer.get_packed_associated_file_list()
        },
    }


def main(requests_path, answers_path):
    ask = {"classify": classify, "answer": answer, "describe": describe}
    with open(requests_path, encoding="utf-8") as file:
        requests = json.load(file)
    answers = [
        ask[request["ask"]](request["path"], request["texts"])
        for request in requests
    ]
    with open(answers_path, "w", encoding="utf-8") as file:
        json.dump(answers, file)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Runs .tflite files with MediaPipe.

    python mediapipe_program.py REQUESTS.json ANSWERS.json

A program for an environment with MediaPipe. Requests are files with texts;
answers are what `classify` and `embed` return.
"""

import json
import sys

from mediapipe.tasks.python import text
from mediapipe.tasks.python.core.base_options import BaseOptions


def classify(path, texts):
    """Returns the scores of each text by category."""
    options = text.TextClassifierOptions(
        base_options=BaseOptions(model_asset_path=path)
    )
    with text.TextClassifier.create_from_options(options) as classifier:
        answers = []
        for one in texts:
            (head,) = classifier.classify(one).classifications
            answers.append({c.category_name: c.score for c in head.categories})
        return answers


def embed(path, texts):
    """Returns the vector of each text."""
    options = text.TextEmbedderOptions(
        base_options=BaseOptions(model_asset_path=path)
    )
    with text.TextEmbedder.create_from_options(options) as embedder:
        answers = []
        for one in texts:
            (embedding,) = embedder.embed(one).embeddings
            answers.append([float(x) for x in embedding.embedding])
        return answers


def main(requests_path, answers_path):
    ask = {"classify": classify, "embed": embed}
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

"""Embeds texts with sentence-transformers.

    python sentence_transformers_program.py REQUESTS.json FOLDER

A program for an environment with sentence-transformers. Requests are models
with texts, and maybe a `pooling`; FOLDER gets an array for each, 0.npy, ...
"""

import json
import os
import sys

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling


def main(requests_path, folder):
    with open(requests_path, encoding="utf-8") as file:
        requests = json.load(file)
    for number, request in enumerate(requests):
        model = SentenceTransformer(request["path"], device="cpu")
        if "pooling" in request:
            size = model[0].get_embedding_dimension()
            pooling = Pooling(size, pooling_mode=request["pooling"])
            model = SentenceTransformer(modules=[model[0], pooling])
        if "save" in request:
            model.save(request["save"])
        vectors = model.encode(request["texts"], show_progress_bar=False)
        np.save(os.path.join(folder, f"{number}.npy"), vectors)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The program of transformers that finetune_speed.py times.

    python finetune_speed_peer.py SETTINGS

It reads requests and writes answers as lines of JSON.
"""

import json
import sys
import time

import finetune_peer
import numpy as np
import torch
import transformers
import turns

_REQUEST = {
    "kind": "classification",
    "learning_rate": 1e-4,
    "epsilon": 1e-8,
    "weight_decay": 0.01,
    "warmup_proportion": 0.1,
}


class _Work:
    """The model, its rows, and the steps and predictions to time."""

    def __init__(self, settings):
        with open(settings["examples_file"], encoding="utf-8") as file:
            examples = [json.loads(line) for line in file]
        examples = [{"text_pair": None} | x for x in examples]
        labels = sorted({x["label"] for x in examples})
        request = _REQUEST | {
            "model": settings["tokenizer"],
            "max_seq_length": settings["max_seq_length"],
            "labels": labels,
        }
        tokenizer = finetune_peer.load_tokenizer(request)
        self._rows = finetune_peer.make_rows(request, examples, tokenizer, True)
        self._settings = settings
        config = transformers.BertConfig(
            num_labels=len(labels), **settings["shape"]
        )
        model = transformers.BertForSequenceClassification(config)
        turns = settings["rounds"] + 1
        self._training = finetune_peer.Training(
            model, request, 2 * turns * settings["batches"]
        )

    def run(self, do, way, turn):
        """Returns seconds, and the number of tokens without padding."""
        size = self._settings["batch_size"]
        length = self._settings["max_seq_length"] if way == "padded" else None
        rng = np.random.default_rng(turn + 1)
        chosen = rng.choice(
            len(self._rows), size * self._settings["batches"], replace=False
        )
        rows = [self._rows[i] for i in chosen]
        model = self._training.model
        start = time.perf_counter()
        if do == "train":
            model.train()
            for first in range(0, len(rows), size):
                batch = finetune_peer.collate(
                    rows[first : first + size], length
                )
                self._training.step(batch)
        else:
            finetune_peer.predict(model, rows, size, length, way == "sorted")
        return {
            "seconds": time.perf_counter() - start,
            "tokens": sum(len(row["input_ids"]) for row in rows),
        }


def main(settings):
    torch.set_num_threads(settings["threads"])
    work = _Work(settings)
    turns.serve(work.run)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

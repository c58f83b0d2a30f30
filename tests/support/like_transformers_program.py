"""Fine-tunes with the benchmarks' peer, in an environment with PyTorch.

    PYTHONPATH=benchmarks python like_transformers_program.py REQUESTS.json

A request has the keys of benchmarks/finetune_peer.py, and also: `model`, a
folder to save a model with random weights to before training; `config`, its
configuration; `vocab`, its tokens; `num_steps`, each with all examples; and
`output`, the file for the losses.
"""

import json
import os
import sys

import finetune_peer
import torch
import transformers

# Scale of the noise added to the weights, so that biases and losses are large.
_NOISE = 0.2


def _make_model(request):
    """Saves and returns a model whose weights all differ."""
    encoder = os.path.join(request["model"], "encoder")
    config = transformers.BertConfig(**request["config"])
    transformers.BertModel(config).save_pretrained(encoder)
    model = finetune_peer.build_model(request | {"model": encoder})
    model.config.id2label = dict(enumerate(request["labels"]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(_NOISE * torch.randn_like(parameter))
    model.save_pretrained(request["model"])
    return model


def run(request):
    """Trains one model; returns the loss before each step."""
    transformers.set_seed(request["seed"])
    vocab = {token: index for index, token in enumerate(request["vocab"])}
    tokenizer = transformers.BertTokenizer(vocab)
    model = _make_model(request)
    tokenizer.save_pretrained(request["model"])
    rows = finetune_peer.make_rows(request, request["train"], tokenizer, True)
    batch = finetune_peer.collate(rows)
    training = finetune_peer.Training(model, request, request["num_steps"])
    model.train()
    return [training.step(batch) for _ in range(request["num_steps"])]


def main(path):
    with open(path, encoding="utf-8") as file:
        requests = json.load(file)
    for request in requests:
        with open(request["output"], "w", encoding="utf-8") as file:
            json.dump(run(request), file)


if __name__ == "__main__":
    main(sys.argv[1])

"""Trains with setfit or sentence-transformers; run by the other benchmarks.

    python contrastive_peer.py REQUEST.json

The program runs in an environment with PyTorch, so it does not import the
project. The request has `job`, "setfit" or "embeddings", the model, the texts,
the seed and the number of threads. The answer has predicted labels or
embeddings, and the processor seconds of imports and training.
"""

import json
import os
import sys
import time

import torch


def _train_setfit(request):
    """Trains as setfit's documentation shows; returns the predictions."""
    import datasets
    import setfit

    model = setfit.SetFitModel.from_pretrained(request["model"])
    arguments = setfit.TrainingArguments(
        output_dir=request["folder"],
        num_iterations=request["num_iterations"],
        seed=request["seed"],
        report_to="none",
        save_strategy="no",
        show_progress_bar=False,
    )
    ids = {label: index for index, label in enumerate(request["labels"])}
    texts, labels = zip(*request["train"], strict=True)
    table = {"text": list(texts), "label": [ids[x] for x in labels]}
    trainer = setfit.Trainer(
        model=model,
        args=arguments,
        train_dataset=datasets.Dataset.from_dict(table),
    )
    trainer.train()
    seconds = time.process_time()
    predicted = model.predict(request["test"], show_progress_bar=False)
    names = [request["labels"][int(index)] for index in predicted]
    return {"seconds": seconds, "predictions": names}


def _build_optimizer(model, learning_rate, steps):
    """Returns AdamW and a schedule like the project's own."""
    decayed, others = [], []
    for name, weight in model.named_parameters():
        is_plain = "bias" in name or "LayerNorm" in name
        (others if is_plain else decayed).append(weight)
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(
        groups, lr=learning_rate, eps=1e-6, weight_decay=0.01
    )
    warmup = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(step / warmup, (steps - step) / steps)
    )
    return optimizer, schedule


def _train_embeddings(request):
    """Trains a SentenceTransformer; returns the embeddings of all dev texts."""
    import sentence_transformers
    from sentence_transformers.sentence_transformer import losses

    model = sentence_transformers.SentenceTransformer(request["model"])
    model.max_seq_length = request["max_seq_length"]
    loss = {
        "scores": losses.CosineSimilarityLoss,
        "positives": losses.MultipleNegativesRankingLoss,
    }[request["form"]](model)
    torch.manual_seed(request["seed"])
    rows, size = request["train"], request["batch_size"]
    steps = len(rows) // size
    optimizer, schedule = _build_optimizer(
        model, request["learning_rate"], steps
    )
    model.train()
    for first in range(0, steps * size, size):
        batch = rows[first : first + size]
        features = [
            model.preprocess([row[column] for row in batch])
            for column in range(2)
        ]
        scores = [row[2] if len(row) > 2 else 0.0 for row in batch]
        loss(features, torch.tensor(scores)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    seconds = time.process_time()
    model.eval()
    vectors = model.encode(
        request["dev_texts"], batch_size=64, show_progress_bar=False
    )
    return {"seconds": seconds, "embeddings": vectors.tolist()}


def main(path):
    with open(path, encoding="utf-8") as file:
        request = json.load(file)
    torch.set_num_threads(request["threads"])
    jobs = {"setfit": _train_setfit, "embeddings": _train_embeddings}
    answer = jobs[request["job"]](request)
    with open(request["output"], "w", encoding="utf-8") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    main(sys.argv[1])

"""Trains with setfit or sentence-transformers; run by the other benchmarks.

    python contrastive_peer.py REQUEST.json

It runs in an environment with PyTorch, so nothing here imports the project. The
request has `job`, "setfit" or "embeddings", the model, the texts, the seed and
the number of threads; the answer has predicted labels or embeddings' scores,
and the processor seconds until the model was trained, imports included.
"""

import json
import os
import sys
import time

import torch


def _train_setfit(request):
    """Trains as setfit's documentation does; returns its predictions."""
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


def _train_embeddings(request):
    """Trains a SentenceTransformer; returns the embeddings of all dev texts."""
    import sentence_transformers
    import torch.utils.data

    model = sentence_transformers.SentenceTransformer(request["model"])
    model.max_seq_length = request["max_seq_length"]
    is_scored = request["form"] == "scores"
    examples = [
        sentence_transformers.InputExample(
            texts=row[:2], label=row[2] if is_scored else 0
        )
        for row in request["train"]
    ]
    losses = sentence_transformers.losses
    loss = (
        losses.CosineSimilarityLoss(model)
        if is_scored
        else losses.MultipleNegativesRankingLoss(model)
    )
    torch.manual_seed(request["seed"])
    # The order of the rows is in the request, so that all train on the same
    # batches.
    loader = torch.utils.data.DataLoader(
        examples, batch_size=request["batch_size"], collate_fn=list
    )
    steps = len(examples) // request["batch_size"]
    decayed, others = [], []
    for name, weight in model.named_parameters():
        is_plain = "bias" in name or "LayerNorm" in name
        (others if is_plain else decayed).append(weight)
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": 0.01},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=request["learning_rate"],
        eps=1e-6,
    )
    warmup = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(step / warmup, (steps - step) / steps),
    )
    model.train()
    for number, batch in enumerate(loader):
        if number == steps:
            break
        features = [
            {
                name: value.to(model.device)
                for name, value in model.tokenize(
                    [example.texts[column] for example in batch]
                ).items()
                if isinstance(value, torch.Tensor)
            }
            for column in range(2)
        ]
        labels = torch.tensor([float(example.label) for example in batch])
        value = loss(features, labels)
        value.backward()
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

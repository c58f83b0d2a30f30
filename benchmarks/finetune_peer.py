"""Fine-tunes with transformers and PyTorch; run by the other benchmarks.

    python finetune_peer.py REQUEST.json

The program runs in an environment with PyTorch, so it does not import the
project. The request has the model, the fields of `finetune_tasks.Settings`, the
training and test examples, and the path of the answer. Features and answers are
made as in transformers' examples (run_glue.py, run_swag.py, run_ner.py,
run_qa.py), batches are padded to their longest row, and the matrix products are
in bfloat16.
"""

import json
import os
import sys
import time

import finetune_peer_squad
import numpy as np
import torch
import transformers

_PREDICT_BATCH_SIZE = 64
_BATCHES_SORTED = 50
_IGNORED = -100
_NUM_LAST_LAYERS = 4


class FeatureTagger(torch.nn.Module):
    """A two-layer BiLSTM on the last four layers of a frozen encoder."""

    def __init__(self, model, num_labels, units):
        super().__init__()
        self.encoder = transformers.AutoModel.from_pretrained(
            model, add_pooling_layer=False
        ).requires_grad_(False)
        size = self.encoder.config.hidden_size * _NUM_LAST_LAYERS
        self.lstm = torch.nn.LSTM(
            size, units, num_layers=2, batch_first=True, bidirectional=True
        )
        self.dropout = torch.nn.Dropout(0.1)
        self.classifier = torch.nn.Linear(2 * units, num_labels)

    def train(self, mode=True):
        """Sets the mode; the encoder always evaluates, without dropout."""
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, attention_mask, labels=None, **inputs):
        with torch.no_grad():
            states = self.encoder(
                attention_mask=attention_mask,
                output_hidden_states=True,
                **inputs,
            ).hidden_states
        features = torch.cat(states[-_NUM_LAST_LAYERS:], -1)
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            features.float(),
            attention_mask.sum(1),
            batch_first=True,
            enforce_sorted=False,
        )
        with torch.autocast("cpu", enabled=False):
            outputs, _ = torch.nn.utils.rnn.pad_packed_sequence(
                self.lstm(packed)[0],
                batch_first=True,
                total_length=features.shape[1],
            )
        logits = self.classifier(self.dropout(outputs))
        result = {"logits": logits}
        if labels is not None:
            result["loss"] = torch.nn.functional.cross_entropy(
                logits.float().flatten(0, 1),
                labels.flatten(),
                ignore_index=_IGNORED,
            )
        return result


def load_tokenizer(request):
    """Returns the tokenizer in its own configuration."""
    return transformers.AutoTokenizer.from_pretrained(request["model"])


def build_model(request):
    """Returns the model with a fresh head and pooler."""
    kind, model = request["kind"], request["model"]
    num_labels = len(request["labels"])
    if request.get("approach") == "feature_based":
        return FeatureTagger(model, num_labels, request["lstm_units"])
    name = {
        "classification": "AutoModelForSequenceClassification",
        "choice": "AutoModelForMultipleChoice",
        "tagging": "AutoModelForTokenClassification",
        "squad": "AutoModelForQuestionAnswering",
    }[kind]
    options = {} if kind in ("choice", "squad") else {"num_labels": num_labels}
    built = getattr(transformers, name).from_pretrained(model, **options)
    if built.bert.pooler is not None:
        dense = built.bert.pooler.dense
        torch.nn.init.normal_(dense.weight, std=built.config.initializer_range)
        torch.nn.init.zeros_(dense.bias)
    return built


def make_rows(request, examples, tokenizer, is_training):
    """Returns the features of examples as lists of numbers."""
    if request["kind"] == "squad":
        return finetune_peer_squad.make_rows(
            request, examples, tokenizer, is_training
        )
    options = {"truncation": True, "max_length": request["max_seq_length"]}
    ids = {label: index for index, label in enumerate(request["labels"])}
    if request["kind"] == "tagging":
        encoded = tokenizer(
            [x["words"] for x in examples], is_split_into_words=True, **options
        )
    else:
        # One row for each choice, or for each example.
        choices = [x.get("choices", [x]) for x in examples]
        pairs = [choice for x in choices for choice in x]
        first = [pair["text"] for pair in pairs]
        second = [pair["text_pair"] for pair in pairs]
        if second[0] is None:
            second = None
        encoded = tokenizer(first, second, **options)
    rows = [
        {"input_ids": x, "token_type_ids": y}
        for x, y in zip(
            encoded["input_ids"], encoded["token_type_ids"], strict=True
        )
    ]
    if request["kind"] == "choice":
        size = len(choices[0])
        rows = [
            {"choices": rows[start : start + size]}
            for start in range(0, len(rows), size)
        ]
    for index, (row, example) in enumerate(zip(rows, examples, strict=True)):
        if request["kind"] == "tagging":
            words = encoded.word_ids(index)
            # Each word -> the position of its first token.
            row["first"] = {
                word: position
                for position, word in reversed([*enumerate(words)])
                if word is not None
            }
            row["labels"] = [_IGNORED] * len(words)
            for word, position in row["first"].items():
                row["labels"][position] = ids[example["tags"][word]]
        elif request["kind"] == "choice":
            row["labels"] = example["label"]
        else:
            row["labels"] = ids[example["label"]]
    return rows


def _length(row):
    parts = row.get("choices", [row])
    return max(len(part["input_ids"]) for part in parts)


def collate(rows, length=None):
    """Returns the batch of rows, padded to the longest or to `length`."""
    parts = [part for row in rows for part in row.get("choices", [row])]
    length = length or max(len(part["input_ids"]) for part in parts)

    def pad(values, value):
        return torch.tensor([x + [value] * (length - len(x)) for x in values])

    batch = {
        "input_ids": pad([x["input_ids"] for x in parts], 0),
        "token_type_ids": pad([x["token_type_ids"] for x in parts], 0),
        "attention_mask": pad([[1] * len(x["input_ids"]) for x in parts], 0),
    }
    if "choices" in rows[0]:
        batch = {k: x.view(len(rows), -1, length) for k, x in batch.items()}
    for key in ("labels", "start_positions", "end_positions"):
        if key in rows[0]:
            values = [row[key] for row in rows]
            nested = isinstance(values[0], list)
            batch[key] = (
                pad(values, _IGNORED) if nested else torch.tensor(values)
            )
    return batch


class Training:
    """The model, its optimizer and its schedule."""

    def __init__(self, model, request, num_steps):
        self.model = model
        self.in_bfloat16 = request.get("in_bfloat16", True)
        plain, decayed = [], []
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                exempt = "bias" in name or "LayerNorm" in name
                (plain if exempt else decayed).append(parameter)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": request["weight_decay"]},
                {"params": plain, "weight_decay": 0.0},
            ],
            lr=request["learning_rate"],
            eps=request["epsilon"],
            fused=True,
        )
        num_warmup_steps = int(num_steps * request["warmup_proportion"])

        def factor(step):
            # The original's schedule. The schedule of transformers would have a
            # rate that is higher by a constant factor after the warm-up.
            if step < num_warmup_steps:
                return step / num_warmup_steps
            return 1 - step / num_steps

        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, factor
        )

    def step(self, batch):
        """Takes one step; returns the loss."""
        with torch.autocast("cpu", torch.bfloat16, self.in_bfloat16):
            loss = self.model(**batch)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss.item()


def shuffle(rows, size, rng):
    """Yields an epoch's batches, each of rows of similar length.

    Like the Trainer's group_by_length, it sorts 50 batches at a time.
    """
    order = rng.permutation(len(rows))
    batches = []
    for start in range(0, len(rows), _BATCHES_SORTED * size):
        chunk = order[start : start + _BATCHES_SORTED * size]
        chunk = sorted(chunk, key=lambda i: -_length(rows[i]))
        batches += [chunk[i : i + size] for i in range(0, len(chunk), size)]
    for index in rng.permutation(len(batches)):
        yield [rows[i] for i in batches[index]]


def train(model, rows, request):
    """Trains the model; returns the mean loss of each epoch."""
    size, epochs = request["train_batch_size"], request["num_train_epochs"]
    rng = np.random.default_rng(request["seed"])
    steps_per_epoch = -(-len(rows) // size)
    training = Training(model, request, steps_per_epoch * epochs)
    model.train()
    means = []
    for epoch in range(epochs):
        losses = []
        for batch in shuffle(rows, size, rng):
            losses.append(training.step(collate(batch)))
            if len(losses) % 50 == 0:
                print(
                    f"epoch {epoch + 1}, step {len(losses)} of "
                    f"{steps_per_epoch}: loss {np.mean(losses[-50:]):.4f}",
                    flush=True,
                )
        means.append(float(np.mean(losses)))
    return means


def predict(
    model, rows, batch_size=_PREDICT_BATCH_SIZE, length=None, by_length=True
):
    """Returns each row's outputs; `by_length` sorts rows before batching."""
    model.eval()
    outputs = [None] * len(rows)
    order = list(range(len(rows)))
    if by_length:
        order.sort(key=lambda i: _length(rows[i]))
    for start in range(0, len(rows), batch_size):
        indices = order[start : start + batch_size]
        batch = collate([rows[i] for i in indices], length)
        for key in ("labels", "start_positions", "end_positions"):
            batch.pop(key, None)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            result = model(**batch)
        names = [x for x in result if x.endswith("logits")]
        arrays = [result[x].float().numpy() for x in names]
        for i, *values in zip(indices, *arrays, strict=True):
            outputs[i] = dict(zip(names, values, strict=True))
    return outputs


def to_predictions(request, examples, rows, outputs):
    """Returns one prediction an example, in the format of `finetune_tasks`."""
    if request["kind"] == "squad":
        return finetune_peer_squad.to_predictions(
            request, examples, rows, outputs
        )
    labels, predictions = request["labels"], []
    for example, row, output in zip(examples, rows, outputs, strict=True):
        ids = output["logits"].argmax(-1)
        if request["kind"] == "tagging":
            first = row["first"]
            predictions.append(
                [
                    labels[ids[first[word]]] if word in first else "O"
                    for word in range(len(example["words"]))
                ]
            )
        elif request["kind"] == "choice":
            predictions.append(int(ids))
        else:
            predictions.append(labels[ids])
    return predictions


def run(request):
    """Trains and predicts; returns the contents of the answer."""
    torch.set_num_threads(request["threads"])
    transformers.set_seed(request["seed"])
    tokenizer = load_tokenizer(request)
    seconds, clock = {}, time.monotonic()

    def lap(name):
        nonlocal clock
        now = time.monotonic()
        seconds[name], clock = now - clock, now

    rows = make_rows(request, request["train"], tokenizer, True)
    test_rows = make_rows(request, request["test"], tokenizer, False)
    lap("features")
    model = build_model(request)
    lap("load")
    losses = train(model, rows, request)
    lap("train")
    outputs = predict(model, test_rows)
    predictions = to_predictions(request, request["test"], test_rows, outputs)
    lap("predict")
    return {
        "predictions": predictions,
        "losses": losses,
        "seconds": seconds,
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def main(request_path):
    with open(request_path, encoding="utf-8") as file:
        request = json.load(file)
    answer = run(request)
    temporary = f"{request['output']}.tmp-{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(answer, file)
    os.replace(temporary, request["output"])


if __name__ == "__main__":
    main(sys.argv[1])

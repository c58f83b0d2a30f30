"""Settings, data and scores of the tasks of finetune_quality.py.

This module reads the files without the library, so that an error in the
library's readers would show in the comparison.
"""

import csv
import dataclasses
import gzip
import json
import os
from collections.abc import Callable
from typing import Any
from typing import Literal

import runs

# Wikigold has no split, so every fifth document is the test set.
_WIKIGOLD_FOLDS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings to train a task, in every framework.

    Both use AdamW with decoupled weight decay except for biases and LayerNorm,
    clip gradients to a norm of 1, and have dropout 0.1. The learning rate warms
    up linearly and decays linearly to 0.

    Attributes:
      kind: The kind of the examples.
      read: Reads the `Data` from the folder of all data sets.
      seeds: Number of seeds: 5 for test sets below 2,000 examples, and for
        SQuAD 1.1, whose runs differ most.
      max_seq_length: In tokens.
      doc_stride: Tokens between starts of windows; in transformers, overlap.
      with_negative: Whether questions may have no answer.
      approach: A tagger's approach, as in section 5.3 of the paper.
      lstm_units: Units in each direction of a BiLSTM.
      train_batch_size: Examples a step.
      learning_rate: The peak.
      num_train_epochs: Passes over the data.
      warmup_proportion: Share of the steps.
      weight_decay: AdamW's weight decay.
      epsilon: AdamW's epsilon.
    """

    kind: Literal["classification", "choice", "tagging", "squad"]
    read: Callable[[str], "Data"]
    seeds: int = 3
    max_seq_length: int = 128
    doc_stride: int = 128
    with_negative: bool = False
    approach: Literal["fine_tuning", "feature_based"] = "fine_tuning"
    lstm_units: int = 768
    train_batch_size: int = 32
    learning_rate: float = 1e-4
    num_train_epochs: int = 3
    warmup_proportion: float = 0.1
    weight_decay: float = 0.01
    epsilon: float = 1e-8

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that both frameworks get."""
        values = dataclasses.asdict(self)
        return {k: v for k, v in values.items() if k not in ("read", "seeds")}


@dataclasses.dataclass(frozen=True)
class Data:
    """The examples of a task, as objects of JSON.

    Classification has `text`, `text_pair` (or None) and `label`. Choice has
    `choices`, each with `text` and `text_pair`, and `label`, the index of the
    correct choice. Tagging has `words` and `tags` in IOB2. SQuAD has `id`,
    `question`, `context` and `answer`, {"start", "text"} or None.

    Attributes:
      train: Training examples.
      test: Test examples.
      labels: All labels, in the order of their ids.
      dataset: "data" of SQuAD's official file; None for other tasks.
    """

    train: list[dict[str, Any]]
    test: list[dict[str, Any]]
    labels: list[str] = dataclasses.field(default_factory=list)
    dataset: list[dict[str, Any]] | None = None


def _open(*path):
    name = os.path.join(*path)
    if name.endswith(".gz"):
        return gzip.open(name, "rt", encoding="utf-8", newline="")
    return open(name, encoding="utf-8", newline="")


def _classification(train, test):
    labels = sorted({label for _, _, label in train})
    keys = ("text", "text_pair", "label")
    splits = [
        [dict(zip(keys, row, strict=True)) for row in x] for x in (train, test)
    ]
    return Data(*splits, labels)


def _read_intents(name):
    def read(folder):
        splits = runs.read_intents(os.path.join(folder, name))
        return _classification(
            *([(x, None, y) for x, y in splits[s]] for s in ("train", "test"))
        )

    return read


def _read_pairs(columns, *names):
    def read(folder):
        splits = []
        for name in names:
            with _open(folder, *name) as file:
                rows = csv.DictReader(
                    file, delimiter="\t", quoting=csv.QUOTE_NONE
                )
                splits.append([tuple(x[c] for c in columns) for x in rows])
        return _classification(*splits)

    return read


def _choice(texts, label):
    choices = [{"text": x, "text_pair": y} for x, y in texts]
    return {"choices": choices, "label": label}


def _read_codah(folder):
    splits = []
    for split in ("train", "test"):
        with _open(folder, "codah", "fold_0", f"{split}.tsv") as file:
            rows = [line.rstrip("\r\n").split("\t") for line in file]
        splits.append(
            [
                _choice([(prompt, ending) for ending in endings], int(label))
                for _, prompt, *endings, label in rows
            ]
        )
    return Data(*splits)


def _read_comve(columns, first_column, right_column):
    """Returns a reader; the choices are in the order of the columns.

    A model scores each choice separately, so it cannot learn the order.
    """

    def read(folder):
        splits = []
        for split in ("train", "test"):
            with _open(folder, "comve", f"{split}.csv.gz") as file:
                rows = [
                    row
                    for row in csv.DictReader(file)
                    if all(row[column] for column in columns)
                ]
            splits.append(
                [
                    _choice(
                        [
                            (row[first_column], row[column])
                            if first_column
                            else (row[column], None)
                            for column in columns
                        ],
                        columns.index(right_column),
                    )
                    for row in rows
                ]
            )
        return Data(*splits)

    return read


def _read_columns(file):
    """Yields documents: lists of sentences, each of words and IOB2 tags."""
    documents, words, tags = [[]], [], []
    for line in [*file, ""]:
        fields = line.split()
        if fields and fields[0] != "-DOCSTART-":
            tag = fields[-1]
            # In IOB1 an entity begins with I-, unless one of its type precedes.
            previous = tags[-1] if tags else "O"
            if tag[0] == "I" and previous[1:] != tag[1:]:
                tag = f"B{tag[1:]}"
            words.append(fields[0])
            tags.append(tag)
            continue
        if words:
            documents[-1].append({"words": words, "tags": tags})
            words, tags = [], []
        if fields and documents[-1]:
            documents.append([])
    return documents


def _tagging(train, test):
    types = {tag[2:] for x in train for tag in x["tags"] if tag != "O"}
    labels = [f"{prefix}-{name}" for name in sorted(types) for prefix in "BI"]
    return Data(train, test, ["O", *labels])


def _read_wnut17(folder):
    splits = []
    for split in ("train", "test"):
        with _open(folder, "wnut17", f"{split}.conll") as file:
            splits.append(sum(_read_columns(file), []))
    return _tagging(*splits)


def _read_wikigold(folder):
    splits = ([], [])
    with _open(folder, "wikigold", "wikigold.conll.txt") as file:
        for index, sentences in enumerate(_read_columns(file)):
            is_test = index % _WIKIGOLD_FOLDS == _WIKIGOLD_FOLDS - 1
            splits[is_test].extend(sentences)
    return _tagging(*splits)


def squad_paths(folder, with_negative):
    """Returns the files to train on and to test on."""
    names = (
        ("train-v2.0-part.json.gz", "dev-v2.0.json.gz")
        if with_negative
        else ("train-v1.1-union.json.gz", "dev-v1.1.json.gz")
    )
    return [os.path.join(folder, "squad", name) for name in names]


def _read_squad(with_negative):
    def read(folder):
        splits = []
        for path in squad_paths(folder, with_negative):
            with _open(path) as file:
                dataset = json.load(file)["data"]
            splits.append(
                [
                    _question(question, paragraph["context"])
                    for article in dataset
                    for paragraph in article["paragraphs"]
                    for question in paragraph["qas"]
                ]
            )
        return Data(*splits, dataset=dataset)

    return read


def _question(question, context):
    answer = next(iter(question["answers"]), None)
    if answer:
        answer = {"start": answer["answer_start"], "text": answer["text"]}
    kept = {key: question[key] for key in ("id", "question")}
    return kept | {"context": context, "answer": answer}


_SQUAD = {
    "kind": "squad",
    "max_seq_length": 384,
    "train_batch_size": 16,
    "num_train_epochs": 1,
}
_FINE_TUNING = {"kind": "tagging", "seeds": 5, "num_train_epochs": 5}
_FEATURE_BASED = {
    "kind": "tagging",
    "seeds": 5,
    "approach": "feature_based",
    "learning_rate": 1e-3,
}
# Usual values, chosen once and never tuned. Cheap tasks come first.
TASKS = {
    "codah": Settings(
        kind="choice",
        read=_read_codah,
        seeds=5,
        train_batch_size=16,
        num_train_epochs=3,
    ),
    "wnut17": Settings(read=_read_wnut17, max_seq_length=256, **_FINE_TUNING),
    "wikigold": Settings(
        read=_read_wikigold, max_seq_length=256, **_FINE_TUNING
    ),
    "comve_a": Settings(
        kind="choice",
        read=_read_comve(
            ["Correct Statement", "Incorrect Statement"],
            None,
            "Incorrect Statement",
        ),
        seeds=5,
    ),
    "clinc150": Settings(
        kind="classification",
        read=_read_intents("clinc150"),
        learning_rate=2e-4,
        num_train_epochs=5,
    ),
    "banking77": Settings(
        kind="classification",
        read=_read_intents("banking77"),
        learning_rate=2e-4,
    ),
    "snli": Settings(
        kind="classification",
        read=_read_pairs(
            ("premise", "hypothesis", "label"),
            ("snli", "dev.tsv.gz"),
            ("snli", "test.tsv.gz"),
        ),
        num_train_epochs=2,
    ),
    "qnli": Settings(
        kind="classification",
        read=_read_pairs(
            ("question", "sentence", "label"),
            ("qnli", "train_part.tsv.gz"),
            ("qnli", "dev.tsv.gz"),
        ),
        num_train_epochs=2,
    ),
    "wikigold_features": Settings(
        read=_read_wikigold,
        max_seq_length=256,
        num_train_epochs=6,
        **_FEATURE_BASED,
    ),
    "wnut17_features": Settings(
        read=_read_wnut17, max_seq_length=256, **_FEATURE_BASED
    ),
    "squad1.1": Settings(read=_read_squad(False), seeds=5, **_SQUAD),
    "squad2.0": Settings(read=_read_squad(True), with_negative=True, **_SQUAD),
    "comve_b": Settings(
        kind="choice",
        read=_read_comve(
            ["Right Reason1", "Confusing Reason1", "Confusing Reason2"],
            "Incorrect Statement",
            "Right Reason1",
        ),
        seeds=5,
        train_batch_size=16,
        num_train_epochs=1,
    ),
}


def score(task: str, data: Data, predictions: Any) -> dict[str, float]:
    """Returns the metrics of a task's predictions, in percent.

    Args:
      task: A key of `TASKS`.
      data: The `Data` that the task's `read` returned.
      predictions: For each example of `data.test` a label, the index of a
        choice, or a sentence's tags; for SQuAD, id -> {"answer", "null_odds"}.
    """
    settings = TASKS[task]
    if settings.kind == "squad":
        return _score_squad(data, predictions, settings.with_negative)
    if len(predictions) != len(data.test):
        raise ValueError(
            f"Expected {len(data.test)} predictions. Received: "
            f"{len(predictions)}."
        )
    if settings.kind == "tagging":
        from seqeval import metrics

        tags = [x["tags"] for x in data.test]
        return {"f1": 100 * float(metrics.f1_score(tags, predictions))}
    right = sum(
        example["label"] == prediction
        for example, prediction in zip(data.test, predictions, strict=True)
    )
    return {"accuracy": 100 * right / len(predictions)}


def _score_squad(data, predictions, with_negative):
    from official.nlp.tools import squad_evaluate_v1_1
    from official.nlp.tools import squad_evaluate_v2_0

    missing = {x["id"] for x in data.test} ^ predictions.keys()
    if missing:
        raise ValueError(f"Questions without an answer: {sorted(missing)[:5]}.")
    answers = {key: x["answer"] for key, x in predictions.items()}
    if not with_negative:
        scores = squad_evaluate_v1_1.evaluate(data.dataset, answers)
        return {
            "exact_match": 100 * scores["exact_match"],
            "f1": 100 * scores["final_f1"],
        }
    odds = {key: x["null_odds"] for key, x in predictions.items()}
    # Both get the best threshold for the test questions. Half of these have no
    # answer, but only few of the training questions, so a threshold tuned on
    # training questions would be wrong for both.
    scores = squad_evaluate_v2_0.evaluate(data.dataset, answers, odds)
    return {"exact": scores["final_exact"], "f1": scores["final_f1"]}

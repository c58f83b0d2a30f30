"""Tiny models and files under the names that the documentation's blocks use.

The models have random weights, and a vocabulary made from docs/samples.
"""

import collections
import csv
import gzip
import json
import os
import pathlib
import re

import numpy as np

import bert_tf
from bert_tf.checkpoints import model_directory
from bert_tf.config import BertConfig
from bert_tf.modeling import bert as bert_model
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary

_SAMPLES = pathlib.Path(__file__).resolve().parents[1] / "docs" / "samples"
# A folder with the name of a released model is read instead of that model. A
# name with the prefix hf:// is replaced in the blocks.
_MINILM = "all-MiniLM-L6-v2"
# The models' numbers of layers; the features of Table 7 need four.
_MODELS = {
    _MINILM: 2,
    "bert-base-cased": 4,
    "bert-base-uncased": 1,
    "bert-mini": 1,
    "bert-small": 1,
}
# A classifier of topics, for pages that do not train it.
CLASSIFIER = "output/topics/model"
_TOPICS = ("money", "sports", "travel", "weather")
_SPECIAL = ["[PAD]", *(f"[unused{i}]" for i in range(99))]
_SPECIAL += ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_NUM_WORDS = 400
_CONFIG = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
}


def replace_names(text: str) -> str:
    """Replaces the names of models in a block by paths."""
    return text.replace(f"hf://sentence-transformers/{_MINILM}", _MINILM)


def _sample_texts() -> str:
    paths = sorted(x for x in _SAMPLES.rglob("*") if x.is_file())
    return "\n".join(x.read_text(encoding="utf-8") for x in paths)


def _vocabulary(text: str) -> Vocabulary:
    text = text.lower()
    letters = sorted(set(text) - set(" \n\t"))
    words = collections.Counter(re.findall(r"[a-z]{2,}", text))
    tokens = [*_SPECIAL, *letters, *(f"##{x}" for x in letters if x.isalnum())]
    return Vocabulary([*tokens, *(x for x, _ in words.most_common(_NUM_WORDS))])


def _write_models(folder: str, vocabulary: Vocabulary) -> None:
    settings = BertTokenizer(vocabulary).settings()
    for name, num_layers in _MODELS.items():
        config = BertConfig(
            vocab_size=len(vocabulary.tokens),
            num_hidden_layers=num_layers,
            **_CONFIG,
        )
        model = bert_model.BertForPretraining(config)
        weights = {
            name: np.asarray(variable)
            for name, variable in bert_model.named_variables(model).items()
        }
        model_directory.write(
            os.path.join(folder, name),
            config,
            weights,
            vocabulary,
            settings,
            {"kind": "pretraining", "max_seq_length": 128},
            "# Tiny\n",
        )


def _write_rows(folder: str, name: str, rows: list[dict]) -> None:
    """Writes rows as .csv, .tsv or .jsonl."""
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        if name.endswith(".jsonl"):
            file.writelines(json.dumps(row) + "\n" for row in rows)
            return
        delimiter = "\t" if name.endswith(".tsv") else ","
        writer = csv.DictWriter(file, rows[0], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def write(folder: str) -> None:
    """Fills a folder with models and files."""
    os.makedirs(folder, exist_ok=True)
    vocabulary = _vocabulary(_sample_texts())
    _write_models(folder, vocabulary)
    classifier = bert_tf.load_model(
        os.path.join(folder, _MINILM), "classification", labels=_TOPICS
    )
    columns = {"text": "text", "text_pair": None, "labels": ["topic"]}
    classifier.preprocessor.task_values["columns"] = columns
    bert_tf.save_model(classifier, os.path.join(folder, CLASSIFIER))
    for split, count in (("train", 40), ("dev", 8), ("test", 8)):
        source = "dev" if split == "test" else split
        path = _SAMPLES / "topics" / f"{source}.csv"
        with open(path, encoding="utf-8", newline="") as file:
            topics = list(csv.DictReader(file))[:count]
        # Rows have every column that a page names.
        rows = [
            {
                "id": index,
                "text": row["text"],
                "body": row["text"],
                "question": "What is it about?",
                "answer": row["text"],
                "label": "good" if index % 2 else "bad",
                "topic": row["topic"],
                "stars": 1 + index % 5,
            }
            for index, row in enumerate(topics)
        ]
        for ending in ("csv", "tsv"):
            _write_rows(folder, f"{split}.{ending}", rows)
        tagged = [row | {"tags": [row["topic"]]} for row in rows]
        _write_rows(folder, f"{split}.jsonl", tagged)
        conll = (_SAMPLES / "names" / f"{source}.conll").read_text("utf-8")
        sentences = conll.split("\n\n")[:count]
        columns = re.sub(r"(?m) (?=\S+$)", " X X ", "\n\n".join(sentences))
        pathlib.Path(folder, f"{split}.conll").write_text(columns + "\n")
    _write_rows(folder, "more.csv", [{"text": row["text"]} for row in rows])
    sentences = [row["text"] for row in topics] * 4
    documents = "\n\n".join("\n".join(sentences) for _ in range(8)) + "\n"
    pathlib.Path(folder, "field.txt").write_text(documents, "utf-8")
    pathlib.Path(folder, "lines.txt").write_text(documents[:200], "utf-8")
    os.makedirs(os.path.join(folder, "text"))
    with gzip.open(os.path.join(folder, "text", "a.txt.gz"), "wt") as file:
        file.write(documents)
    os.makedirs(os.path.join(folder, "data"))
    vocabulary_path = pathlib.Path(folder, "data", "vocab.txt")
    vocabulary_path.write_text("\n".join(vocabulary.tokens) + "\n", "utf-8")

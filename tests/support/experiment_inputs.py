"""A corpus and folders of tasks for tests of the experiments."""

import json
import os

_NOUNS = ("river", "castle", "doctor", "garden", "letter", "winter", "harbor")
_VERBS = ("sees", "finds", "paints", "follows", "forgets", "repairs")
_CITIES = ("Paris", "Oslo", "Lima", "Cairo")


def sentence(number):
    """Returns one of many sentences."""
    first = _NOUNS[number % 7]
    second = _NOUNS[(number // 7 + 1) % 7]
    return f"The {first} {_VERBS[number % 6]} the {second} number {number}."


def write_corpus(folder, num_documents=60, first=0):
    """Writes a corpus and returns its path."""
    path = os.path.join(folder, "corpus.txt")
    documents = (
        "".join(f"{sentence(first + 9 * i + j)}\n" for j in range(9))
        for i in range(num_documents)
    )
    _write(path, "\n".join(documents))
    return path


def write_tasks(folder):
    """Writes a task of each usual kind, and returns their folder."""
    folder = os.path.join(folder, "tasks")
    _write_rows(folder, "pairs", {"text_pair": "other"})
    _write(
        os.path.join(folder, "names", "task.json"),
        json.dumps({"kind": "tagging", "train": "train.conll"}),
    )
    lines = (
        f"The O\n{_NOUNS[i % 7]} O\nof O\n{_CITIES[i % 4]} B-LOC\n"
        for i in range(60)
    )
    _write(os.path.join(folder, "names", "train.conll"), "\n".join(lines))
    return folder


def _write_rows(folder, name, columns):
    task = {
        "kind": "classification",
        "train": "a.tsv",
        "dev": "b.tsv",
        "test": "c.tsv",
        "columns": columns,
        "metric": "accuracy",
    }
    _write(os.path.join(folder, name, "task.json"), json.dumps(task))
    for file, first, count in (
        ("a.tsv", 0, 60),
        ("b.tsv", 100, 30),
        ("c.tsv", 200, 30),
    ):
        rows = (
            f"{sentence(i)}\t{sentence(i + 1 + i % 3)}\tlabel{i % 3}\n"
            for i in range(first, first + count)
        )
        path = os.path.join(folder, name, file)
        _write(path, "text\tother\tlabel\n" + "".join(rows))


def _write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)

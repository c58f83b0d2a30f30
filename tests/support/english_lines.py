"""All lines of English text at hand."""

import contextlib
import csv
import gzip
import io
import json
import pathlib
import unittest

from tests.support.shared_data import data
from tests.support.shared_data import golden

_FOLDERS = (
    "banking77",
    "clinc150",
    "codah",
    "comve",
    "corpus",
    "mnli",
    "qnli",
    "snli",
    "squad",
    "wikigold",
    "wnli",
    "wnut17",
)
_SUFFIXES = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".conll")


def read() -> list[str]:
    """Returns every line of every text, each once, in a fixed order.

    Questions, contexts, cells of tables and words of tagged sentences, and also
    labels and numbers, which do no harm.
    """
    lines, folders = {}, [golden("squad_dev")]
    with contextlib.suppress(unittest.SkipTest):
        folders += [data(name) for name in _FOLDERS]
    for folder in folders:
        for path in sorted(pathlib.Path(folder).rglob("*")):
            name = path.name.removesuffix(".gz")
            suffix = pathlib.Path(name).suffix
            if path.is_file() and suffix in _SUFFIXES:
                contents = path.read_bytes()
                if path.suffix == ".gz":
                    contents = gzip.decompress(contents)
                for text in _texts(contents.decode("utf-8"), suffix):
                    lines.update(dict.fromkeys(text.split("\n")))
    lines.pop("", None)
    return list(lines)


def _texts(contents: str, suffix: str):
    if suffix == ".txt":
        return [contents]
    if suffix == ".conll":
        # A line has a word and its tags; a blank line ends a sentence.
        return [
            " ".join(w for x in sentence.split("\n") for w in x.split()[:1])
            for sentence in contents.split("\n\n")
            if sentence.strip()
        ]
    if suffix == ".csv":
        rows = csv.reader(io.StringIO(contents, newline=""))
        return [cell for row in rows for cell in row]
    if suffix == ".tsv":
        return contents.replace("\t", "\n").split("\n")
    if suffix == ".jsonl":
        lines = contents.split("\n")
        return [t for x in lines if x for t in _strings(json.loads(x))]
    return _strings(json.loads(contents))


def _strings(value):
    """Yields every string in a JSON value, except keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        values = value.values() if isinstance(value, dict) else value
        for child in values:
            yield from _strings(child)

"""Labeled rows and tiny models for every task."""

import dataclasses
import functools
import json
import os

from bert_tf.export.tflite import build as builds
from bert_tf.export.tflite import run as tflite_export
from bert_tf.flags.export import TfliteConfig
from tests.support import squad_files
from tests.support import tiny_builds

_TEXTS = (
    "the cat",
    "dog on mat",
    "the cat sat on the mat.",
    "the dogs sitting on mats, cat",
    "cats , dogs",
    "the mat",
    "cat . cat",
    "sat sat sat sat sat sat sat sat sat sat sat sat sat",
    "on the mat",
)


def _table(*columns):
    rows = zip(*columns[1:], strict=True)
    lines = [columns[0], *("\t".join(map(str, row)) for row in rows)]
    return "\n".join(lines) + "\n"


def _cycle(values):
    return [values[i % len(values)] for i in range(len(_TEXTS))]


def _squad():
    rows = [(text, "the cat", text[:3]) for text in _TEXTS]
    return json.dumps({"version": "v2.0", "data": squad_files.dataset(rows)})


def _columns():
    tags = ("O", "B-PER", "I-PER", "B-LOC")
    return "\n".join(
        "".join(
            f"{word}\t{tags[i % len(tags)]}\n"
            for i, word in enumerate(text.split())
        )
        for text in _TEXTS
    )


def _choices():
    return "".join(
        json.dumps(
            {"context": text, "choices": ["cat", "dog mat", "on"], "label": 1}
        )
        + "\n"
        for text in _TEXTS
    )


_LABELS = ("no", "yes", "ümlaut")
_PAIRS = ("text\ttext_pair\tlabel", _TEXTS, _cycle(["mat", "the dog"]))
# The suffix and the content of the file, by name of the head.
_FILES = {
    "classification": (".tsv", _table("text\tlabel", _TEXTS, _cycle(_LABELS))),
    "pair": (".tsv", _table(*_PAIRS, _cycle(_LABELS))),
    "multi_label": (
        ".tsv",
        _table("text\tlabel", _TEXTS, _cycle(["no,yes", "", "yes"])),
    ),
    "regression": (".tsv", _table(*_PAIRS, _cycle([0.5, -1.0, 3.0, 2.0]))),
    "question_answering": (".json", _squad()),
    "multiple_choice": (".jsonl", _choices()),
    "tagging": (".conll", _columns()),
}
NAMES = tuple(_FILES)


@functools.cache
def write(name):
    """Writes labeled rows; returns the path of the file."""
    ending, text = _FILES[name]
    path = os.path.join(tiny_builds.folder(), f"{name}_dev{ending}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


@functools.cache
def config(name, **flags) -> TfliteConfig:
    """Returns flags for a tiny model with labeled rows."""
    rows = {"eval_file": write(name)} if name in _FILES else {}
    return dataclasses.replace(tiny_builds.config(name), **rows | flags)


@functools.cache
def prepare(name, **flags):
    """Returns the prepared build of `config`."""
    return builds.prepare(config(name, **flags))


@functools.cache
def make(name, **flags):
    """Returns a file that was converted and verified."""
    if not flags:
        return tiny_builds.make(name).content  # Shared with other tests.
    return tflite_export.make(prepare(name, **flags)).content

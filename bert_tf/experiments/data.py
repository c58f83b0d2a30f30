"""Finds and prepares the tasks in --data_dir, and the corpus.

A task is found by the names of its official files, or described by a task.json.
A hash of a document's text decides whether the document is for training or held
out, so all copies of a document are in the same part.
"""

import bisect
import collections
import dataclasses
import functools
import glob
import gzip
import hashlib
import itertools
import json
import os
import random
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.io import tables
from bert_tf.io import text_files
from bert_tf.tasks.classification import examples as classification_examples
from bert_tf.tasks.classification import glue_tasks
from bert_tf.tasks.multiple_choice import examples as multiple_choice_examples

# In the flags of a command, this placeholder stands for --output_dir.
OUT = "{out}"

CLASSIFICATION, REGRESSION = "classification", "regression"
MULTIPLE_CHOICE, TAGGING = "multiple_choice", "tagging"
_SPLITS = ("train", "dev", "test")
# Increase this when `prepare` changes; otherwise it reuses its old files.
_FORMAT = 1
# Without a dev file, taggers hold out the last fifth of the training sentences.
_HELD_OUT = 5
# Names of the two files that a corpus is split into, without .txt.
TRAIN, HELD_OUT = "train", "heldout"
_HELD_OUT_SHARE = 0.02
_MEGABYTE = 1e6


@functools.cache
def read_recipe(name: str) -> dict[str, Any]:
    """Returns the contents of a file in `recipes/experiments/`."""
    folder = os.path.join(paths.RECIPES, "experiments")
    return text_files.read_json(os.path.join(folder, f"{name}.json"))


def digest(values: Any) -> str:
    """Returns a short hash of JSON values."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def write_json(path: str, values: Any) -> None:
    """Writes a JSON file atomically; NaN is an error."""
    text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)
    files.write_text(path, f"{text}\n")


Values = Mapping[str, Any]
# The script, split flags, columns and metrics of each kind of task.
KINDS: Values = read_recipe("tasks")["kinds"]
# Names lack hyphens, so that folders named sst2 and SST-2 are both found.
_GLUE = {x.name.replace("-", ""): x for x in glue_tasks.TASKS.values()}


@dataclasses.dataclass(frozen=True)
class Task:
    """A task in --data_dir; `prepare` sets the last three attributes.

    Attributes:
      name: The task's name in --tasks.
      kind: A key of `KINDS`.
      files: The path of each split's file; only taggers may lack dev.
      columns: Maps roles, such as label, to the names or indices of columns.
      metric: The metric that the tables show.
      official: The library's name for the task; None if files are unofficial.
      no_label: Labels that mean "no label"; rows with them are left out.
      flags: The flags that name the prepared files and their columns.
      num_train: Number of training rows.
      majority: Percentage of the most frequent label in dev, or None.
    """

    name: str
    kind: str
    files: Mapping[str, str]
    columns: Mapping[str, Any]
    metric: str
    official: str | None = None
    no_label: Sequence[str] = ()
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_train: int = 0
    majority: float | None = None


# === Finding tasks ===


def find_tasks(data_dir: str | None) -> dict[str, Task]:
    """Returns the tasks in a directory, by name.

    Raises:
      UserError: If a task.json is wrong.
    """
    if not data_dir:
        return {}
    found = {}
    for title in sorted(x.name for x in os.scandir(data_dir) if x.is_dir()):
        folder, name = os.path.join(data_dir, title), title.lower()
        official = _GLUE.get(name.replace("-", "").replace("_", ""))
        if os.path.isfile(path := os.path.join(folder, "task.json")):
            found[name] = _described(name, folder, path)
        elif official and not official.has_languages:
            splits = *official.splits("train"), *official.splits("dev")
            values: dict[str, Any] = {x: official.file_names(x) for x in splits}
            values["kind"] = CLASSIFICATION if official.labels else REGRESSION
            values["columns"] = {"texts": official.texts[0]}
            values["metric"], name = official.metrics[0], official.name
            if task := _known(name, folder, values | {"official": name}):
                found[name] = task
    for name, values in read_recipe("tasks")["tasks"].items():
        folder = os.path.join(data_dir, values["folder"])
        if task := _known(name, folder, values):
            found.setdefault(name, task)
    return found


def _known(name: str, folder: str, values: Values) -> Task | None:
    """Returns a task if its train and dev files exist; test is optional."""
    found, kind = {}, values["kind"]
    for split in (x for x in values if x.startswith(_SPLITS)):
        names = (os.path.join(folder, x) for x in values[split])
        if path := next(filter(os.path.isfile, names), None):
            found[split] = path
        elif split != "test":
            if os.path.isdir(folder):
                logging.warning("%s lacks %s.", folder, values[split][0])
            return None
    columns = KINDS[kind]["columns"] | values.get("columns", {})
    others = {x: values[x] for x in ("official", "no_label") if x in values}
    return Task(name, kind, found, columns, values["metric"], **others)


def _described(name: str, folder: str, path: str) -> Task:
    """Returns the task of a task.json."""
    values = text_files.read_json(path)
    values = values if isinstance(values, dict) else {}
    # If the kind is unknown, assume TAGGING, to find other mistakes as well.
    kind = KINDS.get(name_of := str(values.get("kind")), KINDS[TAGGING])
    metric = values.get("metric", kind["metrics"][0])
    columns = values.get("columns", {})
    columns = columns if isinstance(columns, dict) else {"columns": columns}
    splits = [x for x in kind["splits"] if x in {*values, *kind["required"]}]
    found = {x: os.path.join(folder, str(values.get(x))) for x in splits}
    wrong = ["kind"] * (name_of not in KINDS)
    wrong += [x for x, file in found.items() if not os.path.isfile(file)]
    wrong += {*values} - {"kind", "columns", "metric", *found}
    wrong += {*columns} - {*kind["columns"]}
    wrong += ["metric"] * (metric not in kind["metrics"])
    if wrong:
        raise UserError(
            f"{path} must describe a task in the form that --list prints. "
            f"Wrong or missing: {', '.join(wrong)}."
        )
    return Task(name, values["kind"], found, kind["columns"] | columns, metric)


# === Preparing files ===


def prepare(
    task: Task,
    output_dir: str,
    max_train: int | None = None,
    max_dev: int | None = None,
) -> Task:
    """Writes a task's files in the format of its script, unless they exist.

    Samples with a fixed seed at most `max_dev` rows of dev and test each, and
    `max_train` training rows, or more if a label would be missing. Taggers keep
    the first sentences. The folder's name has a hash of files and arguments.

    Raises:
      UserError: If a file does not fit the task's description.
    """
    sums = {split: files.sha256(path) for split, path in task.files.items()}
    content = [task.kind, dict(task.columns), task.official, sums]
    name = f"{task.name}-{digest([*content, max_train, max_dev, _FORMAT])}"
    folder = os.path.join(output_dir, "data", name)
    info_file = os.path.join(folder, "info.json")
    if not os.path.exists(info_file):
        write_json(info_file, _write(task, folder, max_train, max_dev))
    flags = _flags(task, f"{OUT}/data/{name}")
    known = text_files.read_json(info_file)
    return dataclasses.replace(task, flags=flags, **known)


def _flags(task: Task, folder: str) -> dict[str, Any]:
    """Returns the flags of the script that name files and columns."""
    if task.official in glue_tasks.TASKS:
        return {"task_name": task.official, "data_dir": folder}
    columns, kind = task.columns, KINDS[task.kind]
    flags: dict[str, Any] = {
        kind["splits"][x]: f"{folder}/{x}{kind['ending']}"
        for x in dict.fromkeys((*task.files, "dev"))
    }
    if "test" in task.files:
        flags["do_predict"] = True
    flags |= kind["flags"]
    if task.kind == TAGGING:
        flags |= {f"{x}_column": column for x, column in columns.items()}
    elif columns.get("text_pair") is not None:
        flags["text_pair_column"] = "text_pair"
    elif task.kind == MULTIPLE_CHOICE and not _choice_columns(task).context:
        flags["context_column"] = ""
    return flags


def _write(
    task: Task, folder: str, max_train: int | None, max_dev: int | None
) -> dict[str, Any]:
    """Writes the files of all splits; returns `num_train` and `majority`."""
    ending = KINDS[task.kind]["ending"]
    others = {".conll": _read_sentences, ".json": _read_questions}
    read = others.get(ending, _read_texts)
    if task.kind == MULTIPLE_CHOICE:
        read = _read_choices
    elif task.official:
        read = _read_glue
    rows = {x: list(read(task, path)) for x, path in task.files.items()}
    if task.kind == TAGGING and "dev" not in rows:
        every = rows["train"]
        border = len(every) - len(every) // _HELD_OUT
        rows["train"], rows["dev"] = every[:border], every[border:]
    for split, every in rows.items():
        most = max_train if split == "train" else max_dev
        rows[split] = _sample(every, most, task.kind, split)
        if not rows[split]:
            raise UserError(f"{task.name} has no {split} rows to use.")
        contents = _to_text(rows[split], ending)
        files.write_text(os.path.join(folder, split + ending), contents)
    known = {"num_train": len(rows["train"]), "majority": None}
    if task.kind in (CLASSIFICATION, MULTIPLE_CHOICE):
        # Some tables show the accuracy even of tasks that F1 scores. So store
        # `majority`, the accuracy of always predicting the most frequent label.
        dev = next(y for x, y in rows.items() if x.startswith("dev"))
        counts = collections.Counter(row["label"] for row in dev)
        known["majority"] = 100 * max(counts.values()) / len(dev)
    return known


def _sample(
    rows: Sequence[Any], most: int | None, kind: str, split: str
) -> Sequence[Any]:
    """Samples at most `most` rows; adds training rows for missing labels."""
    if most is None or len(rows) <= most:
        return rows
    if kind == TAGGING:
        return rows[:most]  # Keeps the sentences of a document together.
    kept = set(random.Random(0).sample(range(len(rows)), most))
    if split == "train" and kind == CLASSIFICATION:
        # Keep a row of each label: scripts reject a label that only dev has.
        first = {x["label"]: i for i, x in reversed([*enumerate(rows)])}
        seen = {rows[index]["label"] for index in kept}
        kept |= {first[label] for label in first.keys() - seen}
    return [rows[index] for index in sorted(kept)]


# === Reading rows ===


def _read_glue(task: Task, path: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of an official file, with the task's column names."""
    official = glue_tasks.TASKS[task.official]
    for x in classification_examples.read_official(official, path, ""):
        texts = zip(task.columns["texts"], (x.text_a, x.text_b), strict=False)
        yield {**dict(texts), "label": x.label}


def _read_texts(task: Task, path: str) -> Iterator[dict[str, Any]]:
    roles = {x: str(y) for x, y in task.columns.items() if y is not None}
    table = tables.read_table(path)
    table.require(roles.values())
    for each in table.rows:
        row = {role: each.values.get(name) for role, name in roles.items()}
        if row["label"] is not None:  # The script refuses None, but not "None".
            row["label"] = str(row["label"])
        if row["label"] not in task.no_label:
            yield row


def _choice_columns(task: Task) -> multiple_choice_examples.Columns:
    if task.official:
        return multiple_choice_examples.OFFICIAL[task.official].columns
    context, choices, label = map(task.columns.get, KINDS[task.kind]["columns"])
    choices = tuple(choices) if isinstance(choices, list) else (str(choices),)
    return multiple_choice_examples.Columns(choices, context, label=label)


def _read_choices(task: Task, path: str) -> Iterator[dict[str, Any]]:
    task_files = multiple_choice_examples.MultipleChoiceFiles(
        name=task.official or "custom",
        columns=_choice_columns(task),
        files={"train": path},
    )
    for x in task_files.read("train"):
        row = {} if x.context is None else {"context": x.context}
        yield row | {"choices": list(x.choices), "label": str(x.label)}


def _read_sentences(task: Task, path: str) -> Iterator[str]:
    """Yields each sentence's text, including a -DOCSTART- line before it."""
    text = ""
    for block in _blocks(line for _, line in text_files.read_lines(path)):
        text += "\n".join(block)
        if block[-1].startswith("-DOCSTART-"):
            text += "\n\n"
        else:
            yield text
            text = ""


def _blocks(lines: Iterable[Any]) -> Iterator[list[Any]]:
    """Yields the groups of lines between blank lines."""
    for is_text, block in itertools.groupby(lines, lambda x: bool(x.strip())):
        if is_text:
            yield [*block]


def _read_questions(task: Task, path: str) -> Iterator[dict[str, Any]]:
    """Yields for each question its paragraph, with this question only."""

    def get(values: Any, key: str) -> list[Any]:
        return text_files.require_value(values, key, list, path)

    for article in get(text_files.read_json(path), "data"):
        for paragraph in get(article, "paragraphs"):
            for question in get(paragraph, "qas"):
                yield {**paragraph, "qas": [question]}


def _to_text(rows: Sequence[Any], ending: str) -> str:
    """Returns the contents of a file with these rows."""
    if ending == ".conll":
        return "\n\n".join(rows) + "\n"
    if ending == ".json":
        rows = [{"data": [{"title": "", "paragraphs": rows}]}]
    return "".join(json.dumps(x, ensure_ascii=False) + "\n" for x in rows)


# === The corpus ===


def find_corpus(patterns: str) -> dict[str, str]:
    """Returns the files that comma-separated globs match, with their SHA-256.

    Files are sorted by base name, so the order of the globs does not matter.

    Raises:
      UserError: If a glob matches no file.
    """
    found: dict[str, str] = {}
    for pattern in patterns.split(","):
        names = [*filter(os.path.isfile, glob.glob(pattern.strip()))]
        if not names:
            raise paths.no_match(pattern, "--corpus")
        found |= {name: files.sha256(name) for name in names}
    order = sorted(found, key=lambda x: (os.path.basename(x), found[x]))
    return {name: found[name] for name in order}


def corpus_name(sums: Mapping[str, str], scale: Values) -> str:
    """Returns the name of the folder with the two files of `split_corpus`."""
    sizes = [scale["corpus_megabytes"], scale["held_out_megabytes"]]
    return f"corpus-{digest([list(sums.values()), *sizes, _HELD_OUT_SHARE])}"


def split_corpus(names: Sequence[str], folder: str, scale: Values) -> None:
    """Writes the held-out and the training text, unless they exist.

    Documents are held out, in the order of their hashes, until they reach the
    scale's limit or 2% of the corpus. For example, documents of 1, 2 and 97 MB
    have a limit of 2 MB, so the first two documents are held out.

    Raises:
      UserError: If there are fewer than two documents.
    """
    if os.path.exists(train_file := f"{folder}/{TRAIN}.txt"):
        return
    # The keys are hashes, so copies of a document are counted once.
    sizes = {_place(x): len(x) for x in _documents(names)}
    if len(sizes) < 2:
        raise UserError(
            "--corpus must hold at least two documents, with a blank line "
            "between them, as one is held out for perplexities. Received: "
            f"{len(sizes)} in {', '.join(names)}."
        )
    places = sorted(sizes)
    # before[i] is the total size of the first i documents.
    before = [0, *itertools.accumulate(sizes[x] for x in places)]
    held_out = scale["held_out_megabytes"] * _MEGABYTE
    held_out = min(held_out, _HELD_OUT_SHARE * before[-1])
    first = min(bisect.bisect_left(before, held_out), len(places) - 1)
    most = (scale["corpus_megabytes"] or before[-1]) * _MEGABYTE
    end = bisect.bisect_left(before, before[first] + most)
    border, last = places[first], places[:end][-1]
    # The training file appears last: if it exists, both files are complete.
    with (
        files.atomic_file(train_file) as train_path,
        files.atomic_file(f"{folder}/{HELD_OUT}.txt") as held_out_path,
        open(held_out_path, "wb") as held_out_to,
        open(train_path, "wb") as train_to,
    ):
        for text in _documents(names):
            place = _place(text)
            if place <= last:
                to = held_out_to if place < border else train_to
                to.write(text + b"\n")


def _documents(names: Sequence[str]) -> Iterator[bytes]:
    """Yields documents: groups of lines between blank lines of a file."""
    for name in names:
        with (gzip.open if name.endswith(".gz") else open)(name, "rb") as file:
            for block in _blocks(file):
                yield b"".join(x.rstrip(b"\r\n") + b"\n" for x in block)


def _place(text: bytes) -> float:
    """Returns a hash of a document's text as a number from 0 to 1."""
    return int.from_bytes(hashlib.sha256(text).digest()[:6]) / 2**48

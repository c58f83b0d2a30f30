"""Tasks in the folders of --data_dir, and their files cut to a scale's rows.

A task is found by the names of its official files, or described by a task.json.
"""

import collections
import dataclasses
import functools
import hashlib
import json
import os
import random
from collections.abc import Callable
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
from bert_tf.tasks.classification import glue
from bert_tf.tasks.classification import glue_tasks
from bert_tf.tasks.multiple_choice import examples as multiple_choice

# Stands in flags for the folder of the experiments.
OUT = "{out}"

CLASSIFICATION, REGRESSION = "classification", "regression"
MULTIPLE_CHOICE, TAGGING = "multiple_choice", "tagging"
SQUAD, SQUAD2 = "squad", "squad2"
_TASK_FILE = "task.json"
_SPLITS = ("train", "dev", "test")
# Raised when the written files change, so that earlier ones are not used.
_FORMAT = 1
# Taggers without a dev file hold out the last row of this many.
_HELD_OUT = 5


@functools.cache
def read_recipe(name: str) -> dict[str, Any]:
    """Returns the contents of a file in `recipes/experiments/`."""
    folder = os.path.join(paths.RECIPES, "experiments")
    return text_files.read_json(os.path.join(folder, f"{name}.json"))


def digest(values: Any) -> str:
    """Returns a short hash of JSON values."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def write_bytes(path: str, contents: bytes) -> None:
    """Writes a local file that appears whole; imports no TensorFlow."""
    with files.local_file(path) as temporary, open(temporary, "wb") as file:
        file.write(contents)


def write_json(path: str, values: Any) -> None:
    """Writes a local JSON file that appears whole."""
    text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes(path, f"{text}\n".encode())


# As the recipe describes them.
KINDS: Mapping[str, Any] = read_recipe("tasks")["kinds"]
# Folders may be called SST-2, sst2 or sts_b.
_GLUE = {x.name.replace("-", ""): x for x in glue_tasks.TASKS.values()}


@dataclasses.dataclass(frozen=True)
class Task:
    """A task in --data_dir; `prepare` adds what its script reads.

    Attributes:
      name: Its name in --tasks.
      kind: A key of `KINDS`.
      files: Split to a path; only taggers may lack dev.
      columns: Role to the column's name or number.
      metric: The metric of the tables.
      official: Its name for the library's reader of official files, if any.
      no_label: The labels of rows that are left out.
      flags: The flags that name the prepared files and their columns.
      num_train: Rows to train on.
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
        if os.path.isfile(os.path.join(folder, _TASK_FILE)):
            found[name] = _described(name, folder)
        elif official and not official.has_languages:
            values: dict[str, Any] = {
                x: official.file_names(x)
                for x in (*official.splits("train"), *official.splits("dev"))
            }
            values["kind"] = CLASSIFICATION if official.labels else REGRESSION
            values["columns"] = {"texts": official.texts[0]}
            name = official.name
            values |= {"metric": official.metrics[0], "official": name}
            if task := _known(name, folder, values):
                found[name] = task
    for name, values in read_recipe("tasks")["tasks"].items():
        folder = os.path.join(data_dir, values["folder"])
        if task := _known(name, folder, values):
            found.setdefault(name, task)
    return found


def _known(name: str, folder: str, values: Mapping[str, Any]) -> Task | None:
    """Returns a task if all its files but test exist, by one of their names."""
    found = {}
    for split in (x for x in values if x.startswith(_SPLITS)):
        names = (os.path.join(folder, x) for x in values[split])
        found[split] = next(filter(os.path.isfile, names), None)
    missing = [x for x, y in found.items() if x != "test" and not y]
    if not found or missing:
        if os.path.isdir(folder):
            names = [values[x][0] for x in missing]
            logging.warning("%s lacks %s.", folder, ", ".join(names))
        return None
    return Task(
        name,
        values["kind"],
        {split: path for split, path in found.items() if path},
        KINDS[values["kind"]]["columns"] | values.get("columns", {}),
        values["metric"],
        values.get("official"),
        values.get("no_label", ()),
    )


def _described(name: str, folder: str) -> Task:
    """Returns the task of a task.json."""
    path = os.path.join(folder, _TASK_FILE)
    values = text_files.read_json(path)
    kind = isinstance(values, dict) and KINDS.get(str(values.get("kind")))
    if not kind:
        raise UserError(
            f"{path} must have a kind among {', '.join(KINDS)}. Received: "
            f"{values!r:.200}."
        )
    metric = values.get("metric", kind["metrics"][0])
    columns = values.get("columns", {})
    columns = columns if isinstance(columns, dict) else {"columns": columns}
    found = {
        x: os.path.join(folder, str(values.get(x)))
        for x in kind["splits"]
        if x in values or x in kind["required"]
    }
    wrong = [x for x, file in found.items() if not os.path.isfile(file)]
    wrong += {*values} - {"kind", "columns", "metric", *found}
    wrong += {*columns} - {*kind["columns"]}
    wrong += ["metric"] * (metric not in kind["metrics"])
    if wrong:
        raise UserError(
            f"{path} must name {', '.join(kind['splits'])} in its folder, "
            f"columns of {', '.join(kind['columns']) or 'nothing'}, and a "
            f"metric of {', '.join(kind['metrics'])}. Wrong or missing: "
            f"{', '.join(wrong)}."
        )
    return Task(name, values["kind"], found, kind["columns"] | columns, metric)


# === Files as a script reads them ===


def prepare(
    task: Task,
    output_dir: str,
    max_train: int | None = None,
    max_dev: int | None = None,
) -> Task:
    """Returns the files of a task, which are written if they do not exist.

    Rows beyond `max_train` and, of dev and test each, `max_dev` are left out: a
    sample that depends on nothing but their number; taggers read the first
    sentences. The name of the folder has a hash of the task's files.

    Raises:
      UserError: If a file is not as the task describes it.
    """
    sums = {split: files.sha256(path) for split, path in task.files.items()}
    content = [task.kind, dict(task.columns), task.official, sums]
    name = f"{task.name}-{digest([*content, max_train, max_dev, _FORMAT])}"
    folder = os.path.join(output_dir, "data", name)
    info_file = os.path.join(folder, "info.json")
    if not os.path.exists(info_file):
        write_json(info_file, _write(task, folder, max_train, max_dev))
    info = text_files.read_json(info_file)
    known = {x: info[x] for x in ("num_train", "majority")}
    flags = _flags(task, f"{OUT}/data/{name}")
    return dataclasses.replace(task, flags=flags, **known)


def _flags(task: Task, folder: str) -> dict[str, Any]:
    """Returns the flags of the script that name files and columns."""
    if task.official in glue_tasks.TASKS:
        return {"task_name": task.official, "data_dir": folder}
    columns, ending = task.columns, KINDS[task.kind]["ending"]
    splits = dict.fromkeys((*task.files, "dev"))
    flags = {f"{x}_file": f"{folder}/{x}{ending}" for x in splits}
    if "test" in splits:
        flags["do_predict"] = True
    if task.kind in (SQUAD, SQUAD2):
        flags["predict_file"] = flags.pop("dev_file")
        is_second = task.kind == SQUAD2
        return flags | ({"version_2_with_negative": True} if is_second else {})
    if task.kind == TAGGING:
        return flags | {f"{x}_column": columns[x] for x in ("word", "tag")}
    flags["task_name"] = "custom"
    if task.kind == MULTIPLE_CHOICE:
        if _choice_files(task).columns.context is None:
            flags["context_column"] = ""
    elif columns["text_pair"] is not None:
        flags["text_pair_column"] = "text_pair"
    if task.kind == REGRESSION:
        flags["problem_type"] = "regression"
    return flags


def _write(
    task: Task, folder: str, max_train: int | None, max_dev: int | None
) -> dict[str, Any]:
    """Writes the files of all splits, and returns what is known of them."""
    is_glue = task.official in glue_tasks.TASKS
    read = _read_glue if is_glue else _READERS[task.kind]
    ending = KINDS[task.kind]["ending"]
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
        contents = _to_text(rows[split], ending).encode()
        write_bytes(os.path.join(folder, split + ending), contents)
    known = {"num_train": len(rows["train"]), "majority": None}
    if task.kind in (CLASSIFICATION, MULTIPLE_CHOICE):
        # With other metrics, too, as a table may score by accuracy.
        dev = next(y for x, y in rows.items() if x.startswith("dev"))
        counts = collections.Counter(row["label"] for row in dev)
        known["majority"] = 100 * max(counts.values()) / len(dev)
    return known


def _sample(
    rows: Sequence[Any], most: int | None, kind: str, split: str
) -> Sequence[Any]:
    """Returns at most so many rows; to train, one of each label at least."""
    if most is None or len(rows) <= most:
        return rows
    if kind == TAGGING:
        return rows[:most]  # Neighbors are of one document.
    kept = set(random.Random(0).sample(range(len(rows)), most))
    if split == "train" and kind == CLASSIFICATION:
        # A label of dev that training lacks would be an error.
        first = {x["label"]: i for i, x in reversed([*enumerate(rows)])}
        seen = {rows[index]["label"] for index in kept}
        kept |= {first[label] for label in first.keys() - seen}
    return [rows[index] for index in sorted(kept)]


# === Rows of each kind ===


def _read_glue(task: Task, path: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of an official file, with one edition's columns."""
    official = glue_tasks.TASKS[task.official]
    for x in glue.read_split(official, path, "").examples:
        texts = zip(task.columns["texts"], (x.text_a, x.text_b), strict=False)
        yield {**dict(texts), "label": x.label}


def _read_texts(task: Task, path: str) -> Iterator[dict[str, Any]]:
    roles = {x: str(y) for x, y in task.columns.items() if y is not None}
    table = tables.read_table(path)
    table.require(roles.values())
    for each in table.rows:
        row = {role: each.values.get(name) for role, name in roles.items()}
        if row["label"] is not None:  # Else the script refuses the row.
            row["label"] = str(row["label"])
        if row["label"] not in task.no_label:
            yield row


def _choice_files(task: Task) -> multiple_choice.OfficialFiles:
    if task.official:
        return multiple_choice.OFFICIAL[task.official]
    context, choices, label = map(task.columns.get, KINDS[task.kind]["columns"])
    choices = tuple(choices) if isinstance(choices, list) else (str(choices),)
    columns = multiple_choice.Columns(choices, context, label=label)
    return multiple_choice.OfficialFiles(task.name, columns, {})


def _read_choices(task: Task, path: str) -> Iterator[dict[str, Any]]:
    own = _choice_files(task)
    for x in multiple_choice.read_examples(
        path, own.columns, columns_without_header=own.columns_without_header
    ):
        row = {} if x.context is None else {"context": x.context}
        yield row | {"choices": list(x.choices), "label": str(x.label)}


def _read_sentences(task: Task, path: str) -> Iterator[str]:
    """Yields sentences as they are, -DOCSTART- lines with the next one."""
    lines: list[str] = []
    for line in (*(line for _, line in text_files.read_lines(path)), ""):
        if line.strip():
            lines.append(line)
        elif lines and lines[-1].startswith("-DOCSTART-"):
            lines.append("")
        elif lines and lines[-1]:
            yield "\n".join(lines)
            lines = []


def _read_questions(task: Task, path: str) -> Iterator[dict[str, Any]]:
    """Yields paragraphs of one question each."""

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


_READERS: Mapping[str, Callable[[Task, str], Iterable[Any]]] = {
    CLASSIFICATION: _read_texts,
    REGRESSION: _read_texts,
    MULTIPLE_CHOICE: _read_choices,
    TAGGING: _read_sentences,
    SQUAD: _read_questions,
    SQUAD2: _read_questions,
}

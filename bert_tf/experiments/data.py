"""Tasks in the folders of --data_dir, and their files cut to a scale's rows.

A task is found by the names of its official files, or described by a task.json.
"""

import collections
import dataclasses
import functools
import gzip
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

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.io import tables
from bert_tf.io import text_files
from bert_tf.tasks.classification import glue_tasks
from bert_tf.tasks.multiple_choice import examples as multiple_choice

# Stands in flags for the folder of the experiments.
OUT = "{out}"

CLASSIFICATION, REGRESSION = "classification", "regression"
MULTIPLE_CHOICE, TAGGING = "multiple_choice", "tagging"
SQUAD, SQUAD2 = "squad", "squad2"
_TASK_FILE = "task.json"
_SPLITS = ("train", "dev", "test")
_KEYS = ("kind", *_SPLITS, "columns", "metric")
# Raised when the written files change, so that earlier ones are not used.
_FORMAT = 1
# Without a dev file, one row of this many is held out from training.
_HELD_OUT = 5
# Labels of rows without one in official files, as MNLI's.
_NO_LABEL = ("-", "-1")


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


@dataclasses.dataclass(frozen=True)
class Task:
    """A task in --data_dir; `prepare` adds what its script reads.

    Attributes:
      name: Its name in --tasks.
      kind: A key of `KINDS`.
      folder: The folder with its files.
      files: "train", "dev" and perhaps "test" to a path. Without dev, a part of
        train is held out.
      columns: Role to the column's name or number.
      metric: The metric of the tables.
      official: Its name for the script, if it reads the official files.
      no_label: The labels of rows that are left out.
      flags: The flags that name the prepared files and their columns.
      num_train: Rows to train on.
      majority: Percentage of the most frequent label in dev, or None.
    """

    name: str
    kind: str
    folder: str
    files: Mapping[str, str]
    columns: Mapping[str, Any]
    metric: str
    official: str | None = None
    no_label: Sequence[str] = ()
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_train: int = 0
    majority: float | None = None

    @property
    def is_glue(self) -> bool:
        """True if the script reads the official files of a GLUE task."""
        return bool(self.official) and self.kind in (CLASSIFICATION, REGRESSION)


# === Finding tasks ===


def find_tasks(data_dir: str | None) -> dict[str, Task]:
    """Returns the tasks in a directory, by name.

    Raises:
      UserError: If a task.json is wrong.
    """
    if not data_dir:
        return {}
    found = {}
    names = sorted(x.name for x in os.scandir(data_dir) if x.is_dir())
    for name in names:
        folder = os.path.join(data_dir, name)
        if os.path.isfile(os.path.join(folder, _TASK_FILE)):
            found[name.lower()] = _described(name.lower(), folder)
    for task in (*_official(data_dir, names), *_known(data_dir)):
        found.setdefault(task.name, task)
    return found


def expected_files(name: str) -> str:
    """Returns a phrase with the files that a task without task.json needs."""
    if known := read_recipe("tasks")["tasks"].get(name):
        names = [known[x][0] for x in ("train", "dev") if x in known]
        return f"{known['folder']}/ with {' and '.join(names)}"
    folded = {_fold(x.name): x for x in glue_tasks.TASKS.values()}
    task = folded.get(_fold(name))
    if task is not None and task.splits("train"):
        splits = ("train", task.splits("dev")[0])
        names = [task.stems[x][0] + ".tsv" for x in splits]
        return f"{task.title}/ with {' and '.join(names)}"
    return f"{name}/ with a {_TASK_FILE} and the files that it names"


def _fold(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _official(data_dir: str, folders: Sequence[str]) -> Iterator[Task]:
    """Yields the tasks of GLUE whose train and dev files are complete."""
    for folder in folders:
        for task in glue_tasks.TASKS.values():
            splits = [*task.splits("train"), *task.splits("dev")]
            if task.has_languages or _fold(task.name) != _fold(folder):
                continue
            where = os.path.join(data_dir, folder)
            found = {x: _first(where, task.file_names(x)) for x in splits}
            if task.splits("train") and all(found.values()):
                kind = CLASSIFICATION if task.labels else REGRESSION
                metric = task.metrics[0]
                yield Task(task.name, kind, where, found, {}, metric, task.name)


def _known(data_dir: str) -> Iterator[Task]:
    for name, values in read_recipe("tasks")["tasks"].items():
        folder = os.path.join(data_dir, values["folder"])
        found = {x: _first(folder, values[x]) for x in _SPLITS if x in values}
        if found["train"] and (found.get("dev") or "dev" not in values):
            yield Task(
                name,
                values["kind"],
                folder,
                {split: path for split, path in found.items() if path},
                {**KINDS[values["kind"]].columns, **values.get("columns", {})},
                values["metric"],
                values.get("official"),
                values.get("no_label", ()),
            )


def _first(folder: str, names: Sequence[str]) -> str | None:
    """Returns the path of the first file that exists."""
    found = (os.path.join(folder, name) for name in names)
    return next(filter(os.path.isfile, found), None)


def _described(name: str, folder: str) -> Task:
    """Returns the task of a task.json, after a check of each of its values."""
    path = os.path.join(folder, _TASK_FILE)

    def require(is_right: bool, what: str, received: Any) -> None:
        if not is_right:
            raise UserError(f"{path}: {what}. Received: {received!r}.")

    values = text_files.read_json(path)
    require(isinstance(values, dict), "expected one JSON object", values)
    unknown = sorted({*values} - {*_KEYS})
    require(not unknown, f"its keys must be among {', '.join(_KEYS)}", unknown)
    kind = values.get("kind")
    is_kind = isinstance(kind, str) and kind in KINDS
    require(is_kind, f"kind must be one of {', '.join(KINDS)}", kind)
    known = KINDS[kind]
    metric = values.get("metric") or known.metrics[0]
    names = ", ".join(known.metrics)
    is_known = metric in known.metrics
    require(is_known, f"the metric of {kind} must be one of {names}", metric)
    found = {}
    for split in _SPLITS:
        file = values.get(split)
        if file is None and split != "train":
            continue
        found[split] = os.path.join(folder, str(file))
        is_file = isinstance(file, str) and os.path.isfile(found[split])
        require(is_file, f"{split} must name a file in this folder", file)
    is_squad = kind in (SQUAD, SQUAD2)
    is_right = not (is_squad and "test" in found)
    require(is_right, f"{kind} has train and dev alone", values.get("test"))
    columns = values.get("columns") or {}
    roles = ", ".join(known.columns) or "nothing"
    is_right = isinstance(columns, dict) and {*columns} <= {*known.columns}
    require(is_right, f"columns of {kind} must be of {roles}", columns)
    for role, column in columns.items():
        is_list = role == "choices" and isinstance(column, list)
        for each in column if is_list else [column]:
            is_right = isinstance(each, int | str | None)
            require(is_right, f"{role} must be a column's name or number", each)
    columns = {**known.columns, **columns}
    return Task(name, kind, folder, found, columns, metric)


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
        most = {"train": max_train}
        most = {x: most.get(x, max_dev) for x in (*task.files, "dev")}
        write = _write_glue if task.is_glue else _write
        write_json(info_file, write(task, folder, most))
    info = text_files.read_json(info_file)
    return dataclasses.replace(
        task,
        flags=_flags(task, f"{OUT}/data/{name}", info["files"], info["pair"]),
        num_train=info["num_train"],
        majority=info["majority"],
    )


def _flags(
    task: Task, folder: str, names: Mapping[str, str], pair: bool
) -> dict[str, Any]:
    """Returns the flags of the script that name files and columns."""
    if task.is_glue:
        return {"task_name": task.official, "data_dir": folder}
    where = {x: f"{folder}/{y}" for x, y in names.items()}
    if task.kind in (SQUAD, SQUAD2):
        flags = {"train_file": where["train"], "predict_file": where["dev"]}
        is_second = task.kind == SQUAD2
        return flags | ({"version_2_with_negative": True} if is_second else {})
    flags = {f"{split}_file": path for split, path in where.items()}
    if "test" in names:
        flags["do_predict"] = True
    if task.kind == TAGGING:
        roles = ("word", "tag")
        return flags | {f"{x}_column": task.columns[x] for x in roles}
    flags["task_name"] = "custom"
    if task.kind == MULTIPLE_CHOICE:
        return flags if pair else flags | {"context_column": ""}
    if pair:
        flags["text_pair_column"] = "text_pair"
    if task.kind == REGRESSION:
        flags["problem_type"] = "regression"
    return flags


def _write(
    task: Task, folder: str, most: Mapping[str, int | None]
) -> dict[str, Any]:
    """Writes the files of all splits, and returns what is known of them."""
    kind = KINDS[task.kind]
    rows = {x: list(kind.read(task, path)) for x, path in task.files.items()}
    if "dev" not in rows:
        rows["train"], rows["dev"] = _hold_out(rows["train"], task.kind)
    names = {}
    for split, every in rows.items():
        rows[split] = _sample(every, most[split], task.kind, split)
        if not rows[split]:
            raise UserError(
                f"The task {task.name} must have rows to train on and rows to "
                f"score. Received: no {split} rows in {task.folder}."
            )
        names[split] = split + kind.ending
        contents = kind.to_text(rows[split]).encode()
        write_bytes(os.path.join(folder, names[split]), contents)
    first = rows["train"][0]
    is_row = isinstance(first, dict)  # Not a sentence of a tagger.
    return {
        "files": names,
        "pair": is_row and ("text_pair" in first or "context" in first),
        "num_train": len(rows["train"]),
        "majority": _majority(task, map(_label, rows["dev"])),
    }


def _write_glue(
    task: Task, folder: str, most: Mapping[str, int | None]
) -> dict[str, Any]:
    """Writes a sample of the lines of official files, under their names."""
    names, counts = {}, {}
    for split, path in task.files.items():
        names[split] = os.path.basename(path)
        packed = path.endswith(".gz")
        with (gzip.open if packed else open)(path, "rb") as file:
            # Line ends other than \n are part of a text.
            first, *lines = file.read().decode().split("\n")
        lines = [line for line in lines if line.strip()]
        lines = _sample(lines, most[split], task.kind)
        contents = "".join(f"{x}\n" for x in (first, *lines)).encode()
        write_bytes(
            os.path.join(folder, names[split]),
            gzip.compress(contents) if packed else contents,
        )
        counts[split] = len(lines)
    official = glue_tasks.get_task(task.official)
    dev = next(x for x in task.files if x.startswith("dev"))
    table = tables.read_table(
        os.path.join(folder, names[dev]),
        columns_without_header=official.columns_without_header,
        columns_of_longer_rows=official.columns_of_longer_rows,
        on_broken_row=lambda line: None,
    )
    known = [x for x in official.label_columns if x in table.columns][:1]
    labels = [row.values.get(x) for row in table.rows for x in known]
    labels = [str(x) for x in labels if x not in (None, *_NO_LABEL)]
    return {
        "files": names,
        "pair": True,
        "num_train": counts["train"],
        "majority": _majority(task, labels),
    }


def _sample(
    rows: Sequence[Any], most: int | None, kind: str, split: str = ""
) -> list[Any]:
    """Returns at most so many rows; to train, one of each label at least."""
    if most is None or len(rows) <= most:
        return list(rows)
    if kind == TAGGING:
        return list(rows[:most])  # Neighbors are of one document.
    kept = set(random.Random(0).sample(range(len(rows)), most))
    if split == "train" and kind == CLASSIFICATION:
        # A label of dev that training lacks would be an error.
        seen = {_label(rows[index]) for index in kept}
        for index, row in enumerate(rows):
            if _label(row) not in seen:
                seen.add(_label(row))
                kept.add(index)
    return [rows[index] for index in sorted(kept)]


def _hold_out(rows: Sequence[Any], kind: str) -> tuple[list[Any], list[Any]]:
    """Splits the rows of a task without dev: the last ones for taggers."""
    if kind in (TAGGING, SQUAD, SQUAD2):
        border = len(rows) - len(rows) // _HELD_OUT
        return list(rows[:border]), list(rows[border:])
    train, dev, labels = [], [], set()
    for number, row in enumerate(rows, start=1):
        # The first row of a label is one to train on.
        is_new = kind == CLASSIFICATION and _label(row) not in labels
        labels.add(_label(row))
        (dev if number % _HELD_OUT == 0 and not is_new else train).append(row)
    return train, dev


def _label(row: Any) -> Any:
    return row.get("label") if isinstance(row, dict) else None


def _majority(task: Task, labels: Iterable[Any]) -> float | None:
    # With other metrics, too, as a table may score by accuracy.
    counts = collections.Counter(labels)
    if not counts or task.kind not in (CLASSIFICATION, MULTIPLE_CHOICE):
        return None
    return 100 * max(counts.values()) / counts.total()


# === Rows of each kind ===


def _read_texts(task: Task, path: str) -> Iterator[dict[str, Any]]:
    roles = {x: str(y) for x, y in task.columns.items() if y is not None}
    table = tables.read_table(path)
    table.require(roles.values())
    for each in table.rows:
        row = {role: each.values.get(name) for role, name in roles.items()}
        where = f"{path}, line {each.line}"
        if row["label"] is None:
            raise UserError(f"{where} has no label in {roles['label']!r}.")
        row["label"] = str(row["label"])
        if row["label"] in task.no_label:
            continue
        if task.kind == REGRESSION:
            try:
                row["label"] = float(row["label"])
            except ValueError as error:
                raise UserError(
                    f"{where} must have a number as label. Received: "
                    f"{row['label']!r}."
                ) from error
        yield row


def _read_choices(task: Task, path: str) -> Iterator[dict[str, Any]]:
    if task.official:
        official = multiple_choice.OFFICIAL[task.official]
        columns, without = official.columns, official.columns_without_header
    else:
        names, without = task.columns["choices"], ()
        columns = multiple_choice.Columns(
            tuple(names) if isinstance(names, list) else (str(names),),
            task.columns["context"],
            label=task.columns["label"],
        )
    for x in multiple_choice.read_examples(
        path, columns, columns_without_header=without
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


def _read_questions(task: Task, path: str) -> list[dict[str, Any]]:
    """Returns the questions, each with the paragraph and the article."""
    values = text_files.read_json(path)
    try:
        return [
            {
                "title": article.get("title", ""),
                "context": paragraph["context"],
                "question": question,
            }
            for article in values["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} must be JSON in the form of SQuAD: data, paragraphs, "
            f"context and qas. Received: a file without {error}."
        ) from error


def _to_lines(rows: Sequence[Any]) -> str:
    return "".join(json.dumps(x, ensure_ascii=False) + "\n" for x in rows)


def _to_sentences(sentences: Sequence[str]) -> str:
    return "\n\n".join(sentences) + "\n"


def _to_squad(rows: Sequence[Mapping[str, Any]]) -> str:
    articles: dict[str, dict[str, list[Any]]] = {}
    for row in rows:
        paragraphs = articles.setdefault(row["title"], {})
        paragraphs.setdefault(row["context"], []).append(row["question"])
    data = [
        {
            "title": title,
            "paragraphs": [
                {"context": context, "qas": questions}
                for context, questions in paragraphs.items()
            ],
        }
        for title, paragraphs in articles.items()
    ]
    return json.dumps({"version": "1.1", "data": data}, ensure_ascii=False)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of task.

    Attributes:
      script: The script that fine-tunes.
      metrics: The metrics that it reports, the default one first.
      columns: The columns of its files, with defaults; None is optional.
      read: Yields the rows of a file.
      to_text: Returns the contents of a file with some rows.
      ending: The ending of such a file.
    """

    script: str
    metrics: tuple[str, ...]
    columns: Mapping[str, Any]
    read: Callable[[Task, str], Iterable[Any]]
    to_text: Callable[[Sequence[Any]], str] = _to_lines
    ending: str = ".jsonl"


_SQUAD = Kind(
    "run/finetune_squad.py",
    ("f1", "exact_match"),
    {},
    _read_questions,
    _to_squad,
    ".json",
)
_SENTENCES = Kind(
    "run/finetune_classifier.py",
    ("accuracy", "macro_f1", "matthews_correlation"),
    {"text": "text", "text_pair": None, "label": "label"},
    _read_texts,
)
KINDS: Mapping[str, Kind] = {
    CLASSIFICATION: _SENTENCES,
    REGRESSION: dataclasses.replace(
        _SENTENCES, metrics=("spearmanr", "pearson")
    ),
    MULTIPLE_CHOICE: Kind(
        "run/finetune_multiple_choice.py",
        ("accuracy",),
        {"context": "context", "choices": ["choices"], "label": "label"},
        _read_choices,
    ),
    TAGGING: Kind(
        "run/finetune_tagger.py",
        ("f1", "precision", "recall"),
        {"word": 0, "tag": -1},
        _read_sentences,
        _to_sentences,
        ".conll",
    ),
    SQUAD: _SQUAD,
    SQUAD2: _SQUAD,
}

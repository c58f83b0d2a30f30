"""Tasks in the folders of --data_dir: official files, or a task.json."""

import dataclasses
import functools
import os
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf.errors import UserError
from bert_tf.io import paths
from bert_tf.io import text_files
from bert_tf.tasks.classification import glue_tasks

TASK_FILE = "task.json"
CLASSIFICATION, REGRESSION = "classification", "regression"
MULTIPLE_CHOICE, TAGGING = "multiple_choice", "tagging"
SQUAD, SQUAD2 = "squad", "squad2"

# Kind to the metrics that its script reports, the default one first.
METRICS: Mapping[str, tuple[str, ...]] = {
    CLASSIFICATION: ("accuracy", "macro_f1", "matthews_correlation"),
    REGRESSION: ("spearmanr", "pearson"),
    MULTIPLE_CHOICE: ("accuracy",),
    TAGGING: ("f1", "precision", "recall"),
    SQUAD: ("f1", "exact_match"),
    SQUAD2: ("f1", "exact_match"),
}
# Kind to the columns of its files, with defaults; None is optional.
_COLUMNS: Mapping[str, Mapping[str, Any]] = {
    CLASSIFICATION: {"text": "text", "text_pair": None, "label": "label"},
    REGRESSION: {"text": "text", "text_pair": None, "label": "label"},
    MULTIPLE_CHOICE: {
        "context": "context",
        "choices": ["choices"],
        "label": "label",
    },
    TAGGING: {"word": 0, "tag": -1},
    SQUAD: {},
    SQUAD2: {},
}
_SPLITS = ("train", "dev", "test")
_KEYS = ("kind", *_SPLITS, "columns", "metric")
_KNOWN = os.path.join(paths.RECIPES, "experiments", "tasks.json")
# Stands for a list inside a JSON file: FILE#KEY.
KEY_MARK = "#"


@dataclasses.dataclass(frozen=True)
class TaskFolder:
    """The files of a task.

    Attributes:
      name: Its name in --tasks.
      kind: A key of `METRICS`.
      folder: The folder with its files.
      files: "train", "dev" and perhaps "test" to a path, or PATH#KEY. Without
        dev, a part of train is held out.
      columns: Role to the column's name or number.
      metric: The metric of the tables.
      official: Its name for the script, if it reads the official files.
      no_label: The labels of rows that are left out.
    """

    name: str
    kind: str
    folder: str
    files: Mapping[str, str]
    columns: Mapping[str, Any]
    metric: str
    official: str | None = None
    no_label: Sequence[str] = ()


@functools.cache
def known_tasks() -> Mapping[str, Mapping[str, Any]]:
    """Returns the tasks that need no task.json, besides those of GLUE."""
    return text_files.read_json(_KNOWN)["tasks"]


def find_tasks(data_dir: str | None) -> dict[str, TaskFolder]:
    """Returns the tasks in a directory, by name.

    Raises:
      UserError: If a task.json is wrong.
    """
    if not data_dir:
        return {}
    folders = sorted(
        entry.name for entry in os.scandir(data_dir) if entry.is_dir()
    )
    found = {}
    for name in folders:
        folder = os.path.join(data_dir, name)
        if os.path.isfile(os.path.join(folder, TASK_FILE)):
            found[name.lower()] = _described(name.lower(), folder)
    for task in (*_official(data_dir, folders), *_known(data_dir)):
        found.setdefault(task.name, task)
    return found


def expected_files(name: str) -> str:
    """Returns a phrase with the files that a task without task.json needs."""
    if name in known_tasks():
        values = known_tasks()[name]
        files = [values[x][0] for x in ("train", "dev") if x in values]
        return f"{values['folder']}/ with {' and '.join(files)}"
    folded = {x.name.replace("-", ""): x for x in glue_tasks.TASKS.values()}
    task = folded.get(name.replace("-", "").replace("_", ""))
    if task is not None and task.splits("train"):
        splits = ("train", task.splits("dev")[0])
        files = [task.stems[x][0] + ".tsv" for x in splits]
        return f"{task.title}/ with {' and '.join(files)}"
    return f"{name}/ with a {TASK_FILE} and the files that it names"


def _official(data_dir: str, folders: Sequence[str]) -> Iterator[TaskFolder]:
    """Yields the tasks of GLUE whose train and dev files are complete."""
    for folder in folders:
        folded = folder.lower().replace("-", "").replace("_", "")
        for task in glue_tasks.TASKS.values():
            splits = [*task.splits("train"), *task.splits("dev")]
            if task.has_languages or task.name.replace("-", "") != folded:
                continue
            where = os.path.join(data_dir, folder)
            files = {x: _first(where, task.file_names(x)) for x in splits}
            if task.splits("train") and all(files.values()):
                kind = CLASSIFICATION if task.labels else REGRESSION
                metric = task.metrics[0]
                yield TaskFolder(
                    task.name, kind, where, files, {}, metric, task.name
                )


def _known(data_dir: str) -> Iterator[TaskFolder]:
    for name, values in known_tasks().items():
        folder = os.path.join(data_dir, values["folder"])
        files = {
            split: _first(folder, values[split])
            for split in _SPLITS
            if split in values
        }
        if files["train"] and (files.get("dev") or "dev" not in values):
            yield TaskFolder(
                name,
                values["kind"],
                folder,
                {split: path for split, path in files.items() if path},
                {**_COLUMNS[values["kind"]], **values.get("columns", {})},
                values["metric"],
                values.get("official"),
                values.get("no_label", ()),
            )


def _first(folder: str, names: Sequence[str]) -> str | None:
    """Returns the path of the first file that exists."""
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isfile(path.partition(KEY_MARK)[0]):
            return path
    return None


def _described(name: str, folder: str) -> TaskFolder:
    """Returns the task of a task.json.

    Raises:
      UserError: If a key is unknown or missing, or a file does not exist.
    """
    path = os.path.join(folder, TASK_FILE)
    values = text_files.read_json(path)
    if not isinstance(values, dict):
        raise UserError(
            f"{path} must hold one JSON object with the keys "
            f"{', '.join(_KEYS)}. Received: {type(values).__name__}."
        )
    unknown = sorted(set(values) - set(_KEYS))
    if unknown:
        raise UserError(
            f"{path} has unknown keys: {', '.join(unknown)}. Known keys: "
            f"{', '.join(_KEYS)}."
        )
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in METRICS:
        raise UserError(
            f"{path}: kind must be one of {', '.join(METRICS)}. Received: "
            f"{kind!r}."
        )
    metric = values.get("metric") or METRICS[kind][0]
    if metric not in METRICS[kind]:
        raise UserError(
            f"{path}: the metric of {kind} must be one of "
            f"{', '.join(METRICS[kind])}. Received: {metric!r}."
        )
    files = _own_files(path, folder, values)
    columns = _own_columns(path, kind, values.get("columns"))
    return TaskFolder(name, kind, folder, files, columns, metric)


def _own_files(
    path: str, folder: str, values: Mapping[str, Any]
) -> dict[str, str]:
    files = {}
    for split in _SPLITS:
        name = values.get(split)
        if name is None and split != "train":
            continue
        if split == "test" and values["kind"] in (SQUAD, SQUAD2):
            raise UserError(
                f"{path}: tasks of {values['kind']} have train and dev. "
                f"Received: test={name!r}; name the file to score as dev."
            )
        where = os.path.join(folder, str(name))
        if not isinstance(name, str) or not os.path.isfile(
            where.partition(KEY_MARK)[0]
        ):
            raise UserError(
                f"{path}: {split} must name a file in this folder. Received: "
                f"{name!r}."
            )
        files[split] = where
    return files


def _own_columns(path: str, kind: str, columns: Any) -> dict[str, Any]:
    """Returns the columns by role; a list names them in the usual order."""
    defaults = _COLUMNS[kind]
    roles = [*defaults]
    if isinstance(columns, list):
        if kind in (CLASSIFICATION, REGRESSION) and len(columns) == 2:
            roles = ["text", "label"]
        columns = dict(zip(roles, columns, strict=False))
    if columns is None:
        columns = {}
    if not isinstance(columns, dict) or set(columns) - set(roles):
        raise UserError(
            f"{path}: the columns of {kind} must be an object with "
            f"{', '.join(roles) or 'nothing'}. Received: {columns!r}."
        )
    for role, column in columns.items():
        is_list = role == "choices" and isinstance(column, list)
        names = column if is_list else [column]
        if not all(isinstance(x, int | str | None) for x in names):
            raise UserError(
                f"{path}: the column {role} must be a name or a number. "
                f"Received: {column!r}."
            )
    return {**defaults, **columns}

"""Training and dev files of tasks, cut to a scale's number of rows."""

import collections
import dataclasses
import gzip
import json
import os
import random
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf.errors import UserError
from bert_tf.experiments import jobs
from bert_tf.experiments import task_folders as kinds
from bert_tf.experiments import task_rows
from bert_tf.experiments.task_folders import TaskFolder
from bert_tf.io import files
from bert_tf.io import tables
from bert_tf.io import text_files
from bert_tf.tasks.classification import glue_tasks

# Raised when the written files change, so that earlier ones are not used.
_FORMAT = 1
# Without a dev file, one row of this many is held out from training.
_HELD_OUT = 5
_CHARACTERS_PER_TOKEN = 4.0
_INFO_FILE = "info.json"
# Labels of rows without one in official files, as MNLI's.
_NO_LABEL = ("-", "-1")

SCRIPTS: Mapping[str, str] = {
    kinds.CLASSIFICATION: "run/finetune_classifier.py",
    kinds.REGRESSION: "run/finetune_classifier.py",
    kinds.MULTIPLE_CHOICE: "run/finetune_multiple_choice.py",
    kinds.TAGGING: "run/finetune_tagger.py",
    kinds.SQUAD: "run/finetune_squad.py",
    kinds.SQUAD2: "run/finetune_squad.py",
}


@dataclasses.dataclass(frozen=True)
class TaskData:
    """The files of a task as a script reads them.

    Attributes:
      name: The task's name.
      kind: A key of `task_folders.METRICS`.
      metric: The metric of the tables.
      flags: The flags that name the files and their columns.
      num_train: Rows to train on; an estimate for official files.
      num_dev: Rows to score.
      mean_tokens: Estimated tokens of a row.
      majority: Percentage of the most frequent label in dev, or None.
    """

    name: str
    kind: str
    metric: str
    flags: Mapping[str, Any]
    num_train: int
    num_dev: int
    mean_tokens: float
    majority: float | None


def prepare(
    task: TaskFolder,
    output_dir: str,
    max_train: int | None = None,
    max_dev: int | None = None,
) -> TaskData:
    """Returns the files of a task, which are written if they do not exist.

    Rows beyond `max_train` and, of dev and test each, `max_dev` are left out: a
    sample that depends on nothing but their number; taggers read the first
    sentences. The name of the folder has a hash of the task's files.

    Raises:
      UserError: If a file is not as the task describes it.
    """
    own = task.files
    hashes = {x: files_hash(path) for x, path in own.items()}
    described = [task.kind, dict(task.columns), task.official, hashes]
    described += [max_train, max_dev, _FORMAT]
    name = f"{task.name}-{jobs.digest(described)}"
    folder = os.path.join(output_dir, "data", name)
    info_file = os.path.join(folder, _INFO_FILE)
    if not os.path.exists(info_file):
        info = _write(task, own, folder, max_train, max_dev)
        write_json(info_file, info)
    info = text_files.read_json(info_file)
    return TaskData(
        task.name,
        task.kind,
        task.metric,
        _flags(task, f"{jobs.OUT}/data/{name}", info["files"], info["pair"]),
        info["num_train"],
        info["num_dev"],
        info["mean_tokens"],
        info["majority"],
    )


def files_hash(path: str) -> str:
    """Returns the SHA-256 of PATH or, for PATH#KEY, of both."""
    name, _, key = path.partition(kinds.KEY_MARK)
    return files.sha256(name) + key


def write_json(path: str, values: Any) -> None:
    """Writes a local JSON file that appears whole."""
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def write_text(path: str, text: str) -> None:
    """Writes a local text file that appears whole."""
    with files.local_file(path) as temporary:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)


def _flags(
    task: TaskFolder, folder: str, names: Mapping[str, str], pair: bool
) -> dict[str, Any]:
    """Returns the flags of the script that name files and columns."""
    if task.official and task.kind in (kinds.CLASSIFICATION, kinds.REGRESSION):
        return {"task_name": task.official, "data_dir": folder}
    train, dev = (f"{folder}/{names[x]}" for x in ("train", "dev"))
    if task.kind in (kinds.SQUAD, kinds.SQUAD2):
        flags = {"train_file": train, "predict_file": dev}
        is_second = task.kind == kinds.SQUAD2
        return flags | ({"version_2_with_negative": True} if is_second else {})
    flags = {"train_file": train, "dev_file": dev}
    if "test" in names:
        flags |= {"test_file": f"{folder}/{names['test']}", "do_predict": True}
    if task.kind == kinds.TAGGING:
        columns = task.columns
        return flags | {
            "word_column": columns["word"],
            "tag_column": columns["tag"],
        }
    flags = {"task_name": "custom", **flags}
    if task.kind == kinds.MULTIPLE_CHOICE:
        return flags if pair else flags | {"context_column": ""}
    if pair:
        flags["text_pair_column"] = "text_pair"
    if task.kind == kinds.REGRESSION:
        flags["problem_type"] = "regression"
    return flags


# === Writing ===


def _write(
    task: TaskFolder,
    own: Mapping[str, str],
    folder: str,
    max_train: int | None,
    max_dev: int | None,
) -> dict[str, Any]:
    """Writes the files of all splits, and returns what is known of them."""
    if task.official and task.kind in (kinds.CLASSIFICATION, kinds.REGRESSION):
        return _copy_official(task, own, folder, max_train, max_dev)
    rows = {x: task_rows.read(task, path) for x, path in own.items()}
    if "dev" not in rows:
        rows["train"], rows["dev"] = _hold_out(rows["train"], task.kind)
    rows = {
        split: _sample(values, max_train, task.kind, True)
        if split == "train"
        else _sample(values, max_dev, task.kind)
        for split, values in rows.items()
    }
    for split, values in rows.items():
        if not values:
            raise UserError(
                f"The task {task.name} must have rows to train on and rows to "
                f"score. Received: no {split} rows in {task.folder}."
            )
    names = {x: x + task_rows.ending(task.kind) for x in rows}
    for split, values in rows.items():
        text = task_rows.to_text(task.kind, values)
        write_text(os.path.join(folder, names[split]), text)
    return {
        "files": names,
        "pair": _is_pair(rows["train"][0]),
        "num_train": len(rows["train"]),
        "num_dev": len(rows["dev"]),
        "mean_tokens": _mean_tokens(map(str, rows["train"])),
        "majority": _majority(task, [_label(x) for x in rows["dev"]]),
    }


def _sample(
    rows: Sequence[Any], most: int | None, kind: str, to_train: bool = False
) -> list[Any]:
    """Returns at most so many rows; to train, one of each label at least."""
    if most is None or len(rows) <= most:
        return list(rows)
    if kind == kinds.TAGGING:
        return list(rows[:most])  # Neighbors are of one document.
    kept = set(random.Random(0).sample(range(len(rows)), most))
    if to_train and kind == kinds.CLASSIFICATION:
        # A label of dev that training lacks would be an error.
        seen = {_label(rows[index]) for index in kept}
        for index, row in enumerate(rows):
            if _label(row) not in seen:
                seen.add(_label(row))
                kept.add(index)
    return [rows[index] for index in sorted(kept)]


def _hold_out(rows: Sequence[Any], kind: str) -> tuple[list[Any], list[Any]]:
    """Splits the rows of a task without dev: the last ones for taggers."""
    if kind in (kinds.TAGGING, kinds.SQUAD, kinds.SQUAD2):
        border = len(rows) - len(rows) // _HELD_OUT
        return list(rows[:border]), list(rows[border:])
    train, dev, labels = [], [], set()
    for number, row in enumerate(rows, start=1):
        # The first row of a label is one to train on.
        is_new = kind == kinds.CLASSIFICATION and _label(row) not in labels
        labels.add(_label(row))
        (dev if number % _HELD_OUT == 0 and not is_new else train).append(row)
    return train, dev


def _is_pair(row: Any) -> bool:
    """Returns whether a row has a second text or a context."""
    return isinstance(row, dict) and ("text_pair" in row or "context" in row)


def _label(row: Any) -> Any:
    return row.get("label") if isinstance(row, dict) else None


def _majority(task: TaskFolder, labels: Sequence[Any]) -> float | None:
    # With other metrics, too, as a table may score by accuracy.
    if task.kind not in (kinds.CLASSIFICATION, kinds.MULTIPLE_CHOICE):
        return None
    if not labels:
        return None
    return 100 * collections.Counter(labels).most_common(1)[0][1] / len(labels)


def _mean_tokens(texts: Any) -> float:
    lengths = [len(text) for text in texts]
    return sum(lengths) / max(1, len(lengths)) / _CHARACTERS_PER_TOKEN


# === Official files: the same names, with a sample of their lines ===


def _copy_official(
    task: TaskFolder,
    own: Mapping[str, str],
    folder: str,
    max_train: int | None,
    max_dev: int | None,
) -> dict[str, Any]:
    info: dict[str, Any] = {"files": {}, "pair": True}
    lengths = {}
    for split, path in own.items():
        most = max_train if split == "train" else max_dev
        name = os.path.basename(path)
        # Line ends other than \n are part of a text.
        with _open(path) as file:
            lines = file.read().split("\n")
        body = [line for line in lines[1:] if line.strip()]
        kept = [lines[0], *_sample(body, most, task.kind)]
        target = os.path.join(folder, name)
        packed = name.endswith(".gz")
        text = "\n".join(kept) + "\n"
        with files.local_file(target) as temporary:
            with (gzip.open if packed else open)(temporary, "wb") as file:
                file.write(text.encode("utf-8"))
        info["files"][split] = name
        lengths[split] = len(kept) - 1
        if split == "train":
            info["mean_tokens"] = _mean_tokens(kept[1:])
    dev = [x for x in own if x.startswith("dev")]
    labels = _official_labels(task, os.path.join(folder, info["files"][dev[0]]))
    return info | {
        "num_train": lengths["train"],
        "num_dev": sum(lengths[x] for x in dev),
        "majority": _majority(task, labels),
    }


def _open(path: str) -> Any:
    opener = gzip.open if path.endswith(".gz") else open
    return opener(path, "rt", encoding="utf-8", newline="\n")


def _official_labels(task: TaskFolder, path: str) -> list[str]:
    official = glue_tasks.get_task(task.official)
    table = tables.read_table(
        path,
        columns_without_header=official.columns_without_header,
        columns_of_longer_rows=official.columns_of_longer_rows,
        on_broken_row=lambda line: None,
    )
    column = next(
        (x for x in official.label_columns if x in table.columns), None
    )
    rows = [row.values.get(column) for row in table.rows] if column else []
    return [str(x) for x in rows if x is not None and x not in _NO_LABEL]

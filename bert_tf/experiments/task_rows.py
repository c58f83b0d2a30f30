"""Rows of a task's files, and the text of files with these rows."""

import json
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf.errors import UserError
from bert_tf.experiments import task_folders as kinds
from bert_tf.experiments.task_folders import TaskFolder
from bert_tf.io import tables
from bert_tf.io import text_files
from bert_tf.tasks.multiple_choice import examples as multiple_choice

_ENDINGS = {
    kinds.TAGGING: ".conll",
    kinds.SQUAD: ".json",
    kinds.SQUAD2: ".json",
}


def read(task: TaskFolder, path: str) -> list[Any]:
    """Returns the rows of a file: sentences of taggers, questions of SQuAD.

    Args:
      task: The task.
      path: The file, or FILE#KEY.

    Raises:
      UserError: If the file is not as the task describes it.
    """
    return _READERS[task.kind](task, path)


def to_text(kind: str, rows: Sequence[Any]) -> str:
    """Returns the contents of a file with some rows of `read`."""
    return _WRITERS.get(kind, _json_lines)(rows)


def ending(kind: str) -> str:
    """Returns the ending of such a file."""
    return _ENDINGS.get(kind, ".jsonl")


def _json_lines(rows: Sequence[Any]) -> str:
    return "".join(json.dumps(x, ensure_ascii=False) + "\n" for x in rows)


def _read_classification(task: TaskFolder, path: str) -> list[dict[str, Any]]:
    roles = {x: y for x, y in task.columns.items() if y is not None}
    is_number = task.kind == kinds.REGRESSION
    rows = []
    for where, values in _rows(path, list(map(str, roles.values()))):
        row = {x: values.get(str(column)) for x, column in roles.items()}
        if row["label"] is None:
            raise UserError(f"{where} has no label in {roles['label']!r}.")
        if str(row["label"]) in task.no_label:
            continue
        row["label"] = str(row["label"])
        if is_number:
            row["label"] = _number(row["label"], where)
        rows.append(row)
    return rows


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UserError(
            f"{where} must have a number as label. Received: {text!r}."
        ) from error


def _rows(path: str, columns: Sequence[str]) -> list[tuple[str, Any]]:
    """Returns the rows of a table, or of a list in a JSON file, and places."""
    name, _, key = path.partition(kinds.KEY_MARK)
    if not key:
        table = tables.read_table(name)
        table.require(columns)
        return [(f"{name}, line {x.line}", x.values) for x in table.rows]
    values = text_files.read_json(name)
    rows = values.get(key) if isinstance(values, dict) else None
    if not isinstance(rows, list):
        raise UserError(f"{name} must hold a list under the key {key!r}.")
    return [
        (
            f"{name}, row {number} of {key}",
            row
            if isinstance(row, dict)
            else {str(i): x for i, x in enumerate(row)},
        )
        for number, row in enumerate(rows)
    ]


def _read_multiple_choice(task: TaskFolder, path: str) -> list[dict[str, Any]]:
    if task.official:
        official = multiple_choice.OFFICIAL[task.official]
        columns, without = official.columns, official.columns_without_header
    else:
        choices = task.columns["choices"]
        columns = multiple_choice.Columns(
            tuple(choices) if isinstance(choices, list) else (str(choices),),
            task.columns["context"],
            label=task.columns["label"],
        )
        without = ()
    examples = multiple_choice.read_examples(
        path, columns, columns_without_header=without
    )
    return [
        ({} if x.context is None else {"context": x.context})
        | {"choices": list(x.choices), "label": str(x.label)}
        for x in examples
    ]


def _read_tagging(task: TaskFolder, path: str) -> list[str]:
    """Returns the sentences as they are, -DOCSTART- lines with the next one."""
    sentences, lines = [], []
    for _, line in text_files.read_lines(path):
        if line.strip():
            lines.append(line)
        elif lines and not lines[-1].startswith("-DOCSTART-"):
            sentences.append("\n".join(lines))
            lines = []
        elif lines:
            lines.append("")
    if any(x and not x.startswith("-DOCSTART-") for x in lines):
        sentences.append("\n".join(lines))
    return sentences


def _write_tagging(sentences: Sequence[str]) -> str:
    return "\n\n".join(sentences) + "\n"


def _read_squad(task: TaskFolder, path: str) -> list[dict[str, Any]]:
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


def _write_squad(rows: Sequence[Mapping[str, Any]]) -> str:
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


_READERS = {
    kinds.CLASSIFICATION: _read_classification,
    kinds.REGRESSION: _read_classification,
    kinds.MULTIPLE_CHOICE: _read_multiple_choice,
    kinds.TAGGING: _read_tagging,
    kinds.SQUAD: _read_squad,
    kinds.SQUAD2: _read_squad,
}
_WRITERS = {
    kinds.TAGGING: _write_tagging,
    kinds.SQUAD: _write_squad,
    kinds.SQUAD2: _write_squad,
}

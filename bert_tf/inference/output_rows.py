"""Formats predictions as JSON lines or as rows of a .csv or .tsv file."""

import csv
import io
import json
import re
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from bert_tf.errors import UserError
from bert_tf.flags.predict import PredictConfig
from bert_tf.tasks.task import Task

# Digits of numbers in tables; JSON lines have all.
_DIGITS = 5
# Before the name of a kept column that a prediction has too.
_PREFIX = "input_"
_PROBABILITIES = "probabilities"
_TOP_K_KINDS = ("classification", "multiple_choice")
_BREAKS = re.compile(r"[\t\r\n]+")


class OutputRows:
    """Formats predictions, with columns of the input beside them.

    Args:
      config: The flags.
      task: The task of the model.

    Raises:
      UserError: If the flags do not fit the task or the file's columns.
    """

    def __init__(self, config: PredictConfig, task: Task) -> None:
        self._ending = config.output_ending
        self._top_k = config.top_k
        self._path = config.input_file
        self._task = task
        self._empty = _empty_answer(task)
        key = task.variant or task.kind
        if config.keep_empty and self._empty is None:
            raise UserError(
                "--keep_empty is for classification. Received: a model for "
                f"{key}; drop it."
            )
        has_choices = key in _TOP_K_KINDS and self._empty != {"score": None}
        if config.top_k is not None and not has_choices:
            raise UserError(
                "--top_k is for models that choose among labels or choices. "
                f"Received: a model for {key}; drop it."
            )
        if self._empty is None and key not in _NAMES:
            # A task of the user's, whose answers have other names.
            if self._ending or config.keep_columns:
                raise UserError(
                    "Tables and --keep_columns are for classification, "
                    f"{', '.join(_NAMES)}. Received: a model for {key}; write "
                    "JSON lines (.jsonl) without kept columns."
                )
        names = self._answer_names()
        self._kept = _kept_names(config, task, set(names))
        self._columns = (*self._kept.values(), *names)

    @property
    def header(self) -> str | None:
        """The first line of a table; None for JSON lines."""
        if not self._ending:
            return None
        return self._table_line({name: name for name in self._columns})

    def inputs(self) -> Iterable[Mapping[str, Any]] | None:
        """Returns the values of the kept columns, row by row; None if none."""
        if not self._kept:
            return None
        rows = self._task.read_table(self._path).rows
        return (
            {new: row.values.get(old) for old, new in self._kept.items()}
            for row in rows
        )

    def empty_answer(self) -> dict[str, Any]:
        """Returns the answer for a row with an empty text."""
        return dict(self._empty)

    def line(self, kept: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
        """Returns one line of the output, or a row with several lines.

        Args:
          kept: The values of the kept columns.
          answer: The result of `Task.prediction_to_json`.
        """
        if self._ending:
            return self._table_line({**kept, **self._flat(answer)})
        if self._top_k is not None and answer.get(_PROBABILITIES):
            best = dict(self._best(answer))
            answer = {**answer, _PROBABILITIES: best}
        values = {**kept, **answer}
        return json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n"

    def _best(self, answer: Mapping[str, Any]) -> list[tuple[str, float]]:
        pairs = answer[_PROBABILITIES].items()
        return sorted(pairs, key=lambda x: -x[1])[: self._top_k]

    def _answer_names(self) -> list[str]:
        """Returns the columns of the answers in a table."""
        key = self._task.variant or self._task.kind
        names = list(self._empty or _NAMES.get(key, ()))
        if self._top_k is None or not self._ending:
            return [
                x for x in names if x != _PROBABILITIES or "labels" in names
            ]
        first = 2 if "label" in names else 1
        names.remove(_PROBABILITIES)
        labels = getattr(self._task, "labels", None)
        most = min(self._top_k, len(labels)) if labels else self._top_k
        for rank in range(first, most + 1):
            names += [f"label_{rank}", f"probability_{rank}"]
        return names

    def _flat(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Returns an answer as the cells of a table."""
        cells = dict(answer)
        probabilities = cells.pop(_PROBABILITIES, None)
        if "labels" in cells:
            labels = cells["labels"] or ()
            separator = getattr(self._task, "label_separator", ",")
            cells["labels"] = separator.join(labels)
            if self._top_k is None and probabilities is not None:
                cells[_PROBABILITIES] = separator.join(
                    _number(probabilities[label]) for label in labels
                )
        if self._top_k is not None and probabilities:
            for rank, (label, value) in enumerate(self._best(answer), 1):
                cells |= {f"label_{rank}": label, f"probability_{rank}": value}
        if cells.get("offsets"):
            cells["offsets"] = [f"{a}-{b}" for a, b in cells["offsets"]]
        return cells

    def _table_line(self, cells: Mapping[str, Any]) -> str:
        values = [_cell(cells.get(name)) for name in self._columns]
        if self._ending == ".tsv":
            return "\t".join(_BREAKS.sub(" ", x) for x in values) + "\n"
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(values)
        return text.getvalue()


# The columns of answers by task; those of classifiers depend on the labels.
_NAMES = {
    "multiple_choice": ("label", "index", "probability", _PROBABILITIES),
    "tagging": ("words", "tags", "offsets"),
    "question_answering": (
        "id",
        "answer",
        "start",
        "end",
        "score",
        "no_answer_score",
    ),
}
_EMPTY_ANSWERS = {
    "single_label": {"label": None, "probability": None, _PROBABILITIES: None},
    "multi_label": {"labels": [], _PROBABILITIES: None},
    "regression": {"score": None},
}


def _empty_answer(task: Task) -> dict[str, Any] | None:
    if (task.variant or task.kind) != "classification":
        return None
    return _EMPTY_ANSWERS[task.problem_type]


def _kept_names(
    config: PredictConfig, task: Task, answers: set[str]
) -> dict[str, str]:
    """Returns the names of the kept columns in the input and the output."""
    if not config.keep_columns:
        return {}
    table = task.read_table(config.input_file)
    if table is None:
        raise UserError(
            f"--keep_columns is for tables. Received: {config.input_file}, "
            "which has no columns with names; drop the flag."
        )
    columns = config.columns_to_keep() or table.columns  # None means all.
    table.require(columns, dict.fromkeys(columns, "--keep_columns"))
    if not config.output_ending:  # Also those that a table leaves out.
        answers = answers | {_PROBABILITIES}
    kept = {}
    for column in columns:
        name = column
        while name in answers or (name != column and name in columns):
            name = _PREFIX + name
        kept[column] = name
    return kept


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list) and all(isinstance(x, str) for x in value):
        return " ".join(value)
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    return f"{value:.{_DIGITS}g}"

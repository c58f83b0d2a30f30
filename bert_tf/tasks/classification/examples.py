"""Texts and labels of a user's own files, row by row."""

import dataclasses
import json
import math
import os
from collections import defaultdict
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Literal

import numpy as np
from absl import logging

from bert_tf.errors import UserError
from bert_tf.io import tables

ProblemType = Literal["single_label", "multi_label", "regression"]
# Its type goes by the problem: a name, names, or a number.
Label = str | tuple[str, ...] | float

_MAX_LABELS_SHOWN = 10


@dataclasses.dataclass(frozen=True, slots=True)
class InputExample:
    """One text or pair of texts (InputExample of the original).

    Attributes:
      guid: Where it is from, as "dev.tsv:12": a file and a line.
      text_a: The text, or the first of a pair.
      text_b: The second text of a pair, or None.
      label: The label, or None if it is not known.
    """

    guid: str
    text_a: str
    text_b: str | None = None
    label: Label | None = None


@dataclasses.dataclass(frozen=True)
class Columns:
    """Which columns of a file hold what.

    Attributes:
      text: The text, or the first of a pair; in a .txt file, which has no
        header, a line is the text whatever this says.
      text_pair: The second text of a pair, or None.
      labels: The label's column, if there is one. Several, each with 0 or 1,
        are the labels of a multi-label problem.
    """

    text: str
    text_pair: str | None = None
    labels: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of texts, one or two."""
        return (self.text, self.text_pair) if self.text_pair else (self.text,)

    @property
    def flags(self) -> dict[str, str]:
        """The flag that names each column."""
        flags = dict.fromkeys(self.labels, "--label_column")
        if self.text_pair:
            flags[self.text_pair] = "--text_pair_column"
        return flags | {self.text: "--text_column"}


def read_examples(
    path: str,
    columns: Columns,
    problem_type: ProblemType = "single_label",
    labels: Sequence[str] | None = None,
    *,
    may_lack_labels: bool = False,
    label_separator: str = ",",
) -> list[InputExample]:
    """Reads texts and their labels.

    Args:
      path: A file that `tables.read_table` reads.
      columns: Which of its columns to read.
      problem_type: "single_label"; "multi_label": a list in JSON, else names
        between separators, maybe none; or "regression": a number.
      labels: The labels there are, those of the training data; None if this is
        the training data.
      may_lack_labels: Whether no row need have a label, as in a test file.
      label_separator: What stands between the labels of a multi-label row.

    Returns:
      An example for each row, in order. White space around labels is gone.

    Raises:
      UserError: If the file cannot be read as a table, lacks a column, or if
        in one of its rows a text is empty or no string, or the label is
        missing, unknown or not what the problem wants.
    """
    table = tables.read_table(path)
    texts = text_columns(table, columns, columns.flags)
    known = None if labels is None else frozenset(labels)
    if not may_lack_labels:
        table.require(columns.labels, columns.flags)
    examples = []
    for row in table.rows:
        label = None
        if columns.labels:
            label = _read_label(
                path, row, columns.labels, problem_type, label_separator
            )
            if label is None and not may_lack_labels:
                column = " and ".join(map(repr, columns.labels))
                raise UserError(
                    f"{path}, line {row.line} has no label in column {column}."
                )
            if known is not None and label is not None:
                check_known(path, row.line, label, known)
        examples.append(make_example(path, row, texts, label))
    is_empty = all(example.label == () for example in examples)
    if may_lack_labels and is_empty and len(columns.labels) == 1:
        # An empty column, not examples without any of several labels.
        examples = [dataclasses.replace(e, label=None) for e in examples]
    check_all_or_none(examples)
    return examples


def gather_labels(
    examples: Sequence[InputExample], path: str = "The training data"
) -> tuple[str, ...]:
    """Returns the labels that training examples have, in a fixed order.

    Integers are in the order of numbers, all else in that of characters. Of
    labels that may be one label in two spellings, as "1" and "1.0", there is
    a warning.

    Args:
      examples: The examples.
      path: What errors call their file.

    Raises:
      UserError: If there are not two labels, or in a multi-label problem one.
    """
    labels: set[str] = set()
    least = 2
    for example in examples:
        if isinstance(example.label, tuple):
            labels.update(example.label)
            least = 1
        elif example.label is not None:
            labels.add(example.label)
    if len(labels) < least:
        raise UserError(
            f"{path} must have at least {least} different "
            f"label{'s' if least > 1 else ''} to learn. Received: "
            f"{', '.join(map(repr, sorted(labels))) or 'none'}."
        )
    _warn_of_spellings(labels, path)
    if all(label.removeprefix("-").isdecimal() for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def _warn_of_spellings(labels: Collection[str], path: str) -> None:
    by_meaning = defaultdict(list)
    for label in sorted(labels):
        try:
            meaning = float(label)
        except ValueError:
            meaning = label.casefold()
        by_meaning[meaning].append(label)
    for spellings in by_meaning.values():
        if len(spellings) > 1:
            logging.warning(
                "%s has the labels %s, which are learned as different ones.",
                path,
                " and ".join(map(repr, spellings)),
            )


def make_example(
    path: str,
    row: tables.Row,
    text_columns: Sequence[str],
    label: Label | None = None,
    *,
    may_be_empty: bool = False,
) -> InputExample:
    """Makes an example from a row with one or two columns of text.

    Raises:
      UserError: If a text is missing, empty (unless that is allowed) or no
        string.
    """
    texts = []
    for column in text_columns:
        text = row.values.get(column)
        if not isinstance(text, str):
            received = (
                "nothing"
                if column not in row.values
                else json.dumps(text, ensure_ascii=False)
            )
            raise UserError(
                f"{path}, line {row.line} must have a string in column "
                f"{column!r}. Received: {received}."
            )
        if not (text.strip() or may_be_empty):
            raise UserError(
                f"{path}, line {row.line} has an empty text in column "
                f"{column!r}; remove the row or fill it in."
            )
        texts.append(text)
    guid = f"{os.path.basename(path)}:{row.line}"
    return InputExample(guid, *texts, label=label)


def text_columns(
    table: tables.Table,
    columns: Columns,
    flags: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Returns the columns of a table that hold the texts.

    Args:
      table: The table.
      columns: What they are called.
      flags: Column to the flag that names it, where there is one.

    Raises:
      UserError: If it lacks one of them.
    """
    if tables.file_ending(table.path) != ".txt":
        table.require(columns.texts, flags)
        return columns.texts
    if columns.text_pair:
        raise UserError(
            f"{table.path} holds one text a line, and pairs were expected; "
            "give a .tsv, .csv or .jsonl file with the columns "
            f"{' and '.join(map(repr, columns.texts))}."
        )
    return (tables.TEXT_COLUMN,)


def check_all_or_none(examples: Sequence[InputExample]) -> None:
    """Raises `UserError` if some examples have labels and others do not."""
    unlabelled = [example for example in examples if example.label is None]
    if unlabelled and len(unlabelled) < len(examples):
        raise UserError(
            f"All examples must have a label, or none. Received: "
            f"{len(unlabelled)} of {len(examples)} have none, the first of "
            f"which is {unlabelled[0].guid}."
        )


def check_known(
    path: str, line: int, label: Label, known: Collection[str]
) -> None:
    """Raises `UserError` for a label, or one of several, that is not known."""
    for name in label if isinstance(label, tuple) else (label,):
        if name not in known:
            raise UserError(
                f"{path}, line {line} has the label {name!r}, which is none of "
                f"the {len(known)} that training knows: "
                f"{name_some(sorted(known))}."
            )


def name_some(labels: Sequence[str]) -> str:
    """Returns labels for a message, of many the first ones."""
    shown = ", ".join(map(repr, labels[:_MAX_LABELS_SHOWN]))
    more = len(labels) - _MAX_LABELS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def parse_number(path: str, line: int, value: Any) -> float:
    """Returns a label of a regression.

    Raises:
      UserError: If it is not a finite number, also in float32, or is written
        as only programmers do, as 1_000.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(np.float32(number))
    if not is_finite or isinstance(value, bool) or "_" in str(value):
        raise UserError(
            f"{path}, line {line} must have a number as its label. Received: "
            f"{value!r:.80}."
        )
    return number


def _read_label(
    path: str,
    row: tables.Row,
    columns: Sequence[str],
    problem_type: ProblemType,
    separator: str,
) -> Label | None:
    if len(columns) > 1:
        return _read_flags(path, row, columns, problem_type)
    value = row.values.get(columns[0])
    # Programs that take all columns for floats write NaN of what is missing.
    if value is None or _is_nan(value):
        return None
    if problem_type == "multi_label":
        return _parse_names(path, row.line, value, separator)
    if isinstance(value, str) and not value.strip():
        return None
    if problem_type == "regression":
        return parse_number(path, row.line, value)
    return parse_name(path, row.line, value)


def parse_name(path: str, line: int, value: Any) -> str:
    """Returns a label as a string: 1 is "1" and JSON's true is "true".

    Raises:
      UserError: If it is a list, an object, null or no number (JSON's NaN).
    """
    if value is None or _is_nan(value) or isinstance(value, list | dict):
        raise UserError(
            f"{path}, line {line} must have one label. Received: "
            f"{json.dumps(value, ensure_ascii=False)}."
        )
    return (value if isinstance(value, str) else json.dumps(value)).strip()


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _parse_names(
    path: str, line: int, value: Any, separator: str
) -> tuple[str, ...]:
    if isinstance(value, str):
        if value.strip().startswith("[") and value.strip().endswith("]"):
            raise UserError(
                f"{path}, line {line} must have labels with {separator!r} "
                "between them; lists are for .jsonl and .json files. Received: "
                f"{value!r:.80}."
            )
        value = value.split(separator)
    elif not isinstance(value, list):
        value = [value]
    names = (parse_name(path, line, name) for name in value)
    return tuple(dict.fromkeys(name for name in names if name))


def _read_flags(
    path: str,
    row: tables.Row,
    columns: Sequence[str],
    problem_type: ProblemType,
) -> tuple[str, ...] | None:
    if problem_type != "multi_label":
        raise UserError(
            f"Several columns of labels need the problem type multi_label. "
            f"Received: {problem_type} with {', '.join(columns)}."
        )
    if all(row.values.get(column) in (None, "") for column in columns):
        return None
    return tuple(c for c in columns if _read_flag(path, row, c))


_FLAGS: Mapping[str, bool] = {
    "0": False,
    "false": False,
    "0.0": False,
    "1": True,
    "true": True,
    "1.0": True,
}


def _read_flag(path: str, row: tables.Row, column: str) -> bool:
    value = row.values.get(column)
    name = parse_name(path, row.line, value).lower()
    if name not in _FLAGS:
        raise UserError(
            f"{path}, line {row.line} must have 0 or 1 in column {column!r}. "
            f"Received: {value!r}."
        )
    return _FLAGS[name]

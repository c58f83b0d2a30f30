"""A context and its choices, one of them right: SWAG, its like, one's own."""

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf import stateless_random
from bert_tf.errors import UserError
from bert_tf.io import tables
from bert_tf.tasks.classification import examples as classification_examples

# Whole numbers, also as programs write them that know columns of floats only.
_INDEX = re.compile(r"[0-9]+(\.0+)?")
# What stands for the label of a test that is not told.
_HIDDEN = ("", "-1")
_ORDER_SALT = 5


@dataclasses.dataclass(frozen=True, slots=True)
class MultipleChoiceExample:
    """A context with choices.

    Attributes:
      guid: Where it is from, as "val.csv:12": a file and a line.
      context: What the choices continue or answer, or None.
      choices: The choices, two or more.
      names: A name for each choice: that of its column, or its index.
      label: The index of the right choice, or None if it is not known.
    """

    guid: str
    context: str | None
    choices: tuple[str, ...]
    names: tuple[str, ...]
    label: int | None = None


@dataclasses.dataclass(frozen=True)
class Columns:
    """Which columns of a file hold what.

    Attributes:
      choices: Those of the choices; one alone holds lists of choices.
      context: That of the context, or None.
      start: That of the words that all choices of a row begin with, or None.
      label: That of the right choice, by the name of its column or its index
        from 0; or None.
      right: Which of `choices` is right in every row, in place of a label.
    """

    choices: tuple[str, ...]
    context: str | None = None
    start: str | None = None
    label: str | None = None
    right: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """All but the label's."""
        first = (self.context, self.start)
        return (*(column for column in first if column), *self.choices)

    @property
    def flags(self) -> dict[str, str]:
        """The flag that names each column of own files."""
        flags = dict.fromkeys(self.choices, "--choice_columns")
        if self.context:
            flags[self.context] = "--context_column"
        if self.label:
            flags[self.label] = "--label_column"
        return flags


def read_examples(
    path: str,
    columns: Columns,
    *,
    may_lack_labels: bool = False,
    columns_without_header: Sequence[str] = (),
    name_flags: bool = False,
) -> list[MultipleChoiceExample]:
    """Reads examples with the choice that is right.

    Where that is in the same column in every row, the choices of each row are
    put in an order that depends on its line alone. A model scores each choice
    by itself, so it learns the same; but one that gives all choices the same
    score, of which the first wins, would else seem to know all.

    Args:
      path: A file that `tables.read_table` reads.
      columns: Which of its columns to read.
      may_lack_labels: Whether no row need have a label, as in a test file.
      columns_without_header: As for `tables.read_table`.
      name_flags: Whether errors say which flags name the columns.

    Raises:
      UserError: If the file cannot be read as a table, lacks a column, or if
        in one of its rows a text is empty or no string, there are fewer than
        two choices, or the label is missing or none of them.
    """
    table = tables.read_table(
        path, columns_without_header=columns_without_header
    )
    flags = columns.flags if name_flags else {}
    table.require(columns.texts, flags)
    if columns.label and not may_lack_labels:
        table.require([columns.label], flags)
    examples, lines = [], []
    for row in table.rows:
        where = f"{path}, line {row.line}"
        example = _make_example(where, _guid(path, row), row.values, columns)
        label = _read_label(where, row.values, columns, example)
        if label is None and not may_lack_labels:
            raise UserError(
                f"{where} has no label in column {columns.label!r}."
            )
        examples.append(dataclasses.replace(example, label=label))
        lines.append(row.line)
    classification_examples.check_all_or_none(examples)
    if columns.right is not None:
        return _reorder(examples, lines)
    return examples


def read_inputs(
    path: str, columns: Columns, columns_without_header: Sequence[str] = ()
) -> Iterator[MultipleChoiceExample]:
    """Yields the examples of a file, row by row, whatever its labels are.

    A file without `columns.choices` may have the columns "context" and
    "choices" instead.

    Raises:
      UserError: As `read_examples`, but for labels.
    """
    table = tables.read_table(
        path, columns_without_header=columns_without_header
    )
    columns = _columns_of(table.columns, columns)
    table.require(columns.texts)
    for row in table.rows:
        yield _make_example(
            f"{path}, line {row.line}", _guid(path, row), row.values, columns
        )


def parse_row(row: Any, columns: Columns) -> MultipleChoiceExample:
    """Returns the example that a mapping means.

    Args:
      row: Column to text, or {"context": text, "choices": [text, ...]}; what
        else is in it does not count.
      columns: Those of the training data.

    Raises:
      UserError: If it is something else.
    """
    columns = _columns_of(row if isinstance(row, Mapping) else (), columns)
    if not isinstance(row, Mapping):
        raise UserError(
            f"Each row must be a mapping with "
            f"{', '.join(map(repr, columns.texts))}. Received: {row!r:.80}."
        )
    return _make_example(f"The row {row!r:.80}", "", row, columns)


def _columns_of(there: Sequence[str], columns: Columns) -> Columns:
    """Returns `columns`, or the general ones if only those are there."""
    general = Columns(
        ("choices",), None if columns.context is None else "context"
    )
    has_own = set(columns.choices) <= set(there)
    return general if "choices" in there and not has_own else columns


def _guid(path: str, row: tables.Row) -> str:
    return f"{os.path.basename(path)}:{row.line}"


def _make_example(
    where: str, guid: str, values: Mapping[str, Any], columns: Columns
) -> MultipleChoiceExample:
    """Returns an example without its label.

    Args:
      where: What errors begin with.
      guid: The example's.
      values: Column to value.
      columns: Which of them to read.
    """
    if len(columns.choices) == 1:
        choices = _listed_choices(where, values, columns.choices[0])
        names = tuple(map(str, range(len(choices))))
    else:
        choices = _choices_of_columns(where, values, columns.choices)
        names = columns.choices[: len(choices)]
    if columns.start is not None:
        start = _text(where, values, columns.start, may_be_empty=True)
        choices = tuple(f"{start} {choice}".strip() for choice in choices)
    context = None
    if columns.context is not None:
        context = _text(where, values, columns.context)
    return MultipleChoiceExample(guid, context, choices, names)


def _listed_choices(
    where: str, values: Mapping[str, Any], column: str
) -> tuple[str, ...]:
    choices = values.get(column)
    is_list = isinstance(choices, list | tuple) and len(choices) > 1
    if not (is_list and all(isinstance(x, str) and x.strip() for x in choices)):
        raise UserError(
            f"{where} must have a list of two or more texts in column "
            f"{column!r}; where each choice has a column, name those with "
            f"--choice_columns. Received: {_shown(values, column)}."
        )
    return tuple(choices)


def _choices_of_columns(
    where: str, values: Mapping[str, Any], columns: Sequence[str]
) -> tuple[str, ...]:
    """Returns the choices; rows with fewer have none in the last columns."""
    count = len(columns)
    while count > 2 and values.get(columns[count - 1]) in (None, ""):
        count -= 1
    return tuple(_text(where, values, column) for column in columns[:count])


def _text(
    where: str,
    values: Mapping[str, Any],
    column: str,
    may_be_empty: bool = False,
) -> str:
    text = values.get(column)
    if not isinstance(text, str):
        raise UserError(
            f"{where} must have a string in column {column!r}. Received: "
            f"{_shown(values, column)}."
        )
    if not (text.strip() or may_be_empty):
        raise UserError(
            f"{where} has an empty text in column {column!r}; remove the row "
            "or fill it in."
        )
    return text


def _shown(values: Mapping[str, Any], column: str) -> str:
    if column not in values:
        return "nothing"
    return json.dumps(values[column], ensure_ascii=False, default=repr)


def _read_label(
    where: str,
    values: Mapping[str, Any],
    columns: Columns,
    example: MultipleChoiceExample,
) -> int | None:
    """Returns the index of the right choice, or None if it is not told."""
    if columns.right is not None:
        return columns.choices.index(columns.right)
    value = values.get(columns.label)
    if value is None or str(value).strip() in _HIDDEN:
        return None
    name = str(value).strip()
    if name in example.names:
        return example.names.index(name)
    is_index = _INDEX.fullmatch(name) and not isinstance(value, bool)
    if is_index and float(name) < len(example.names):
        return int(float(name))
    raise UserError(
        f"{where} must say in column {columns.label!r} which choice is right: "
        f"its index, 0 to {len(example.names) - 1}, or the name of its column. "
        f"Received: {_shown(values, columns.label)}."
    )


def _reorder(
    examples: Sequence[MultipleChoiceExample], lines: Sequence[int]
) -> list[MultipleChoiceExample]:
    """Returns examples whose choices are in an order drawn for their lines."""
    most = max(len(example.choices) for example in examples)
    drawn = stateless_random.uniform(
        _ORDER_SALT, np.array(lines, np.int64)[:, np.newaxis], np.arange(most)
    ).numpy()
    reordered = []
    for example, numbers in zip(examples, drawn, strict=True):
        order = np.argsort(numbers[: len(example.choices)]).tolist()
        reordered.append(
            dataclasses.replace(
                example,
                choices=tuple(example.choices[i] for i in order),
                names=tuple(example.names[i] for i in order),
                label=order.index(example.label),
            )
        )
    return reordered

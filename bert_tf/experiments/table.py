"""Tables of the paper: rows, columns, and the cells that fill them."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Row:
    """A row: a model or a way to use it.

    Attributes:
      name: A short name, unique in the table, as "no_nsp".
      label: The name that readers see, as "No NSP".
    """

    name: str
    label: str


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: a task and its metric.

    Attributes:
      name: A short name, unique in the table, as "squad".
      label: The name that readers see, as "SQuAD F1".
      metric: The metric's name in the results of the script.
      higher_is_better: False for perplexity.
      paper: The column of the paper's table that it stands for, as "ner" for
        another corpus of names; by default the one with the same name.
    """

    name: str
    label: str
    metric: str
    higher_is_better: bool = True
    paper: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table or figure of the paper, as it is repeated here.

    Attributes:
      name: Its name on the command line, as "table5".
      title: Its title.
      question: The question that it answers.
      kind: "table"; "curve": the columns are numbers of steps; or "spread":
        the cells of a row show how far seeds differ.
      rows: The rows, in the paper's order.
      columns: The columns.
      reference_row: The name of the row that others are compared with.
      cells: (row, column) to the ids of its cells, one for each seed.
      expected: (row, column, "below" or "above"): the sign of the paper's
        difference to the reference row, or to the row that a fourth name names.
      scaled_down: What is smaller than in the paper, in sentences.
    """

    name: str
    title: str
    question: str
    kind: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    reference_row: str
    cells: Mapping[tuple[str, str], tuple[str, ...]]
    expected: tuple[tuple[str, ...], ...]
    scaled_down: str


def to_json(table: Table) -> dict[str, Any]:
    """Returns a table as JSON values."""
    values = dataclasses.asdict(table)
    values["cells"] = [
        [row, column, *ids] for (row, column), ids in table.cells.items()
    ]
    return values


def from_json(values: Mapping[str, Any]) -> Table:
    """Returns the table of `to_json`."""
    parts = {
        "rows": tuple(Row(**x) for x in values["rows"]),
        "columns": tuple(Column(**x) for x in values["columns"]),
        "cells": {
            (row, column): tuple(ids) for row, column, *ids in values["cells"]
        },
        "expected": tuple(tuple(x) for x in values["expected"]),
    }
    return Table(**{**values, **parts})

"""Numbers of the paper, from `recipes/experiments/paper.json`."""

import functools
import os
from typing import Any

from bert_tf.experiments.table import Column
from bert_tf.experiments.table import Table
from bert_tf.io import paths
from bert_tf.io import text_files

_FILE = os.path.join(paths.RECIPES, "experiments", "paper.json")


@functools.cache
def read() -> dict[str, Any]:
    """Returns the paper's tables: `source`, `notes`, and `tables` by name.

    A table has a `title`, the labels of its `columns` by name, and its `rows`
    by name: each has a `label` and, by column, `values`.
    """
    return text_files.read_json(_FILE)


def title(table: Table) -> str | None:
    """Returns what the paper's numbers are, as "GLUE, test server"."""
    return read()["tables"].get(table.name, {}).get("title")


def value(table: Table, row: str, column: Column) -> float | None:
    """Returns the paper's number for a cell; None if it has none.

    In a curve, it is the number at the same share of the last step, on a
    straight line between two points of the paper.
    """
    known = read()["tables"].get(table.name, {"rows": {}})["rows"]
    values = known.get(row, {}).get("values", {})
    if table.kind != "curve":
        return values.get(column.paper or column.name)
    if not values:
        return None
    share = steps(column) / max(steps(each) for each in table.columns)
    points = sorted((float(step), values[step]) for step in values)
    place = share * points[-1][0]
    for (low, start), (high, end) in zip(points, points[1:], strict=False):
        if low <= place <= high:
            between = (place - low) / (high - low) * (end - start)
            return round(start + between, 1)  # As the drawing can be read.
    return None


def steps(column: Column) -> int:
    """Returns the number of steps of a curve's column, as 2000 of "step_2000".

    Raises:
      ValueError: If its name has no digits.
    """
    return int("".join(filter(str.isdigit, column.name)))

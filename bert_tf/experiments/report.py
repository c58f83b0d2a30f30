"""The report on finished cells: `report.md`, `report.json` and plots.

`report.json` has the raw scores and everything that is computed from them; the
text (`report_text`) and the plots are made from it.
"""

import collections
import json
import math
import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.experiments import paper
from bert_tf.experiments import plots
from bert_tf.experiments import pretraining_curves
from bert_tf.experiments import report_text
from bert_tf.experiments import statistics
from bert_tf.experiments.statistics import Score
from bert_tf.experiments.table import Column
from bert_tf.experiments.table import Table
from bert_tf.io import files

CELLS_FOLDER = "cells"
JSON_FILE = "report.json"
TEXT_FILE = "report.md"

_FAILED = ".failed.json"
_FINISHED = ".json"
_UNKNOWN_COMMIT = "unknown"
# A score this close to the majority class is equal to it.
_ROUNDING = 1e-9

Cells = Mapping[str, Mapping[str, Any]]


def write(tables: Sequence[Table], out_dir: str) -> None:
    """Rewrites the report on the cells in `<out_dir>/cells`.

    Plots are drawn again only where their values have changed. If another
    process finishes a cell meanwhile, the report is written once more, so that
    the last of several writers leaves a report on all cells. If a file cannot
    be written, as on a full disk, an error is logged and the earlier one stays.

    Args:
      tables: The tables, in the order of the report.
      out_dir: The output folder of the experiments.
    """
    try:
        while True:
            before = _snapshot(out_dir)
            _write_once(tables, out_dir)
            if _snapshot(out_dir) == before:
                return
    except OSError as error:
        logging.error("The report could not be written: %s", error)


def build(tables: Sequence[Table], out_dir: str) -> dict[str, Any]:
    """Returns the contents of `report.json`.

    Keys:
      `tables`: each with its `values`, one for each row and column (`scores`
        by cell and seed, `mean`, `deviation`, `difference`, `error`, `method`,
        `chance`, `paper`, `paper_difference`, `expected`, `verdict`), and with
        its `signs`, the claims of the paper with their verdicts.
      `pretraining`: curves of the models of several sizes.
      `failed`: cells that failed, with the command and the log's last lines.
      `unreadable`, `foreign`: files that are no results, and cells of no table.
      `commits`: cells by the commit that made them.
      `seconds`: the time that all finished cells took.
    """
    finished, failed, unreadable = _read_cells(out_dir)
    planned = {
        cell
        for table in tables
        for cells in table.cells.values()
        for cell in cells
    }
    used = {cell: finished[cell] for cell in finished if cell in planned}
    return {
        "source": paper.read()["source"],
        "tables": [_table(table, finished, failed) for table in tables],
        "pretraining": pretraining_curves.read(out_dir),
        "num_cells": len(planned),
        "num_finished": len(used),
        "failed": [failed[cell] for cell in failed if cell in planned],
        "unreadable": unreadable,
        "foreign": sorted({*finished, *failed} - planned),
        "commits": _by_commit(used),
        "seconds": sum(
            float(result["seconds"])
            for result in used.values()
            if _is_number(result.get("seconds"))
        ),
    }


def _write_once(tables: Sequence[Table], out_dir: str) -> None:
    report = build(tables, out_dir)
    earlier = _read_object(os.path.join(out_dir, JSON_FILE)) or {}
    known = {table["name"]: table for table in earlier.get("tables", ())}
    drawings = [
        (table["name"], plots.draw, table, known.get(table["name"]))
        for table in report["tables"]
    ]
    if curves := report["pretraining"]:
        draw = pretraining_curves.draw
        known_curves = earlier.get("pretraining")
        drawings.append((pretraining_curves.NAME, draw, curves, known_curves))
    for name, draw, values, known_values in drawings:
        path = os.path.join(out_dir, f"{name}.png")
        if values != known_values or not os.path.exists(path):
            with files.local_file(path) as temporary:
                draw(temporary, values)
    _write_text(os.path.join(out_dir, TEXT_FILE), report_text.text(report))
    # Last, so that a plot whose values are stored here is up to date.
    _write_text(
        os.path.join(out_dir, JSON_FILE),
        json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False),
    )


def _write_text(path: str, text: str) -> None:
    with files.local_file(path) as temporary:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text + "\n")


def _snapshot(out_dir: str) -> dict[str, tuple[int, int]]:
    """Returns identities of the files of all cells, to detect changes."""
    folder = os.path.join(out_dir, CELLS_FOLDER)
    if not os.path.isdir(folder):
        return {}
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat()
            except FileNotFoundError:  # A temporary file was renamed.
                continue
            if entry.name.endswith(_FINISHED):
                found[entry.name] = (status.st_ino, status.st_mtime_ns)
    return found


def _read_cells(
    out_dir: str,
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Returns finished and failed cells by id, and names of other files."""
    finished, failed, unreadable = {}, {}, []
    for name in sorted(_snapshot(out_dir)):
        cell = _read_object(os.path.join(out_dir, CELLS_FOLDER, name))
        if cell is not None and name.endswith(_FAILED):
            cell_id = name.removesuffix(_FAILED)
            failed[cell_id] = cell | {"id": cell_id}
        elif cell is not None and _is_number(cell.get("score")):
            finished[name.removesuffix(_FINISHED)] = cell
        else:
            unreadable.append(name)
    # A later try succeeded.
    failed = {cell: failed[cell] for cell in failed if cell not in finished}
    return finished, failed, unreadable


def _read_object(path: str) -> dict[str, Any] | None:
    """Returns the JSON object in a file, or None."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_number(value: Any) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


def _standard_error(cell: Mapping[str, Any]) -> float | None:
    """Returns the error of a score on held-out text, None if it has none."""
    scores = cell.get("scores")
    if not isinstance(scores, Mapping):
        return None
    error = scores.get(f"{cell.get('metric')}_error")
    return float(error) if _is_number(error) else None


def _table(table: Table, finished: Cells, failed: Cells) -> dict[str, Any]:
    """Returns one table of the report."""
    signs = [
        _sign(table, finished, claim)
        for claim in table.expected
        if all((x, claim[1]) in table.cells for x in (claim[0], *claim[3:]))
    ]
    report = {
        "name": table.name,
        "title": table.title,
        "question": table.question,
        "kind": table.kind,
        "scaled_down": table.scaled_down,
        "paper_title": paper.title(table),
        "reference_row": table.reference_row,
        "rows": [{"name": row.name, "label": row.label} for row in table.rows],
        "columns": [_column(table, column) for column in table.columns],
        "values": [
            _value(table, row.name, column, finished, failed, signs)
            for column in table.columns
            for row in table.rows
            if (row.name, column.name) in table.cells
        ],
        "signs": signs,
        "commits": _by_commit(
            {
                cell: finished[cell]
                for ids in table.cells.values()
                for cell in ids
                if cell in finished
            }
        ),
    }
    if table.kind == "curve":
        report["paper_curves"] = _paper_curves(table)
    elif all(value["paper"] is None for value in report["values"]):
        # Other rows, as other sizes of models: the paper's stand below ours.
        report["paper_table"] = paper.read()["tables"].get(table.name)
    return report


def _column(table: Table, column: Column) -> dict[str, Any]:
    values = {
        "name": column.name,
        "label": column.label,
        "metric": column.metric,
        "higher_is_better": column.higher_is_better,
    }
    if table.kind == "curve":
        values["steps"] = paper.steps(column)
    return values


def _value(
    table: Table,
    row: str,
    column: Column,
    finished: Cells,
    failed: Cells,
    signs: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Returns the scores of a row and a column, with what follows from them."""
    cells = table.cells[row, column.name]
    scores = _scores(table, row, column.name, finished)
    value: dict[str, Any] = {
        "row": row,
        "column": column.name,
        "scores": [
            {"id": cell, **_kept(finished[cell])}
            for cell in cells
            if cell in finished
        ],
        "failed": [cell for cell in cells if cell in failed],
        "missing": [
            cell
            for cell in cells
            if cell not in finished and cell not in failed
        ],
        "paper": paper.value(table, row, column),
    }
    if scores:
        summary = statistics.summarize(scores)
        value["mean"] = summary.mean
        value["deviation"] = summary.deviation
        value |= _majority(value["scores"], column)
    if row != table.reference_row:
        claimed = {
            (sign["row"], sign["column"]): sign["expected"]
            for sign in signs
            if sign["against"] == table.reference_row
        }
        value |= _comparison(
            table,
            (row, table.reference_row),
            column,
            finished,
            claimed.get((row, column.name)),
        )
    return value


def _kept(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of a finished cell that the report repeats."""
    kept = {"seed": cell.get("seed"), "score": cell["score"]}
    for name in ("test_score", "majority"):
        if _is_number(cell.get(name)):
            kept[name] = cell[name]
    if (error := _standard_error(cell)) is not None:
        kept["standard_error"] = error
    if "majority" in kept:
        kept["at_majority"] = kept["score"] <= kept["majority"] + _ROUNDING
    return kept | {"commit": str(cell.get("commit") or _UNKNOWN_COMMIT)}


def _scores(
    table: Table, row: str, column: str, finished: Cells
) -> list[Score]:
    return [
        Score(
            finished[cell].get("seed"),
            float(finished[cell]["score"]),
            _standard_error(finished[cell]),
        )
        for cell in table.cells.get((row, column), ())
        if cell in finished
    ]


def _comparison(
    table: Table,
    rows: tuple[str, str],
    column: Column,
    finished: Cells,
    claimed: str | None,
) -> dict[str, Any]:
    """Returns the difference of two rows, ours and the paper's, and a verdict.

    Args:
      table: The table.
      rows: The row and the one that it is compared with.
      column: The column.
      finished: The finished cells.
      claimed: The sign that the paper claims; by default that of the
        difference of its numbers, if it has both.
    """
    scores, others = (_scores(table, x, column.name, finished) for x in rows)
    numbers = [paper.value(table, each, column) for each in rows]
    values: dict[str, Any] = {}
    if None not in numbers:
        # The paper prints at most two decimals.
        gap = round(numbers[0] - numbers[1], 6)
        values["paper_difference"] = gap
        if gap and not claimed:
            claimed = "above" if gap > 0 else "below"
    if claimed:
        values |= {"expected": claimed, "verdict": None}
    if scores and others:
        difference = statistics.compare(scores, others)
        values |= {
            "difference": difference.value,
            "error": difference.error,
            "method": difference.method,
        }
        if difference.degrees is not None:
            chance = statistics.chance_beyond_limit(difference.degrees)
            values["chance"] = chance
        if claimed:
            values["verdict"] = statistics.judge(difference, claimed)
    return values


def _sign(
    table: Table, finished: Cells, claim: Sequence[str]
) -> dict[str, Any]:
    """Returns a claim of the paper with its verdict, None without scores."""
    row, name, claimed, other = (*claim, table.reference_row)[:4]
    column = next(each for each in table.columns if each.name == name)
    compared = _comparison(table, (row, other), column, finished, claimed)
    return {"row": row, "column": name, "against": other, **compared}


def _majority(
    scores: Sequence[Mapping[str, Any]], column: Column
) -> dict[str, Any]:
    """Returns the majority class's score, and how many runs do no better."""
    known = [score for score in scores if "at_majority" in score]
    if not known or not column.higher_is_better:
        return {}
    return {
        "majority": known[0]["majority"],
        "num_at_majority": sum(score["at_majority"] for score in known),
        "num_with_majority": len(known),
    }


def _by_commit(cells: Cells) -> dict[str, list[str]]:
    """Returns the ids of finished cells by the commit that made them."""
    commits = collections.defaultdict(list)
    for cell, result in cells.items():
        commits[str(result.get("commit") or _UNKNOWN_COMMIT)].append(cell)
    return dict(commits)


def _paper_curves(table: Table) -> dict[str, list[list[float]]]:
    """Returns the paper's points (steps, score) by row."""
    rows = paper.read()["tables"].get(table.name, {"rows": {}})["rows"]
    return {
        row.name: [[int(x), y] for x, y in rows[row.name]["values"].items()]
        for row in table.rows
        if row.name in rows
    }

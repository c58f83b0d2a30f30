"""The report on finished cells: `report.md`, `report.json` and plots.

`report.json` has the raw scores and everything that is computed from them; the
text (`report_text`) and the plots are made from it.
"""

import collections
import glob
import json
import math
import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_tf.errors import UserError
from bert_tf.experiments import data
from bert_tf.experiments import plots
from bert_tf.experiments import report_text
from bert_tf.experiments import statistics
from bert_tf.experiments.statistics import Score
from bert_tf.flags.experiments import EXPERIMENTS
from bert_tf.io import files
from bert_tf.io import locks

_FAILED = ".failed.json"
_CURVES = ("masked_lm_loss", "masked_lm_accuracy")
_NUM_POINTS = 60
# A score this close to the majority class is equal to it.
_ROUNDING = 1e-9

Values = Mapping[str, Any]
Key = tuple[str, str]


def write(out_dir: str) -> None:
    """Rewrites the report on the tables and the cells in a folder.

    Plots are drawn again only where their values have changed. Of several
    processes one writes at a time, so that the last one has read all cells. If
    a file cannot be written, as on a full disk, an error is logged and the
    earlier one stays.
    """
    json_file = os.path.join(out_dir, "report.json")
    try:
        with locks.exclusive(json_file, "writes"):
            report = build(read_tables(out_dir), out_dir)
            earlier = _read_object(json_file) or {}
            known = {x["name"]: x for x in earlier.get("tables", ())}
            plotted = [(x["name"], plots.draw, x) for x in report["tables"]]
            if curves := report["pretraining"]:
                known["pretraining"] = earlier.get("pretraining")
                plotted.append(("pretraining", plots.draw_pretraining, curves))
            for name, draw, values in plotted:
                path = os.path.join(out_dir, f"{name}.png")
                if known.get(name) != values or not os.path.exists(path):
                    with files.local_file(path) as temporary:
                        draw(temporary, values)
            text = report_text.text(report) + "\n"
            path = os.path.join(out_dir, "report.md")
            data.write_bytes(path, text.encode())
            # Last, so that a plot whose values are stored here is up to date.
            data.write_json(json_file, report)
    except (OSError, UserError) as error:
        logging.error("The report could not be written: %s", error)


def read_tables(out_dir: str) -> list[Values]:
    """Returns the tables of all experiments that were planned in a folder."""
    names = [f"{out_dir}/tables/{name}.json" for name in EXPERIMENTS]
    return [x for x in map(_read_object, names) if x is not None]


def build(planned: Sequence[Values], out_dir: str) -> dict[str, Any]:
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
    finished, failed, unreadable = {}, {}, []
    for path in sorted(glob.glob(f"{glob.escape(out_dir)}/cells/*.json")):
        name, cell = os.path.basename(path), _read_object(path)
        if cell is not None and name.endswith(_FAILED):
            cell_id = name.removesuffix(_FAILED)
            failed[cell_id] = cell | {"id": cell_id}
        elif cell is not None and _is_number(cell.get("score")):
            finished[name.removesuffix(".json")] = cell
        else:
            unreadable.append(name)
    # A later try succeeded.
    failed = {x: failed[x] for x in failed if x not in finished}
    ids = {y for table in planned for x in table["cells"] for y in x[2:]}
    used = {x: finished[x] for x in finished if x in ids}
    seconds = [x.get("seconds") for x in used.values()]
    return {
        "source": data.read_recipe("paper")["source"],
        "tables": [_Table(x, finished, failed).report() for x in planned],
        "pretraining": _pretraining_curves(out_dir),
        "num_cells": len(ids),
        "num_finished": len(used),
        "failed": [failed[x] for x in failed if x in ids],
        "unreadable": unreadable,
        "foreign": sorted({*finished, *failed} - ids),
        "commits": _by_commit(used),
        "seconds": sum(float(x) for x in seconds if _is_number(x)),
    }


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


def _by_commit(cells: Mapping[str, Values]) -> dict[str, list[str]]:
    commits = collections.defaultdict(list)
    for cell_id, cell in cells.items():
        commits[_commit(cell)].append(cell_id)
    return dict(commits)


def _commit(cell: Values) -> str:
    return str(cell.get("commit") or "unknown")


def _score(cell: Values) -> Score:
    """Returns a cell's score, with its error on held-out text if it has one."""
    scores = cell.get("scores")
    scores = scores if isinstance(scores, Mapping) else {}
    error = scores.get(f"{cell.get('metric')}_error")
    error = float(error) if _is_number(error) else None
    return Score(cell.get("seed"), float(cell["score"]), error)


def _paper_table(name: str) -> dict[str, Any]:
    """Returns a table of the paper; empty if it has none.

    It has a `title`, the labels of its `columns` by name, and its `rows` by
    name: each has a `label` and, by column, `values`.
    """
    return data.read_recipe("paper")["tables"].get(name, {})


def paper_value(table: Values, row: str, column: Values) -> float | None:
    """Returns the paper's number for a cell; None if it has none.

    In a curve, it is the number at the same share of the last step, on a
    straight line between two points of the paper.
    """
    rows = _paper_table(table["name"]).get("rows", {})
    values = rows.get(row, {}).get("values", {})
    if table["kind"] != "curve":
        return values.get(column["paper"] or column["name"])
    points = sorted((float(step), values[step]) for step in values)
    share = _steps(column) / max(map(_steps, table["columns"]))
    for (low, start), (high, end) in zip(points, points[1:], strict=False):
        if low <= (place := share * points[-1][0]) <= high:
            between = (place - low) / (high - low) * (end - start)
            return round(start + between, 1)  # As the drawing can be read.
    return None


def _steps(column: Values) -> int:
    """Returns the number of steps of a curve's column, as "step_2000"."""
    return int(column["name"].removeprefix("step_"))


def _pretraining_curves(out_dir: str) -> list[dict[str, Any]]:
    """Returns the curves of the finished pretrainings of several sizes.

    They are means over the steps between points, which are closer together at
    the start, and of training, not of held-out text.
    """
    curves = []
    folders = f"{glob.escape(out_dir)}/pretraining/pretraining-bert*"
    for folder in sorted(glob.glob(folders)):
        step_id = os.path.basename(folder)
        if not os.path.exists(
            os.path.join(out_dir, "steps", f"{step_id}.json")
        ):
            continue
        try:
            path = os.path.join(folder, "train_metrics.jsonl")
            with open(path, encoding="utf-8") as file:
                rows = [json.loads(line) for line in file]
        except (FileNotFoundError, ValueError):
            continue  # Removed or cut, which costs the curve alone.
        rows = [x for x in rows if all(_is_number(x.get(y)) for y in _CURVES)]
        parts = collections.defaultdict(list)
        for row in rows:
            share = math.log(row["step"]) / math.log(rows[-1]["step"] + 1)
            parts[int(_NUM_POINTS * share)].append(row)
        curve = {"name": step_id.split("-")[1]}
        curve["steps"] = [part[-1]["step"] for part in parts.values()]
        for name in _CURVES:
            curve[name] = [
                sum(x[name] for x in part) / len(part)
                for part in parts.values()
            ]
        curves.append(curve)
    return curves


class _Table:
    """Compares the cells of a table.

    Args:
      table: The table, as `tables.build` returns it.
      finished: The finished cells by id.
      failed: The failed ones.
    """

    def __init__(
        self,
        table: Values,
        finished: Mapping[str, Values],
        failed: Mapping[str, Values],
    ) -> None:
        self._table, self._finished, self._failed = table, finished, failed
        self._reference: str = table["reference_row"]
        self._ids: dict[Key, list[str]] = {
            (row, column): ids for row, column, *ids in table["cells"]
        }
        self._cells = {
            key: [finished[x] for x in ids if x in finished]
            for key, ids in self._ids.items()
        }

    def report(self) -> dict[str, Any]:
        """Returns the table of the report."""
        table = self._table
        paper = _paper_table(table["name"])
        columns = {column["name"]: column for column in table["columns"]}
        signs = []
        for claim in table["expected"]:
            row, name, expected, other = (*claim, self._reference)[:4]
            if (row, name) in self._ids and (other, name) in self._ids:
                rows = (row, other)
                values = self._comparison(rows, columns[name], expected)
                claimed = {"row": row, "column": name, "against": other}
                signs.append(claimed | values)
        claims = {
            (sign["row"], sign["column"]): sign["expected"]
            for sign in signs
            if sign["against"] == self._reference
        }
        values = [
            self._value(row["name"], column, claims)
            for column in table["columns"]
            for row in table["rows"]
            if (row["name"], column["name"]) in self._ids
        ]
        ids = [x for ids in self._ids.values() for x in ids]
        used = {x: self._finished[x] for x in ids if x in self._finished}
        kept = ("name", "title", "question", "kind", "scaled_down", "rows")
        report = {
            **{key: table[key] for key in kept},
            "paper_title": paper.get("title"),
            "reference_row": self._reference,
            "columns": [
                {key: column[key] for key in column if key != "paper"}
                for column in table["columns"]
            ],
            "values": values,
            "signs": signs,
            "commits": _by_commit(used),
        }
        if table["kind"] == "curve":
            for column in report["columns"]:
                column["steps"] = _steps(column)
            curves = {
                row["name"]: paper["rows"][row["name"]]["values"].items()
                for row in table["rows"]
                if row["name"] in paper.get("rows", ())
            }
            report["paper_curves"] = {
                row: [[int(step), score] for step, score in points]
                for row, points in curves.items()
            }
        elif all(value["paper"] is None for value in values):
            # Other rows, as other sizes of models: the paper's stand below.
            report["paper_table"] = paper or None
        return report

    def _value(
        self, row: str, column: Values, claims: Mapping[Key, str]
    ) -> dict[str, Any]:
        """Returns the scores of a row and a column, and what follows."""
        key = row, column["name"]
        ids, cells = self._ids[key], self._cells[key]
        done = [x for x in ids if x in self._finished]
        failed = [x for x in ids if x in self._failed]
        scores = [
            {"id": x, **_kept(cell)}
            for x, cell in zip(done, cells, strict=True)
        ]
        value: dict[str, Any] = {
            "row": row,
            "column": column["name"],
            "scores": scores,
            "failed": failed,
            "missing": [x for x in ids if x not in (*done, *failed)],
            "paper": paper_value(self._table, row, column),
        }
        if cells:
            numbers = [float(cell["score"]) for cell in cells]
            mean, deviation = statistics.summarize(numbers)
            value |= {"mean": mean, "deviation": deviation}
        known = [score for score in scores if "at_majority" in score]
        if known and column["higher_is_better"]:
            value |= {
                "majority": known[0]["majority"],
                "num_at_majority": sum(x["at_majority"] for x in known),
                "num_with_majority": len(known),
            }
        if row != self._reference:
            rows = (row, self._reference)
            value |= self._comparison(rows, column, claims.get(key))
        return value

    def _comparison(
        self, rows: tuple[str, str], column: Values, claimed: str | None
    ) -> dict[str, Any]:
        """Returns the difference of two rows, the paper's, and a verdict.

        Args:
          rows: The row and the one that it is compared with.
          column: The column.
          claimed: The sign that the paper claims; by default that of the
            difference of its numbers, if it has both.
        """
        cells = [self._cells.get((x, column["name"]), ()) for x in rows]
        numbers = [paper_value(self._table, x, column) for x in rows]
        values: dict[str, Any] = {}
        if None not in numbers:
            # The paper prints at most two decimals.
            gap = round(numbers[0] - numbers[1], 6)
            values["paper_difference"] = gap
            if gap and not claimed:
                claimed = "above" if gap > 0 else "below"
        if claimed:
            values |= {"expected": claimed, "verdict": None}
        if all(cells):
            values |= statistics.compare(*([*map(_score, x)] for x in cells))
            if claimed:
                gap, error = values["difference"], values["error"]
                values["verdict"] = statistics.judge(gap, error, claimed)
        return values


def _kept(cell: Values) -> dict[str, Any]:
    """Returns the parts of a finished cell that the report repeats."""
    kept = {"seed": cell.get("seed"), "score": cell["score"]}
    for name in ("test_score", "majority"):
        if _is_number(cell.get(name)):
            kept[name] = cell[name]
    if (error := _score(cell).error) is not None:
        kept["standard_error"] = error
    if "majority" in kept:
        kept["at_majority"] = kept["score"] <= kept["majority"] + _ROUNDING
    return kept | {"commit": _commit(cell)}

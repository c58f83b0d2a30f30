"""The report on finished cells: `report.md`, `report.json` and plots.

A difference of two rows is distinguishable if it is larger than two standard
errors. With few seeds the standard error itself is uncertain: see `compare`.
"""

import collections
import datetime
import glob
import json
import math
import os
import statistics
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging
from matplotlib.figure import Figure
from scipy import special

from bert_tf import reports
from bert_tf.errors import UserError
from bert_tf.experiments import EXPERIMENTS
from bert_tf.experiments import data
from bert_tf.io import files
from bert_tf.io import locks

AGREES, CONTRADICTS = "agrees", "contradicts"
NOT_DISTINGUISHABLE = "not distinguishable"
# Ways to compute the standard error of a difference.
PAIRED, WELCH = "paired by seed", "Welch"
HELD_OUT, ONE_SEED = "held-out text", "one seed"
_LIMIT = 2.0  # Standard errors; a smaller difference is not distinguishable.
# Tolerance of comparisons, because rounding may make equal scores differ.
_ROUNDING = 1e-9

_NOTHING = "–"
# Color and marker of points, by their label in the legend.
_STYLES = {
    AGREES: (reports.BLUE, "o"),
    CONTRADICTS: (reports.ORANGE, "X"),
    NOT_DISTINGUISHABLE: (reports.GRAY, "s"),
    "no sign claimed, or one seed": (reports.BLACK, "o"),
    "the paper's difference": ("tan", "D"),
    "a run": (reports.BLUE, "o"),
}

Values = Mapping[str, Any]
Rows = Sequence[Values]


def write(out_dir: str) -> None:
    """Rewrites the report on the tables and the cells in a folder.

    One process writes at a time, so the last report has all cells. If a file
    cannot be written, as on a full disk, the old file stays.
    """
    try:
        with locks.exclusive(f"{out_dir}/report.json", "writes"):
            names = (f"{out_dir}/tables/{name}.json" for name in EXPERIMENTS)
            planned = [x for x in map(_read_object, names) if x]
            report = build(planned, out_dir)
            for table in report["tables"]:
                reports.write(f"{out_dir}/{table['name']}.png", draw(table))
            files.write_text(f"{out_dir}/report.md", f"{text(report)}\n")
            data.write_json(f"{out_dir}/report.json", report)
    except (OSError, UserError) as error:
        logging.error("The report could not be written: %s", error)


def build(planned: Rows, out_dir: str) -> dict[str, Any]:
    """Returns the contents of `report.json`.

    `tables` has the planned tables with `values`, one per row and column, and
    `signs`, one per claim of the paper that a row is above or below another.
    `failed` lists failed cells, with command and log; `unreadable` lists cell
    files without a score.
    """
    finished, failed, unreadable = {}, [], []
    ids = {x for table in planned for _, _, *y in table["cells"] for x in y}
    for path in sorted(glob.glob(f"{glob.escape(out_dir)}/cells/*.json")):
        name, cell = os.path.basename(path)[: -len(".json")], _read_object(path)
        if name.endswith(".failed"):
            failed.append({"id": name.removesuffix(".failed"), **cell})
        elif not isinstance(cell.get("score"), int | float):
            unreadable.append(f"{name}.json")
        elif name in ids:
            cell.pop("commands", None)  # The cell's file keeps the commands.
            finished[name] = {"id": name, **cell}
    # Do not report a cell as failed if a later run has finished it.
    failed = [x for x in failed if x["id"] in ids - {*finished}]
    commits = [str(x.get("commit", "unknown")) for x in finished.values()]
    return {
        "tables": [_compare(x, finished, failed) for x in planned],
        "num_cells": len(ids),
        "num_finished": len(finished),
        "failed": failed,
        "unreadable": unreadable,
        "commits": collections.Counter(commits),
        "seconds": sum(float(x.get("seconds", 0)) for x in finished.values()),
    }


def _read_object(path: str) -> dict[str, Any]:
    """Returns the JSON object in a file; {} if it has none."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file, parse_constant=int)  # Raises for NaN.
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _paper(table: Values) -> Values:
    """Returns the table of the paper; empty if the paper has none."""
    return data.read_recipe("paper")["tables"].get(table["name"], {})


def paper_value(table: Values, row: str, column: Values) -> float | None:
    """Returns the paper's number for a cell; None if the paper has none.

    The paper's curve is interpolated linearly at the same fraction of its run.
    For example, step 500 of 2,000 gets the paper's number at 250k of 1,000k.
    """
    rows = _paper(table).get("rows", {})
    values = rows.get(row, {}).get("values", {})
    if table["kind"] != "curve":
        return values.get(column["paper"] or column["name"])
    points = {float(step): score for step, score in values.items()}
    share = _steps(column["name"]) / _steps(table["columns"][-1]["name"])
    place = share * max(points, default=0.0)
    if place < min(points, default=math.inf):
        return None
    # Round to one decimal: the paper's plot cannot be read more precisely.
    return round(float(np.interp(place, [*points], [*points.values()])), 1)


def _steps(column: str) -> int:
    """Returns the steps of a curve's column: 2000 for "step_2000"."""
    return int(column.removeprefix("step_"))


# === Comparisons ===


def _compare(table: Values, finished: Values, failed: Rows) -> dict[str, Any]:
    columns = {column["name"]: column for column in table["columns"]}
    reference, values = table["reference_row"], {}
    for row, column, *ids in table["cells"]:
        scores, count = [finished[x] for x in ids if x in finished], len(ids)
        if not ids:  # Average the previous columns of the row, seed by seed.
            parts = [x["scores"] for x in values.values() if x["row"] == row]
            seeds = [{x["seed"]: x["score"] for x in part} for part in parts]
            scores = [
                {"seed": x, "score": statistics.fmean(one[x] for one in seeds)}
                for x in sorted(set.intersection(*map(set, seeds)))
            ]
            count = max(map(len, parts))
        value = {"row": row, "column": column, "scores": scores}
        value["num_planned"] = count
        value["num_failed"] = sum(x["id"] in ids for x in failed)
        value["paper"] = paper_value(table, row, columns[column])
        values[row, column] = value | summarize([x["score"] for x in scores])
    signs, claims = [], {}
    for row, column, sign, *others in table["expected"]:
        (against,) = others or [reference]
        if {(row, column), (against, column)} <= values.keys():
            pair = values[row, column], values[against, column]
            claim = {"row": row, "column": column, "against": against}
            signs.append(claim | _judge_pair(*pair, sign))
            if not others:
                claims[row, column] = sign
    for (row, column), value in values.items():
        if row != reference:
            other = values[reference, column]
            value |= _judge_pair(value, other, claims.get((row, column)))
    return {**table, "values": [*values.values()], "signs": signs}


def _judge_pair(row: Values, other: Values, claimed: str | None) -> Values:
    """Returns our and the paper's difference of two rows, and a verdict."""
    found: dict[str, Any] = {}
    if None not in (row["paper"], other["paper"]):
        # Remove rounding errors, as in 84.6 - 84.5 = 0.09999999999999432.
        gap = round(row["paper"] - other["paper"], 6)
        found["paper_difference"] = gap
        # Without a claimed sign, expect the sign of the paper's difference.
        claimed = claimed or (gap and ("above" if gap > 0 else "below"))
    if claimed:
        found |= {"expected": claimed, "verdict": None}
    if row["scores"] and other["scores"]:
        found |= compare(row["scores"], other["scores"])
        if claimed:
            gap, error = found["difference"], found["error"]
            found["verdict"] = judge(gap, error, claimed)
    return found


def summarize(scores: Sequence[float]) -> dict[str, float | None]:
    """Returns `mean` and sample `deviation` (None for one score), or {}."""
    if not scores:
        return {}
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return {"mean": statistics.fmean(scores), "deviation": deviation}


def compare(scores: Rows, reference: Rows) -> dict[str, Any]:
    """Returns the difference of two rows, each with at least one score.

    - If both rows have the same two or more seeds, the error is the deviation
      of the differences by seed, over the square root of the number of seeds.
    - If the rows have different seeds, two or more each, the error is Welch's.
    - If both rows have one score with a standard error (held-out perplexity),
      these errors are combined as if independent, so the error is too large.
    - Otherwise, at least one row has a single seed, and the error is None.

    Returns:
      The `difference`, its standard `error` or None, and the `method`. With an
      error, `chance` is the probability that equal rows differ by over two
      errors, which is 0.30 for two paired seeds, 0.18 for three, 0.05 for many.
    """
    rows = [{x["seed"]: x["score"] for x in row} for row in (scores, reference)]
    counts, (first, second), both = [*map(len, rows)], rows, scores + reference
    errors = [x.get("scores", {}).get(f"{x.get('metric')}_error") for x in both]
    error, method, degrees = None, ONE_SEED, math.inf
    if min(counts) > 1 and first.keys() == second.keys():
        gaps = [first[seed] - second[seed] for seed in first]
        error = statistics.stdev(gaps) / math.sqrt(len(gaps))
        method, degrees = PAIRED, len(gaps) - 1
    elif min(counts) > 1:
        parts = [statistics.variance(x.values()) / len(x) for x in rows]
        # The degrees of freedom by the formula of Welch and Satterthwaite.
        squares = [x**2 / (n - 1) for x, n in zip(parts, counts, strict=True)]
        degrees = sum(parts) ** 2 / sum(squares) if any(parts) else math.inf
        error, method = math.sqrt(sum(parts)), WELCH
    elif counts == [1, 1] and None not in errors:
        error, method = math.hypot(*errors), HELD_OUT
    means = [statistics.fmean(x.values()) for x in rows]
    found = {"difference": means[0] - means[1], "error": error}
    if error is not None:
        found["chance"] = float(2 * special.stdtr(degrees, -_LIMIT))
    return found | {"method": method}


def judge(difference: float, error: float | None, expected: str) -> str:
    """Returns a verdict on `expected`, the paper's claim "above" or "below"."""
    if error is None or abs(difference) <= _LIMIT * error + _ROUNDING:
        return NOT_DISTINGUISHABLE
    return AGREES if (difference > 0) == (expected == "above") else CONTRADICTS


# === Markdown ===


def text(report: Values) -> str:
    """Returns the report as Markdown."""
    words, failed = data.read_recipe("report"), report["failed"]
    commits = [f"{x} ({y:,})" for x, y in report["commits"].items()]
    state = words["state"].format(
        **report,
        num_failed=len(failed),
        time=datetime.timedelta(seconds=round(report["seconds"])),
        hashes=", ".join(commits) or "none",
    )
    parts = [words["title"], state, words["how_to_read"]]
    parts += _signs(report["tables"])
    for table in report["tables"]:
        parts += _table(table)
    if failed:
        lines = [f"- `{x['id']}`, log `{x.get('log')}`" for x in failed]
        parts += ["## Failed cells", "\n".join(lines)]
    if names := report["unreadable"]:
        parts.append(words["unreadable"].format(", ".join(names)))
    parts.append(words["sources"].format(**data.read_recipe("paper")))
    return "\n\n".join(parts)


def _labels(table: Values) -> dict[str, str]:
    """Returns the labels of a table's rows and columns, by name."""
    found = {x["name"]: x["label"] for x in (*table["rows"], *table["columns"])}
    for column in table["columns"]:
        if not column["higher_is_better"]:
            found[column["name"]] += " (lower is better)"
    return found


def _shown(value: Values) -> str:
    """Returns "61.37 ± 0.42 (3)": mean, deviation and number of seeds.

    If one of three cells is missing, the number of seeds is "(2 of 3)".
    """
    count, total = len(value["scores"]), value["num_planned"]
    if not count:
        return "failed" if value["num_failed"] else _NOTHING
    seeds = count if count == total else f"{count} of {total}"
    return f"{value['mean']:.2f}{_plus_minus(value['deviation'])} ({seeds})"


def _plus_minus(error: float | None) -> str:
    return "" if error is None else f" ± {error:.2f}"


def _number(value: float | None, sign: str = "") -> str:
    """Formats a number of the paper; drops a second decimal that is 0."""
    return _NOTHING if value is None else f"{value:{sign}.2f}".removesuffix("0")


def _comparison(value: Values) -> dict[str, str]:
    """Formats our and the paper's difference and the verdict, by header."""
    difference, verdict = _NOTHING, value.get("verdict")
    if "difference" in value:
        difference = f"{value['difference']:+.2f}{_plus_minus(value['error'])}"
        if value["method"] in (WELCH, HELD_OUT):
            difference += f" ({value['method']})"
    if verdict == NOT_DISTINGUISHABLE:
        verdict += f" ({ONE_SEED})" * (value["method"] == ONE_SEED)
    elif verdict is not None:
        verdict = f"**{verdict}**"
    return {
        "difference": difference,
        "paper's difference": _number(value.get("paper_difference"), "+"),
        "verdict": verdict or "no result yet" * ("expected" in value),
    }


def _signs(tables: Rows) -> list[str]:
    """Returns a section with the paper's claims and verdicts; or []."""
    lines, verdicts = [], []
    for table in tables:
        names, where = _labels(table), f"[{table['name']}](#{table['name']})"
        for sign in table["signs"]:
            row, against = names[sign["row"]], names[sign["against"]]
            line = {"where": where, "column": names[sign["column"]]}
            line["sign"] = f"{row} {sign['expected']} {against}"
            lines.append(line | _comparison(sign))
            verdicts.append(sign["verdict"])
    kinds = (AGREES, CONTRADICTS, NOT_DISTINGUISHABLE, None)
    counted = data.read_recipe("report")["signs"]
    counted = counted.format(*map(verdicts.count, kinds))
    shown = ["## Signs of the paper", counted, _markdown(lines)]
    return shown if lines else []


def _table(table: Values) -> list[str]:
    name, title = table["name"], table["title"]
    paper, values = _paper(table), table["values"]
    parts = [f'<a id="{name}"></a>\n\n## {title}', table["question"]]
    parts.append(f"![{title}]({name}.png)")
    if table["kind"] == "curve":
        parts += _curves(table)
    else:
        for column in table["columns"]:
            parts += _column(table, column)
    if paper and all(value["paper"] is None for value in values):
        # No row here has a number in the paper, so show the paper's own table.
        lines = []
        for row in paper["rows"].values():
            numbers = [_number(row["values"].get(x)) for x in paper["columns"]]
            numbers = zip(paper["columns"].values(), numbers, strict=True)
            lines.append({"": row["label"], **dict(numbers)})
        parts += ["### The paper's table", _markdown(lines)]
    words, caption = data.read_recipe("report"), [table["scaled_down"].strip()]
    if paper:
        caption.append(words["paper"].format(**paper))
    if methods := {x.get("method") for x in values} - {None, ONE_SEED}:
        caption.append(words["errors"].format(" or ".join(sorted(methods))))
    if chances := [round(100 * x["chance"]) for x in values if "chance" in x]:
        share = dict.fromkeys(map(str, (min(chances), max(chances))))
        caption.append(words["chances"].format(" to ".join(share)))
    failed = sum(x["num_failed"] for x in values)
    left = sum(x["num_planned"] - len(x["scores"]) for x in values) - failed
    if left or failed:
        caption.append(words["missing"].format(left, failed))
    return [*parts, " ".join(filter(None, caption))]


def _column(table: Values, column: Values) -> list[str]:
    """Returns a heading and a table with a line for each row."""
    values = [x for x in table["values"] if x["column"] == column["name"]]
    scores, names = [y for x in values for y in x["scores"]], _labels(table)
    reference, lines = names[table["reference_row"]], []
    for value in values:
        shown = _comparison(value)
        line = {"": names[value["row"]], "score": _shown(value)}
        line[f"difference to {reference}"] = shown.pop("difference")
        if any("test_score" in x for x in scores):
            tests = [x.get("test_score") for x in value["scores"]]
            tests = [x for x in tests if x is not None]
            found = summarize(tests) | {"scores": tests, "num_failed": 0}
            line["test"] = _shown({**found, "num_planned": len(tests)})
        if table["kind"] == "spread":
            line |= _spread(value)
        if any(x["paper"] is not None for x in values):
            line["paper"] = _number(value["paper"])
            line["paper's difference"] = shown["paper's difference"]
        if any("expected" in x for x in values):
            line["verdict"] = shown["verdict"]
        lines.append(line)
    return [f"### {names[column['name']]}", _markdown(lines)]


def _spread(value: Values) -> dict[str, str]:
    """Returns the range, and how many scores do not beat the majority class."""
    scores = [x["score"] for x in value["scores"]]
    shown = f"{min(scores):.2f}, {max(scores):.2f}" if scores else _NOTHING
    found = {"from, to": shown, "at or below the majority class": _NOTHING}
    if scores and (majority := value["scores"][0].get("majority")) is not None:
        count = sum(x <= majority + _ROUNDING for x in scores)
        share = f"{count} of {len(scores)} ({count / len(scores):.0%})"
        share += f"; it has {majority:.2f}"
        found["at or below the majority class"] = share
    return found


def _curves(table: Values) -> list[str]:
    """Returns a table for each row but the reference, with a line per step."""
    names, reference, parts = _labels(table), table["reference_row"], []
    found = {(x["row"], x["column"]): x for x in table["values"]}
    for row in (x["name"] for x in table["rows"] if x["name"] != reference):
        lines = []
        for column in (x["name"] for x in table["columns"]):
            pair = value, other = found[row, column], found[reference, column]
            shown = _comparison(value)
            line = {"steps": f"{_steps(column):,}", names[row]: _shown(value)}
            line[names[reference]] = _shown(other)
            line["difference"] = shown["difference"]
            line["paper"] = ", ".join(_number(x["paper"]) for x in pair)
            lines.append(line | shown)
        parts.append(_markdown(lines))
    return [*parts, data.read_recipe("report")["curves"]]


def _markdown(lines: Rows) -> str:
    """Formats lines, dicts from header to cell, as a Markdown table."""
    header = [*lines[0]] if lines else []
    rows = [header, ["---"] * len(header), *(x.values() for x in lines)]
    rows = [[x.replace("|", "\\|") for x in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


# === Plots ===


def draw(table: Values) -> Figure:
    """Draws a panel per column: differences, or the scores of a "spread"."""
    if table["kind"] == "curve":
        return _draw_curves(table)
    names, legend, is_spread = _labels(table), {}, table["kind"] == "spread"
    label = f"difference to {names[table['reference_row']]}"
    label += "; bars:\xa0two\xa0standard\xa0errors"  # Break before "bars".
    label = "line: the majority class" if is_spread else label
    counts = [len(table["rows"])] * len(table["columns"])
    figure, panels = reports.new_panels(table["title"], counts, 0.45)
    for axes, column in zip(panels, table["columns"], strict=True):
        values = [x for x in table["values"] if x["column"] == column["name"]]
        known = {y.get("majority") for x in values for y in x["scores"]}
        for line in known - {None} if is_spread else {0.0}:
            axes.axvline(line, color=reports.GRAY, linewidth=0.9)
        for place, value in enumerate(values):
            for name, x, shift, error in _points(value, is_spread):
                color, marker = _STYLES[name]
                style = {"xerr": error, "color": color, "fmt": marker}
                y = place + shift
                legend[name] = axes.errorbar(x, y, capsize=3, **style)
        axes.set_xlabel(reports.wrap(label, 52))
        rows = [f"{names[x['row']]}\n{_shown(x)}" for x in values]
        reports.name_rows(axes, rows, 24)
        axes.margins(x=0.08)
        reports.finish(axes, "x", names[column["name"]])
    reports.add_legend(figure, 2, legend)
    return figure


def _points(value: Values, is_spread: bool) -> Iterator[tuple]:
    """Yields a row's points: label, x, vertical shift, half the error bar."""
    scores = value["scores"] if is_spread else ()
    for number, score in enumerate(scores):
        yield "a run", score["score"], 0.07 * (number % 3 - 1), None
    if (gap := value.get("paper_difference")) is not None:
        yield "the paper's difference", gap, 0.2, None
    if "difference" in value and not is_spread:
        error, verdict = value["error"], value.get("verdict")
        if error is None or verdict is None:
            verdict = "no sign claimed, or one seed"
        # If this bar contains 0, the verdict is "not distinguishable".
        yield verdict, value["difference"], -0.12, 2 * (error or 0.0)


def _draw_curves(table: Values) -> Figure:
    """Draws our scores over steps, and the paper's curves below them."""
    figure = reports.new_figure(table["title"], 6.2)
    own, paper = figure.subplots(2, 1)
    for number, row in enumerate(table["rows"]):
        values = [x for x in table["values"] if x["row"] == row["name"]]
        values = [x for x in values if x["scores"]]
        steps = [_steps(x["column"]) for x in values]
        means = [x["mean"] for x in values]
        errors = [x["deviation"] or 0.0 for x in values]
        reports.draw_line(own, row["label"], steps, means, number, errors)
        points = _paper(table)["rows"][row["name"]]["values"]
        steps, scores = [*map(int, points)], [*points.values()]
        reports.draw_line(paper, row["label"], steps, scores, number)
    for axes, title, label in (
        (own, "Ours, ± one standard deviation", table["columns"][0]["metric"]),
        (paper, "The paper's", "MNLI dev accuracy"),
    ):
        axes.set(xlabel="pretraining steps", ylabel=label, xlim=(0, None))
        axes.locator_params(axis="x", nbins=5, integer=True)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        reports.finish(axes, title=title)
    reports.add_legend(figure)
    return figure

"""The text of `report.md`, made from the contents of `report.json`."""

import datetime
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf.experiments import statistics

_NOTHING = "–"
_PENDING = "no result yet"
_ONE_PRETRAINING = (
    "Each model was pretrained once: standard deviations and errors cover the "
    "seeds of fine-tuning, not what another pretraining would change."
)
_LOG_LINES = 12

Values = Mapping[str, Any]


def text(report: Values) -> str:
    """Returns the report as Markdown."""
    parts = ["# The paper's experiments, repeated", _state(report)]
    signs = [(t, sign) for t in report["tables"] for sign in t["signs"]]
    if signs:
        parts += ["## Signs of the paper", *_signs(signs)]
    for table in report["tables"]:
        parts += _table(table)
    if report["pretraining"]:
        parts += [
            "## Pretraining",
            "Loss and accuracy of the masked LM, on the data of training, "
            "against the tokens read.",
            "![Pretraining curves](pretraining.png)",
        ]
    parts += _failures(report)
    parts.append(
        f"Numbers of the paper: {report['source']}. `report.json` has the raw "
        "scores, and `cells/` the commands that made each."
    )
    return "\n\n".join(parts)


def score(value: Values, planned: bool = True) -> str:
    """Returns "61.37 ± 0.42 (3)": mean, deviation and number of seeds.

    With `planned`, the number is "(2 of 3)" while cells are missing.
    """
    scores = value["scores"]
    if not scores:
        return "failed" if value["failed"] else _NOTHING
    total = len(scores) + len(value["failed"]) + len(value["missing"])
    count = str(len(scores))
    if planned and total > len(scores):
        count += f" of {total}"
    spread = _plus_minus(value["deviation"])
    return f"{value['mean']:.2f}{spread} ({count})"


def difference(value: Values) -> str:
    """Returns "-1.20 ± 0.31": the difference and its standard error."""
    if "difference" not in value:
        return _NOTHING
    return f"{value['difference']:+.2f}{_plus_minus(value['error'])}"


def _plus_minus(spread: float | None) -> str:
    return "" if spread is None else f" ± {spread:.2f}"


def verdict(value: Values) -> str:
    """Returns the verdict, with its reason if a row has one seed."""
    found = value.get("verdict")
    if found is None:
        return _PENDING if "expected" in value else ""
    if found == statistics.NOT_DISTINGUISHABLE:
        one = value.get("method") == statistics.ONE_SEED
        return f"{found} ({statistics.ONE_SEED})" if one else found
    return f"**{found}**"


def labels(table: Values) -> dict[str, str]:
    """Returns the labels of a table's rows and columns, by name."""
    named = (*table["columns"], *table["rows"])
    return {each["name"]: each["label"] for each in named}


def _state(report: Values) -> str:
    finished, planned = report["num_finished"], report["num_cells"]
    lines = [f"{finished:,} of {planned:,} cells are finished"]
    if report["failed"]:
        lines.append(f"{len(report['failed']):,} failed")
    hours = datetime.timedelta(seconds=round(report["seconds"]))
    state = f"{', '.join(lines)}. The finished ones took {hours} (h:mm:ss)."
    commits = report["commits"]
    if len(commits) == 1:
        state += f" All were made by commit {next(iter(commits))}."
    elif commits:
        parts = (f"{name} ({len(ids):,})" for name, ids in commits.items())
        state += (
            f" They were made by {len(commits)} commits: {', '.join(parts)}."
        )
    return (
        f"{state}\n\nA score is the mean ± the standard deviation (number of "
        "seeds). A difference is given with ± its standard error. A verdict "
        "compares its sign with the paper's: *agrees* or *contradicts* if the "
        "difference is larger than two standard errors, else *not "
        "distinguishable*. Where the paper has no sign there is no verdict."
    )


def _signs(signs: Sequence[tuple[Values, Values]]) -> list[str]:
    verdicts = [sign["verdict"] for _, sign in signs]
    counts = [
        f"{verdicts.count(name)} {words}"
        for name, words in (
            (statistics.AGREES, "agree"),
            (statistics.CONTRADICTS, "contradict"),
            (statistics.NOT_DISTINGUISHABLE, "are not distinguishable"),
            (None, "have no result yet"),
        )
    ]
    rows = []
    for table, sign in signs:
        names = labels(table)
        rows.append(
            (
                f"[{table['name']}](#{table['name']})",
                names[sign["column"]],
                f"{names[sign['row']]} {sign['expected']} "
                f"{names[sign['against']]}",
                difference(sign),
                _paper_difference(sign),
                verdict(sign),
            )
        )
    header = ("where", "column", "sign", "difference", "paper's", "verdict")
    return [f"{', '.join(counts)}.", _markdown(header, rows)]


def _table(table: Values) -> list[str]:
    parts = [
        f'<a id="{table["name"]}"></a>\n\n## {table["title"]}',
        table["question"],
        f"![{table['title']}]({table['name']}.png)",
    ]
    if table["kind"] == "curve":
        parts += _curves(table)
    else:
        for column in table["columns"]:
            parts += _column(table, column)
        parts += _paper_table(table.get("paper_table"))
    return [part for part in (*parts, _caption(table)) if part]


def _column(table: Values, column: Values) -> list[str]:
    """Returns a heading and a table with a line for each row."""
    values = [v for v in table["values"] if v["column"] == column["name"]]
    if not values:
        return []
    names = labels(table)
    better = "" if column["higher_is_better"] else " (lower is better)"
    reference = names[table["reference_row"]]
    header = ["", "score", f"difference to {reference}"]
    fields = [
        [names[value["row"]], score(value), _with_method(table, value)]
        for value in values
    ]
    _add_test_scores(header, fields, values)
    if table["kind"] == "spread":
        header += ["from, to", "at or below the majority class"]
        for field, value in zip(fields, values, strict=True):
            field += [_range(value), _share_at_majority(value)]
    if any(value["paper"] is not None for value in values):
        header += ["paper", "paper's difference"]
        for field, value in zip(fields, values, strict=True):
            field += [_number(value["paper"]), _paper_difference(value)]
    if any("expected" in value for value in values):
        header.append("verdict")
        for field, value in zip(fields, values, strict=True):
            field.append(verdict(value))
    return [f"### {column['label']}{better}", _markdown(header, fields)]


def _add_test_scores(
    header: list[str], fields: list[list[str]], values: Sequence[Values]
) -> None:
    """Adds a column with test scores, if there are any."""
    if not any("test_score" in s for value in values for s in value["scores"]):
        return
    header.append("test")
    for field, value in zip(fields, values, strict=True):
        scores = [
            statistics.Score(s["seed"], s["test_score"])
            for s in value["scores"]
            if "test_score" in s
        ]
        if not scores:
            field.append(_NOTHING)
            continue
        found = statistics.summarize(scores)
        spread = _plus_minus(found.deviation)
        field.append(f"{found.mean:.2f}{spread} ({found.count})")


def _paper_table(table: Values | None) -> list[str]:
    """Returns the paper's table, where it has other rows or columns."""
    if table is None:
        return []
    columns = table["columns"]
    rows = [
        [
            row["label"],
            *(_number(row["values"].get(column)) for column in columns),
        ]
        for row in table["rows"].values()
    ]
    return [
        "### The paper's table",
        _markdown(["", *columns.values()], rows),
    ]


def _curves(table: Values) -> list[str]:
    """Returns a table with a line for each step, for each row."""
    names, reference = labels(table), table["reference_row"]
    by_cell = {(v["row"], v["column"]): v for v in table["values"]}
    parts = []
    for row in table["rows"]:
        if row["name"] == reference:
            continue
        header = ["steps", row["label"], names[reference], "difference"]
        header += ["paper", "paper's difference", "verdict"]
        fields = []
        for column in table["columns"]:
            value = by_cell.get((row["name"], column["name"]))
            other = by_cell.get((reference, column["name"]))
            if value is None or other is None:
                continue
            both = (_number(value["paper"]), _number(other["paper"]))
            fields.append(
                (
                    f"{column['steps']:,}",
                    score(value),
                    score(other),
                    _with_method(table, value),
                    _NOTHING if _NOTHING in both else ", ".join(both),
                    _paper_difference(value),
                    verdict(value),
                )
            )
        parts.append(_markdown(header, fields))
    if table["paper_curves"]:
        parts.append(
            "The paper's numbers are those at the same share of its steps, on "
            "straight lines between the points of its drawing."
        )
    return parts


def _caption(table: Values) -> str:
    """Returns what was scaled down, what errors cover, and which commits."""
    values = [value for value in table["values"] if value["scores"]]
    sentences = [table["scaled_down"].strip(), _ONE_PRETRAINING]
    if table["paper_title"]:
        sentences.append(f"The paper's numbers: {table['paper_title']}.")
    methods = _methods(table)
    if len(methods) == 1:
        sentences.append(f"Standard errors of differences: {methods[0]}.")
    elif methods:
        sentences.append(
            "Standard errors of differences are paired by seed where both "
            "rows have the same seeds, and named in parentheses elsewhere."
        )
    if statistics.HELD_OUT in methods:
        sentences.append(
            "Errors on held-out text cover the choice of the text alone."
        )
    chances = {round(100 * v["chance"]) for v in values if "chance" in v}
    if chances:
        low, high = min(chances), max(chances)
        share = f"{low}%" if low == high else f"{low} to {high}%"
        sentences.append(
            f"By chance, {share} of differences that are zero in truth would "
            "be larger than two standard errors (5% with many seeds)."
        )
    missing = sum(len(v["missing"]) for v in table["values"])
    failed = sum(len(v["failed"]) for v in table["values"])
    if missing or failed:
        sentences.append(
            f"Cells without a score: {missing} not finished, {failed} failed."
        )
    return " ".join([*filter(None, sentences), *_commits(table["commits"])])


def _commits(commits: Mapping[str, Sequence[str]]) -> Iterable[str]:
    """Yields which cells come from which commit, if there are several."""
    if len(commits) < 2:
        return
    most, *others = sorted(commits, key=lambda name: -len(commits[name]))
    for commit in others:
        cells = ", ".join(f"`{cell}`" for cell in commits[commit])
        yield f"Made by commit {commit}: {cells}."
    yield f"All other cells: commit {most}."


def _failures(report: Values) -> list[str]:
    parts = []
    if report["failed"]:
        parts.append("## Failed cells")
    for cell in report["failed"]:
        lines = cell.get("last_lines") or []
        lines = lines.splitlines() if isinstance(lines, str) else lines
        shown = "\n".join(f"    {line}" for line in lines[-_LOG_LINES:])
        log = f", log `{cell['log']}`" if cell.get("log") else ""
        parts.append(f"`{cell['id']}`{log}:")
        parts.append(shown or "    (the log is empty)")
    for name, what in (
        ("unreadable", "These files in `cells/` hold no result"),
        ("foreign", "These cells belong to no table of this report"),
    ):
        if report[name]:
            found = ", ".join(f"`{each}`" for each in report[name])
            parts.append(f"{what}: {found}.")
    return parts


def _with_method(table: Values, value: Values) -> str:
    """Returns the difference, and how it was computed if the table has both."""
    shown, method = difference(value), value.get("method")
    if method in (None, statistics.ONE_SEED, statistics.PAIRED):
        return shown
    is_only_one = len(_methods(table)) == 1
    return shown if is_only_one else f"{shown} ({method})"


def _methods(table: Values) -> list[str]:
    """Returns the methods of all differences that have an error."""
    methods = {value.get("method") for value in table["values"]}
    return sorted(methods - {None, statistics.ONE_SEED})


def _range(value: Values) -> str:
    scores = [each["score"] for each in value["scores"]]
    return f"{min(scores):.2f}, {max(scores):.2f}" if scores else _NOTHING


def _share_at_majority(value: Values) -> str:
    if "majority" not in value:
        return _NOTHING
    failed, total = value["num_at_majority"], value["num_with_majority"]
    share = failed / total
    return f"{failed} of {total} ({share:.0%}); it has {value['majority']:.2f}"


def _paper_difference(value: Values) -> str:
    found = value.get("paper_difference")
    return _NOTHING if found is None else _trim(f"{found:+.2f}")


def _number(value: float | None) -> str:
    return _NOTHING if value is None else _trim(f"{value:.2f}")


def _trim(number: str) -> str:
    """Removes a second decimal that the paper does not print."""
    return number.removesuffix("0")


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        f"| {' | '.join(field.replace('|', chr(92) + '|') for field in line)} |"
        for line in lines
    )

"""The text of `report.md`, made from the contents of `report.json`."""

import datetime
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf.experiments import statistics

_NOTHING = "–"
_HOW_TO_READ = (
    "A score is the mean ± the standard deviation (number of seeds). A "
    "difference is given with ± its standard error. A verdict compares its "
    "sign with the paper's: *agrees* or *contradicts* if the difference is "
    "larger than two standard errors, else *not distinguishable*. Where the "
    "paper has no sign there is no verdict."
)
_ONE_PRETRAINING = (
    "Each model was pretrained once: standard deviations and errors cover the "
    "seeds of fine-tuning, not what another pretraining would change."
)
_LOG_LINES = 12

Values = Mapping[str, Any]


def text(report: Values) -> str:
    """Returns the report as Markdown."""
    parts = ["# The paper's experiments, repeated", _state(report)]
    parts += [_HOW_TO_READ, *_signs(report["tables"])]
    for table in report["tables"]:
        parts += _table(table)
    if report["pretraining"]:
        parts += [
            "## Pretraining",
            "Loss and accuracy of the masked LM, on the data of training.",
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
    count = len(value["scores"])
    if not count:
        return "failed" if value["failed"] else _NOTHING
    total = count + len(value["failed"]) + len(value["missing"])
    of_total = f" of {total}" if planned and total > count else ""
    return _with_error(value["mean"], value["deviation"], f"{count}{of_total}")


def labels(table: Values) -> dict[str, str]:
    """Returns the labels of a table's rows and columns, by name."""
    named = (*table["columns"], *table["rows"])
    return {each["name"]: each["label"] for each in named}


def _with_error(number: float, error: float | None, count: Any) -> str:
    return f"{number:.2f}{_plus_minus(error)} ({count})"


def _plus_minus(spread: float | None) -> str:
    return "" if spread is None else f" ± {spread:.2f}"


def _difference(value: Values) -> str:
    """Returns "-1.20 ± 0.31": the difference and its standard error."""
    if "difference" not in value:
        return _NOTHING
    return f"{value['difference']:+.2f}{_plus_minus(value['error'])}"


def _verdict(value: Values) -> str:
    """Returns the verdict, with its reason if a row has one seed."""
    found = value.get("verdict")
    if found is None:
        return "no result yet" if "expected" in value else ""
    if found == statistics.NOT_DISTINGUISHABLE:
        one = value.get("method") == statistics.ONE_SEED
        return f"{found} ({statistics.ONE_SEED})" if one else found
    return f"**{found}**"


def _paper(value: float | None, sign: str = "") -> str:
    """Returns a number without a second decimal that the paper lacks."""
    if value is None:
        return _NOTHING
    return f"{value:{sign}.2f}".removesuffix("0")


def _paper_difference(value: Values) -> str:
    return _paper(value.get("paper_difference"), "+")


def _state(report: Values) -> str:
    finished, planned = report["num_finished"], report["num_cells"]
    state = f"{finished:,} of {planned:,} cells are finished"
    if report["failed"]:
        state += f", {len(report['failed']):,} failed"
    time = datetime.timedelta(seconds=round(report["seconds"]))
    state += f". The finished ones took {time} (h:mm:ss)."
    commits = report["commits"]
    if len(commits) == 1:
        return f"{state} All were made by commit {next(iter(commits))}."
    if commits:
        parts = (f"{name} ({len(ids):,})" for name, ids in commits.items())
        state += f" They were made by {len(commits)} commits: "
        state += f"{', '.join(parts)}."
    return state


def _signs(tables: Sequence[Values]) -> list[str]:
    """Returns the table of the signs that the paper claims."""
    signs = [(table, sign) for table in tables for sign in table["signs"]]
    if not signs:
        return []
    verdicts = [sign["verdict"] for _, sign in signs]
    words = {
        statistics.AGREES: "agree",
        statistics.CONTRADICTS: "contradict",
        statistics.NOT_DISTINGUISHABLE: "are not distinguishable",
        None: "have no result yet",
    }
    counts = [f"{verdicts.count(x)} {word}" for x, word in words.items()]
    rows = []
    for table, sign in signs:
        names, where = labels(table), table["name"]
        row, against = names[sign["row"]], names[sign["against"]]
        rows.append(
            [
                f"[{where}](#{where})",
                names[sign["column"]],
                f"{row} {sign['expected']} {against}",
                _difference(sign),
                _paper_difference(sign),
                _verdict(sign),
            ]
        )
    header = ["where", "column", "sign", "difference", "paper's", "verdict"]
    counted = f"{', '.join(counts)}."
    return ["## Signs of the paper", counted, _markdown(header, rows)]


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
    if paper := table.get("paper_table"):
        columns = paper["columns"]
        rows = [
            [row["label"], *(_paper(row["values"].get(x)) for x in columns)]
            for row in paper["rows"].values()
        ]
        header = ["", *columns.values()]
        parts += ["### The paper's table", _markdown(header, rows)]
    return [*parts, _caption(table)]


def _column(table: Values, column: Values) -> list[str]:
    """Returns a heading and a table with a line for each row."""
    values = [v for v in table["values"] if v["column"] == column["name"]]
    if not values:
        return []
    names = labels(table)
    # Header to the fields of all rows.
    fields = {
        "": [names[value["row"]] for value in values],
        "score": [score(value) for value in values],
        f"difference to {names[table['reference_row']]}": [
            _with_method(table, value) for value in values
        ],
    }
    if any("test_score" in x for value in values for x in value["scores"]):
        fields["test"] = [_test_score(value) for value in values]
    if table["kind"] == "spread":
        fields["from, to"] = [_range(value) for value in values]
        header = "at or below the majority class"
        fields[header] = [_share_at_majority(value) for value in values]
    if any(value["paper"] is not None for value in values):
        fields["paper"] = [_paper(value["paper"]) for value in values]
        differences = [_paper_difference(value) for value in values]
        fields["paper's difference"] = differences
    if any("expected" in value for value in values):
        fields["verdict"] = [_verdict(value) for value in values]
    better = "" if column["higher_is_better"] else " (lower is better)"
    rows = zip(*fields.values(), strict=True)
    return [f"### {column['label']}{better}", _markdown([*fields], rows)]


def _test_score(value: Values) -> str:
    scores = [x["test_score"] for x in value["scores"] if "test_score" in x]
    if not scores:
        return _NOTHING
    return _with_error(*statistics.summarize(scores), len(scores))


def _range(value: Values) -> str:
    scores = [each["score"] for each in value["scores"]]
    return f"{min(scores):.2f}, {max(scores):.2f}" if scores else _NOTHING


def _share_at_majority(value: Values) -> str:
    if "majority" not in value:
        return _NOTHING
    failed, total = value["num_at_majority"], value["num_with_majority"]
    share = failed / total
    return f"{failed} of {total} ({share:.0%}); it has {value['majority']:.2f}"


def _curves(table: Values) -> list[str]:
    """Returns a table with a line for each step, for each row."""
    names, reference = labels(table), table["reference_row"]
    parts = []
    for row in table["rows"]:
        if row["name"] == reference:
            continue
        header = ["steps", row["label"], names[reference], "difference"]
        header += ["paper", "paper's difference", "verdict"]
        fields = []
        for column in table["columns"]:
            key, values = column["name"], table["values"]
            found = {x["row"]: x for x in values if x["column"] == key}
            if not {row["name"], reference} <= {*found}:
                continue
            value, other = found[row["name"]], found[reference]
            both = [_paper(x["paper"]) for x in (value, other)]
            fields.append(
                [
                    f"{column['steps']:,}",
                    score(value),
                    score(other),
                    _with_method(table, value),
                    _NOTHING if _NOTHING in both else ", ".join(both),
                    _paper_difference(value),
                    _verdict(value),
                ]
            )
        parts.append(_markdown(header, fields))
    if table["paper_curves"]:
        parts.append(
            "The paper's numbers are those at the same share of its steps, on "
            "straight lines between the points of its drawing."
        )
    return parts


def _methods(table: Values) -> list[str]:
    """Returns the methods of all differences that have an error."""
    methods = {value.get("method") for value in table["values"]}
    return sorted(methods - {None, statistics.ONE_SEED})


def _with_method(table: Values, value: Values) -> str:
    """Returns the difference, and how it was computed if the table has both."""
    shown, method = _difference(value), value.get("method")
    usual = (None, statistics.ONE_SEED, statistics.PAIRED)
    if method in usual or len(_methods(table)) == 1:
        return shown
    return f"{shown} ({method})"


def _caption(table: Values) -> str:
    """Returns what was scaled down, what errors cover, and which commits."""
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
    values = table["values"]
    chances = sorted(
        {round(100 * v["chance"]) for v in values if "chance" in v}
    )
    if chances:
        share = " to ".join(map(str, dict.fromkeys((chances[0], chances[-1]))))
        sentences.append(
            f"By chance, {share}% of differences that are zero in truth would "
            "be larger than two standard errors (5% with many seeds)."
        )
    missing, failed = (
        sum(len(v[name]) for v in values) for name in ("missing", "failed")
    )
    if missing or failed:
        sentences.append(
            f"Cells without a score: {missing} not finished, {failed} failed."
        )
    commits = table["commits"]
    if len(commits) > 1:
        most, *others = sorted(commits, key=lambda name: -len(commits[name]))
        for commit in others:
            cells = ", ".join(f"`{cell}`" for cell in commits[commit])
            sentences.append(f"Made by commit {commit}: {cells}.")
        sentences.append(f"All other cells: commit {most}.")
    return " ".join(filter(None, sentences))


def _failures(report: Values) -> list[str]:
    parts = ["## Failed cells"] if report["failed"] else []
    for cell in report["failed"]:
        lines = (cell.get("last_lines") or [])[-_LOG_LINES:]
        log = f", log `{cell['log']}`" if cell.get("log") else ""
        parts.append(f"`{cell['id']}`{log}:")
        shown = "\n".join(f"    {line}" for line in lines)
        parts.append(shown or "    (the log is empty)")
    for name, what in (
        ("unreadable", "These files in `cells/` hold no result"),
        ("foreign", "These cells belong to no table of this report"),
    ):
        if report[name]:
            found = ", ".join(f"`{each}`" for each in report[name])
            parts.append(f"{what}: {found}.")
    return parts


def _markdown(header: Sequence[str], rows: Any) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        f"| {' | '.join(field.replace('|', chr(92) + '|') for field in line)} |"
        for line in lines
    )

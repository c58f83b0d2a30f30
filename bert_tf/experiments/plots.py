"""Plots of the report's tables, readable at the width of a phone.

A table becomes differences to its reference row, ours beside the paper's; a
curve scores over steps; a spread box plots. Verdicts and rows differ in shape
and in color, and the background is white on dark pages, too.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from matplotlib.ticker import MaxNLocator

from bert_tf.experiments import report_text
from bert_tf.experiments import statistics
from bert_tf.io import figures

_NAME_CHARS = 24

CURVES = (
    (figures.BLUE, "o"),
    (figures.ORANGE, "s"),
    (figures.GRAY, "^"),
    (figures.BLACK, "D"),
)
_NO_SIGN = "no sign claimed, or one seed"
_VERDICTS = {
    statistics.AGREES: (figures.BLUE, "o"),
    statistics.CONTRADICTS: (figures.ORANGE, "X"),
    statistics.NOT_DISTINGUISHABLE: (figures.GRAY, "s"),
    _NO_SIGN: (figures.BLACK, "o"),
}
_PAPER = {"marker": "D", "markersize": 6, "markerfacecolor": "white"}

Values = Mapping[str, Any]


def draw(path: str, table: Values) -> None:
    """Writes the plot of a table of `report.json` as a PNG."""
    draw_kind = {"curve": _draw_curves, "spread": _draw_spread}
    figure = draw_kind.get(table["kind"], _draw_differences)(table)
    figure.savefig(path, format="png")


def _draw_differences(table: Values) -> Figure:
    """Draws a panel for each column: differences with two standard errors."""
    columns = [c for c in table["columns"] if _compared(table, c)]
    counts = [len(_compared(table, column)) for column in columns]
    height = 1.3 + 0.8 * len(counts) + 0.42 * sum(counts)
    figure, panels = _panels(table["title"], height, counts)
    used: dict[str, Any] = {}
    for axes, column in zip(panels, columns, strict=True):
        _draw_column(axes, table, column, used)
    if used:
        figures.legend(figure, [*used.values()], [*used], ncols=2)
    return figure


def _panels(
    title: str, height: float, counts: Sequence[int]
) -> tuple[Figure, Sequence[Axes]]:
    """Returns a figure with a panel for each number of rows, if any."""
    figure = figures.new_figure(title, height)
    if not counts:
        figure.text(0.5, 0.3, "no results yet", ha="center", color=figures.GRAY)
        return figure, []
    ratios = [1 + count for count in counts]
    panels = figure.subplots(
        len(counts), 1, squeeze=False, height_ratios=ratios
    )
    return figure, panels[:, 0]


def _compared(table: Values, column: Values) -> list[Values]:
    """Returns the values of a column that have a difference."""
    return [
        value
        for value in table["values"]
        if value["column"] == column["name"] and "difference" in value
    ]


def _draw_column(
    axes: Axes, table: Values, column: Values, used: dict[str, Any]
) -> None:
    names = report_text.labels(table)
    values = _compared(table, column)
    reference = next(
        value
        for value in table["values"]
        if value["column"] == column["name"]
        and value["row"] == table["reference_row"]
    )
    axes.axvline(0, color=figures.GRAY, linewidth=0.9)
    for place, value in enumerate(values):
        verdict = value.get("verdict")
        if verdict is None or value["error"] is None:
            verdict = _NO_SIGN
        color, marker = _VERDICTS[verdict]
        used[f"ours: {verdict}"] = axes.errorbar(
            value["difference"],
            place - 0.12,
            xerr=2 * (value["error"] or 0.0),
            color=color,
            marker=marker,
            markersize=6,
            markerfacecolor="white" if value["error"] is None else color,
            linewidth=1.4,
            capsize=3,
        )
        if value.get("paper_difference") is not None:
            (used["the paper's difference"],) = axes.plot(
                value["paper_difference"],
                place + 0.2,
                linestyle="none",
                color=figures.BLACK,
                **_PAPER,
            )
    _name_rows(axes, [f"{names[v['row']]}\n{_score(v)}" for v in values])
    axes.set_title(column["label"], fontsize=10, loc="left")
    better = "" if column["higher_is_better"] else "; lower is better"
    axes.set_xlabel(
        figures.wrap(
            f"difference to {names[reference['row']]}, {_score(reference)}; "
            f"bars: two standard errors{better}",
            52,
        ),
        fontsize=figures.SMALL,
    )
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.margins(x=0.08)
    figures.finish(axes, "x")


def _draw_curves(table: Values) -> Figure:
    """Draws scores over steps, and the paper's curves below."""
    papers = table["paper_curves"]
    figure = figures.new_figure(table["title"], 6.2 if papers else 3.7)
    panels = figure.subplots(2 if papers else 1, 1, squeeze=False)[:, 0]
    names = report_text.labels(table)
    steps = {column["name"]: column["steps"] for column in table["columns"]}
    ours, paper = {}, {}
    for row in table["rows"]:
        values = [
            value
            for value in table["values"]
            if value["row"] == row["name"] and value["scores"]
        ]
        ours[row["name"]] = [
            (steps[v["column"]], v["mean"], v["deviation"] or 0.0)
            for v in sorted(values, key=lambda v: steps[v["column"]])
        ]
        paper[row["name"]] = [
            (x, y, 0.0) for x, y in papers.get(row["name"], ())
        ]
    label = table["columns"][0]["label"] if len(steps) == 1 else ""
    _draw_panel(panels[0], ours, names)
    panels[0].set_title(
        "Ours, ± one standard deviation", fontsize=10, loc="left"
    )
    panels[0].set_ylabel(
        label or table["columns"][0]["metric"], fontsize=figures.SMALL
    )
    if papers:
        _draw_panel(panels[1], paper, names)
        panels[1].set_title("The paper's", fontsize=10, loc="left")
        panels[1].set_ylabel("MNLI dev accuracy", fontsize=figures.SMALL)
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        figures.legend(figure, handles, labels)
    return figure


def _draw_panel(
    axes: Axes,
    curves: Mapping[str, Sequence[tuple[float, float, float]]],
    names: Mapping[str, str],
) -> None:
    """Draws curves of (steps, score, deviation)."""
    for number, (row, points) in enumerate(curves.items()):
        color, marker = CURVES[number % len(CURVES)]
        if points:
            x, y, deviations = np.array(points).T
            axes.errorbar(
                x,
                y,
                yerr=deviations if deviations.any() else None,
                color=color,
                marker=marker,
                markersize=5,
                linewidth=1.4,
                capsize=3,
                label=names[row],
            )
    axes.set_xlabel("pretraining steps", fontsize=figures.SMALL)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    figures.finish(axes, "y")


def _draw_spread(table: Values) -> Figure:
    """Draws a box plot for each row, and the majority class."""
    by_column = [
        (
            column,
            [
                value
                for value in table["values"]
                if value["column"] == column["name"] and value["scores"]
            ],
        )
        for column in table["columns"]
    ]
    by_column = [(column, values) for column, values in by_column if values]
    counts = [len(values) for _, values in by_column]
    height = 1.2 + 0.8 * len(counts) + 0.48 * sum(counts)
    figure, panels = _panels(table["title"], height, counts)
    if not by_column:
        return figure
    names = report_text.labels(table)
    for axes, (column, values) in zip(panels, by_column, strict=True):
        _draw_boxes(axes, values)
        _name_rows(axes, [_spread_name(names, value) for value in values])
        axes.set_title(column["label"], fontsize=10, loc="left")
        axes.set_xlabel(
            column["metric"].replace("_", " "), fontsize=figures.SMALL
        )
        figures.finish(axes, "x")
    points = {"xdata": [], "ydata": [], "linestyle": "none"}
    handles = {
        "a run": Line2D(**points, color=figures.BLUE, marker="o"),
        "failed: at or below the majority class": Line2D(
            **points, color=figures.ORANGE, marker="X"
        ),
        "majority class": Line2D([], [], linestyle="--", color=figures.BLACK),
    }
    figures.legend(figure, [*handles.values()], [*handles])
    return figure


def _draw_boxes(axes: Axes, values: Sequence[Values]) -> None:
    """Draws the box and all scores of each row, from range to range."""
    scores = [[each["score"] for each in v["scores"]] for v in values]
    axes.boxplot(
        scores,
        positions=range(len(values)),
        orientation="horizontal",
        widths=0.55,
        whis=(0, 100),
        manage_ticks=False,
        medianprops={"color": figures.BLACK, "linewidth": 1.4},
        boxprops={"color": figures.GRAY},
        whiskerprops={"color": figures.GRAY},
        capprops={"color": figures.GRAY},
    )
    for place, value in enumerate(values):
        for number, each in enumerate(value["scores"]):
            has_failed = each.get("at_majority", False)
            axes.plot(
                each["score"],
                place + 0.07 * (number % 3 - 1),
                color=figures.ORANGE if has_failed else figures.BLUE,
                marker="X" if has_failed else "o",
                markersize=5,
                alpha=0.85,
                linestyle="none",
                zorder=3,
            )
    for majority in {v["majority"] for v in values if "majority" in v}:
        axes.axvline(
            majority, color=figures.BLACK, linestyle="--", linewidth=1.0
        )
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))


def _spread_name(names: Mapping[str, str], value: Values) -> str:
    name = names[value["row"]]
    if "majority" not in value:
        return f"{name}\n{len(value['scores'])} runs"
    failed, total = value["num_at_majority"], value["num_with_majority"]
    return f"{name}\n{failed} of {total} failed"


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    wrapped = [
        "\n".join(figures.wrap(line, _NAME_CHARS) for line in name.split("\n"))
        for name in names
    ]
    axes.set_yticks(
        np.arange(len(names)), wrapped, fontsize=figures.SMALL, parse_math=False
    )
    axes.set_ylim(len(names) - 0.4, -0.6)


def _score(value: Values) -> str:
    return report_text.score(value, planned=False)

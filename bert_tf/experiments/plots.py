"""Plots of the report, readable at the width of a phone.

A table becomes differences to its reference row, ours beside the paper's; a
curve scores over steps; a spread box plots. Verdicts and rows differ in shape
and in color.
"""

import itertools
import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.ticker import StrMethodFormatter

from bert_tf.experiments import report_text
from bert_tf.experiments import statistics
from bert_tf.io import figures

_COLORS = (figures.BLUE, figures.ORANGE, figures.GRAY, figures.BLACK)
_STYLES = tuple(zip(_COLORS, "os^D", strict=True))
_VERDICTS = {
    statistics.AGREES: (figures.BLUE, "o"),
    statistics.CONTRADICTS: (figures.ORANGE, "X"),
    statistics.NOT_DISTINGUISHABLE: (figures.GRAY, "s"),
    "no sign claimed, or one seed": (figures.BLACK, "o"),
}

Values = Mapping[str, Any]


def draw(path: str, table: Values) -> None:
    """Writes the plot of a table of `report.json` as a PNG."""
    is_curve = table["kind"] == "curve"
    figure = (_draw_curves if is_curve else _draw_rows)(table)
    figure.savefig(path, format="png")


def draw_pretraining(path: str, curves: Sequence[Values]) -> None:
    """Writes losses and accuracies of pretraining, on a logarithmic axis."""
    figure = figures.new_figure("Pretraining, by size of the model", 6.2)
    panels = figure.subplots(2, 1, sharex=True)
    metrics = ("masked_lm_loss", "masked_lm_accuracy")
    for axes, metric in zip(panels, metrics, strict=True):
        lines = [(x["name"], x["steps"], x[metric]) for x in curves]
        _draw_lines(axes, lines, metric.replace("_", " "))
        axes.set_xscale("log")
    figures.legend(figure, *axes.get_legend_handles_labels(), ncols=2)
    figure.savefig(path, format="png")


def _draw_lines(axes: Axes, lines: Sequence[tuple], title: str) -> None:
    """Draws lines of a label, steps and scores, perhaps with deviations."""
    styles = zip(itertools.cycle(_STYLES), lines, strict=False)
    for (color, marker), (label, *points) in styles:
        style = {"color": color, "marker": marker, "markersize": 5}
        axes.errorbar(*points, label=label, capsize=3, **style)
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel("pretraining steps", fontsize=figures.SMALL)
    figures.finish(axes, "both")


def _draw_curves(table: Values) -> Figure:
    """Draws scores over steps, and the paper's curves below."""
    papers, names = table["paper_curves"], report_text.labels(table)
    steps = {column["name"]: column["steps"] for column in table["columns"]}
    ours = []
    for row in table["rows"]:
        points = [
            (steps[x["column"]], x["mean"], x["deviation"] or 0.0)
            for x in table["values"]
            if x["row"] == row["name"] and x["scores"]
        ]
        # Without results, too, as colors go by the place of the row.
        points = sorted(points) or [(math.nan, math.nan, 0.0)]
        ours.append((row["label"], *zip(*points, strict=True)))
    theirs = [(names[x], *zip(*y, strict=True)) for x, y in papers.items()]
    metric = table["columns"][0]["metric"]
    drawn = [(ours, "Ours, ± one standard deviation", metric)]
    drawn += [(theirs, "The paper's", "MNLI dev accuracy")] * bool(theirs)
    figure = figures.new_figure(table["title"], 1.2 + 2.5 * len(drawn))
    panels = figure.subplots(len(drawn), 1, squeeze=False)[:, 0]
    for axes, (lines, title, label) in zip(panels, drawn, strict=True):
        _draw_lines(axes, lines, title)
        axes.set_ylabel(label, fontsize=figures.SMALL)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    figures.legend(figure, *axes.get_legend_handles_labels())
    return figure


def _draw_rows(table: Values) -> Figure:
    """Draws a panel for each column: differences or box plots of its rows."""
    is_spread = table["kind"] == "spread"
    shown = "mean" if is_spread else "difference"
    names, columns, used = report_text.labels(table), [], {}
    for column in table["columns"]:
        values = [x for x in table["values"] if x["column"] == column["name"]]
        if kept := [x for x in values if shown in x]:
            columns.append((column, kept, report_text.score(values[0], False)))
    counts = [len(values) for _, values, _ in columns]
    height = 1.3 + 0.8 * len(counts) + 0.45 * sum(counts)
    figure = figures.new_figure(table["title"], height)
    if not columns:
        figure.text(0.5, 0.3, "no results yet", ha="center", color=figures.GRAY)
        return figure
    panels = figure.subplots(
        len(counts), 1, squeeze=False, height_ratios=[1 + x for x in counts]
    )[:, 0]
    for axes, (column, values, score) in zip(panels, columns, strict=True):
        label = f"difference to {names[table['reference_row']]}, {score}"
        label += "; bars: two standard errors"
        label += "; lower is better" * (not column["higher_is_better"])
        if is_spread:
            label = column["metric"].replace("_", " ")
        (_draw_boxes if is_spread else _draw_differences)(axes, values, used)
        axes.set_xlabel(figures.wrap(label, 52), fontsize=figures.SMALL)
        axes.set_title(column["label"], fontsize=10, loc="left")
        ticks = [figures.wrap(names[x["row"]], 24) for x in values]
        scores = [report_text.score(x, False) for x in values]
        ticks = [f"{x}\n{y}" for x, y in zip(ticks, scores, strict=True)]
        style = {"fontsize": figures.SMALL, "parse_math": False}
        axes.set_yticks(range(len(ticks)), ticks, **style)
        axes.set_ylim(len(ticks) - 0.4, -0.6)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        axes.margins(x=0.08)
        figures.finish(axes, "x")
    figures.legend(figure, [*used.values()], [*used], ncols=1 + (not is_spread))
    return figure


def _draw_differences(
    axes: Axes, values: Sequence[Values], used: dict[str, Any]
) -> None:
    axes.axvline(0, color=figures.GRAY, linewidth=0.9)
    for place, value in enumerate(values):
        error = value["error"]
        verdict = error is not None and value.get("verdict")
        verdict = verdict or "no sign claimed, or one seed"
        color, marker = _VERDICTS[verdict]
        style = {"linestyle": "none", "markersize": 6, "capsize": 3}
        style |= {"color": color, "marker": marker}
        if error is None:
            style["markerfacecolor"] = "white"
        points = (value["difference"], place - 0.12)
        bars = axes.errorbar(*points, xerr=2 * (error or 0.0), **style)
        used[f"ours: {verdict}"] = bars
        if value.get("paper_difference") is not None:
            style |= {"color": figures.BLACK, "marker": "D"}
            style["markerfacecolor"] = "white"
            points = (value["paper_difference"], place + 0.2)
            used["the paper's difference"] = axes.errorbar(*points, **style)


def _draw_boxes(
    axes: Axes, values: Sequence[Values], used: dict[str, Any]
) -> None:
    """Draws the box and all scores of each row, from range to range."""
    axes.boxplot(
        [[x["score"] for x in value["scores"]] for value in values],
        positions=range(len(values)),
        orientation="horizontal",
        widths=0.55,
        whis=(0, 100),
        manage_ticks=False,
        medianprops={"color": figures.BLACK, "linewidth": 1.4},
    )
    kinds = {
        "a run": (False, figures.BLUE, "o"),
        "failed: at or below the majority class": (True, figures.ORANGE, "X"),
    }
    for label, (has_failed, color, marker) in kinds.items():
        points = [
            (each["score"], place + 0.07 * (number % 3 - 1))
            for place, value in enumerate(values)
            for number, each in enumerate(value["scores"])
            if each.get("at_majority", False) == has_failed
        ]
        used[label] = axes.scatter(
            *zip(*points or [(math.nan,) * 2], strict=True),
            c=color,
            marker=marker,
            zorder=3,
        )
    for majority in {x["majority"] for x in values if "majority" in x}:
        style = {"color": figures.BLACK, "linestyle": "--", "linewidth": 1.0}
        used["majority class"] = axes.axvline(majority, **style)

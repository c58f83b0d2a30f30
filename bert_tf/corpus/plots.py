"""The plot of a report: what was kept and dropped, and the languages."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter
from matplotlib.ticker import MaxNLocator

from bert_tf.corpus import filters
from bert_tf.corpus import judging
from bert_tf.io import figures
from bert_tf.io import files

# Reasons that drop paragraphs, whose count is not one of documents.
_PARAGRAPHS = (
    filters.SHORT_PARAGRAPH,
    filters.FEW_LETTERS,
    judging.DUPLICATE_PARAGRAPH,
    judging.REPEATED_LINE,
)
_KEPT = "kept"
_HELDOUT = "held out"
_NAME_CHARACTERS = 26
_BAR = 0.36  # Height of one of a pair.


def write(path: str, report: Mapping[str, Any]) -> None:
    """Writes the plot of a report as PNG; the file appears whole."""
    figure = draw(report)
    with files.local_file(path) as temporary:
        figure.savefig(temporary, format="png")


def draw(report: Mapping[str, Any]) -> Figure:
    """Returns the plot: documents, characters, and shares of languages."""
    dropped = report["dropped"]
    kept = _kept(report)
    documents = {name: counts["documents"] for name, counts in kept.items()}
    documents |= {
        name: reason["count"]
        for name, reason in dropped.items()
        if name not in _PARAGRAPHS
    }
    characters = {name: counts["characters"] for name, counts in kept.items()}
    characters |= {name: x["characters"] for name, x in dropped.items()}
    languages = report.get("languages") or {}
    rows = [len(documents), len(characters)]
    if languages:
        rows.append(len(languages))
    height = 1.4 + 0.7 * len(rows) + 0.3 * sum(rows)
    figure = figures.new_figure("Text that was kept and dropped", height)
    panels = figure.subplots(
        len(rows), 1, squeeze=False, height_ratios=[1 + x for x in rows]
    )[:, 0]
    _draw_bars(panels[0], "Documents", documents)
    _draw_bars(panels[1], "Characters", characters)
    if languages:
        _draw_languages(panels[2], languages)
        handles = [Patch(color=figures.GRAY), Patch(color=figures.BLUE)]
        labels = ["before sampling", "as written"]
        figures.legend(figure, handles, labels, ncols=2)
    return figure


def _kept(report: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Returns the counts of the text, and of the held-out text if any."""
    sums = {_KEPT: {"documents": 0, "characters": 0}}
    counts = [*report["files"].values()]
    if report["recipe"]["flags"]["heldout_share"]:
        sums[_HELDOUT] = counts.pop()
    for each in counts:
        for name in sums[_KEPT]:
            sums[_KEPT][name] += each[name]
    return sums


def _draw_bars(axes: Axes, title: str, values: Mapping[str, int]) -> None:
    colors = [
        figures.BLUE if name in (_KEPT, _HELDOUT) else figures.ORANGE
        for name in values
    ]
    bars = axes.barh(range(len(values)), [*values.values()], color=colors)
    axes.bar_label(
        bars,
        [f"{value:,}" for value in values.values()],
        padding=2,
        fontsize=figures.SMALL,
    )
    _name_rows(axes, [*values])
    axes.set_title(title, fontsize=10, loc="left")
    axes.margins(x=0.25)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=3))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    figures.finish(axes, "x")


def _draw_languages(axes: Axes, languages: Mapping[str, Any]) -> None:
    for offset, key, color in (
        (-_BAR / 2, "share_before", figures.GRAY),
        (_BAR / 2, "share", figures.BLUE),
    ):
        places = [place + offset for place in range(len(languages))]
        shares = [100 * x[key] for x in languages.values()]
        bars = axes.barh(places, shares, _BAR, color=color)
        axes.bar_label(
            bars,
            [f"{share:.1f}%" for share in shares],
            padding=2,
            fontsize=figures.SMALL - 2,
        )
    _name_rows(axes, [*languages])
    axes.set_title("Languages, % of the characters", fontsize=10, loc="left")
    axes.margins(x=0.2)
    axes.set_xlim(left=0)
    figures.finish(axes, "x")


def _name_rows(axes: Axes, names: list[str]) -> None:
    wrapped = [figures.wrap(name, _NAME_CHARACTERS) for name in names]
    axes.set_yticks(range(len(names)), wrapped, parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)

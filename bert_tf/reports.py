"""Pictures of results: learning curves, bars, lines, confusion matrices.

The pictures are legible at the width of a phone and for color-blind readers.
Names of labels may have any length and any script, see `drawable`.

Shapes:
  C: number of labels.
  N: number of examples.
"""

import io
import textwrap
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bert_tf.io import files

_WIDTH = 4.7  # Inches: on a phone 360 pixels wide, text is 9 pixels high.
_DPI = 150
SMALL = 8  # Points.

BLUE, ORANGE, GRAY, BLACK = "#1f6fb4", "#d95f02", "#767676", "#222222"
LIGHT_BLUE = "#8fbbdc"
# The color and the marker of each line in a panel.
LINES = ((BLUE, "o"), (ORANGE, "s"), (GRAY, "^"), (BLACK, "D"))

# Longer names are drawn without their middle, to leave room for the plot.
_MAX_NAME_CHARS = 28
# Above this number of labels, the cells of a confusion matrix are too small for
# numbers, so a chart next to the matrix shows the most frequent confusions.
_MAX_LABELS_WITH_NUMBERS = 20
# Above this number of labels, names do not fit on the axes of the matrix.
_MAX_LABELS_WITH_NAMES = 200
_MAX_CONFUSIONS = 30
# A curve with this many points or more is pale, behind its moving average.
_SMOOTHED_FROM = 40

Rows = Sequence[Mapping[str, Any]]
# A panel: a key of `Rows`, a title, and a factor that multiplies the values.
Panel = tuple[str, str, float]


# === Figures ===


def new_figure(title: str, height: float, width: float = _WIDTH) -> Figure:
    """Returns an empty figure with a title; the size is in inches."""
    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    title = wrap(title, int(10.6 * width))
    figure.suptitle(title, fontsize=11, parse_math=False)
    return figure


def new_panels(
    title: str, num_rows: Sequence[int], row: float = 0.3
) -> tuple[Figure, Sequence[Axes]]:
    """Returns a figure and panels of `num_rows` rows of `row` inches each."""
    height = 1.3 + 0.8 * len(num_rows) + row * sum(num_rows)
    figure = new_figure(title, height)
    ratios = [1 + count for count in num_rows]
    panels = figure.subplots(
        len(num_rows), 1, squeeze=False, height_ratios=ratios
    )
    return figure, panels[:, 0]


def finish(axes: Axes, grid: str = "both", title: str = "") -> None:
    """Sets the title, the grid ("x", "y" or "both"), spines and tick sizes."""
    if title:
        axes.set_title(title, fontsize=9, loc="left", parse_math=False)
    axes.grid(axis=grid, alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL)
    axes.xaxis.label.set_size(SMALL)
    axes.yaxis.label.set_size(SMALL)


def add_legend(
    figure: Figure, ncols: int = 2, handles: Mapping[str, Any] | None = None
) -> None:
    """Adds a legend below the panels, from their labels or from `handles`."""
    by_label = dict(handles or {})
    for axes in [] if handles else figure.axes:
        artists, labels = axes.get_legend_handles_labels()
        by_label |= dict(zip(labels, artists, strict=True))
    style = {"frameon": False, "fontsize": SMALL, "ncols": ncols}
    figure.legend(
        [*by_label.values()], [*by_label], loc="outside lower center", **style
    )


def paths_of(output_file: str) -> tuple[str, str]:
    """Returns the paths of an output file's report and of its plot."""
    return f"{output_file}.report.json", f"{output_file}.report.png"


def write_report(
    output_file: str, report: Mapping[str, Any], figure: Figure
) -> None:
    """Writes the plot of an output file's report, then the report."""
    path, picture = paths_of(output_file)
    write(picture, figure)
    files.write_json(path, report)


def write(path: str, figure: Figure) -> None:
    """Writes a figure as PNG, atomically."""
    image = io.BytesIO()
    figure.savefig(image, format="png")
    files.write_bytes(path, image.getvalue())


# === Names ===


def wrap(text: str, width: int) -> str:
    """Returns the text with line breaks between words."""
    lines = textwrap.wrap(text, width, break_on_hyphens=False)
    return "\n".join(lines) or text


def shorten(name: str) -> str:
    """Returns a name in one short line; escapes "$", which starts formulas."""
    name = " ".join(name.split())
    if len(name) > _MAX_NAME_CHARS:
        half = _MAX_NAME_CHARS // 2
        name = f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[1 - half :]}"
    return name.replace("$", r"\$")


def numbers(names: Sequence[str]) -> list[str]:
    """Returns numbers to show in place of names: [0], [1] ..."""
    return [f"[{number}]" for number in range(len(names))]


def drawable(names: Sequence[str], text_file: str) -> tuple[list[str], str]:
    """Returns short names to draw and "", or numbers and a note.

    If the fonts lack a character of a name, as DejaVu Sans lacks Chinese, all
    names become [0], [1] ..., and the note and a log line refer to `text_file`,
    which lists the names.
    """
    short = [shorten(name) for name in names]
    missing = _missing_characters(short)
    if not missing:
        return short, ""
    logging.info(
        "The plot has numbers in place of names because its font lacks "
        "characters such as %r; %s has both.",
        missing[0],
        text_file,
    )
    name = text_file.rpartition("/")[-1]
    return numbers(names), f"[0], [1] ...: see {name}"


def _missing_characters(names: Iterable[str]) -> str:
    """Returns the characters of names that no font has."""
    fonts = []
    # For each character, Matplotlib searches these font families in order.
    for family in font_manager.FontProperties().get_family():
        properties = font_manager.FontProperties(family=[family])
        fonts.append(font_manager.get_font(font_manager.findfont(properties)))
    return "".join(
        character
        for character in dict.fromkeys("".join(names))
        if not any(font.get_char_index(ord(character)) for font in fonts)
    )


# === Bars and lines ===


def draw_bars(
    axes: Axes,
    names: Sequence[str],
    series: Mapping[str, Sequence[float]],
    colors: Sequence[Any] = (BLUE, LIGHT_BLUE, ORANGE),
    text: str = "{:,.0f}",
    name_width: int = 26,
) -> None:
    """Draws rows of horizontal bars: one bar in each row for each series.

    Args:
      axes: The panel.
      names: The names of the rows, from the top.
      series: The values of each series by its label in the legend.
      colors: For each series, one color, or a list with one color per bar.
      text: The format of the number at the end of a bar.
      name_width: As for `name_rows`.
    """
    positions = np.arange(len(names))
    height = 0.78 / len(series)
    for number, (label, values) in enumerate(series.items()):
        bars = axes.barh(
            positions + height * (number - (len(series) - 1) / 2),
            values,
            0.92 * height,
            color=colors[number],
            label=label if len(series) > 1 else None,
        )
        size = SMALL if len(series) == 1 else SMALL - 1
        axes.bar_label(bars, fmt=text.format, padding=2, fontsize=size)
    name_rows(axes, names, name_width)
    axes.margins(x=0.22)
    axes.xaxis.set_major_formatter("{x:,.6g}")
    axes.locator_params(axis="x", nbins=4)
    finish(axes, "x")


def name_rows(axes: Axes, names: Sequence[str], width: int = 26) -> None:
    """Writes the names of a panel's rows, wrapped after `width` characters."""
    wrapped = [
        "\n".join(wrap(line, width) for line in name.split("\n"))
        for name in names
    ]
    axes.set_yticks(range(len(names)), wrapped, parse_math=False)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)


def draw_line(
    axes: Axes,
    label: str,
    x: Sequence[float],
    y: Sequence[float],
    number: int = 0,
    errors: Sequence[float] | None = None,
) -> None:
    """Draws line `number` of a panel; bars show y plus or minus the errors."""
    color, marker = LINES[number % len(LINES)]
    style = {"color": color, "marker": marker, "markersize": 4}
    axes.errorbar(x, y, errors, label=label, linewidth=1.3, capsize=3, **style)


# === Learning curves ===


def write_learning_curves(
    path: str,
    panels: Sequence[Panel],
    train: Rows,
    evaluation: Rows = (),
    title: str = "",
    baselines: Mapping[str, float | None] | None = None,
) -> None:
    """Writes curves of training and evaluation, two panels in a row.

    Args:
      path: The PNG.
      panels: The panels; a panel without values shows "not measured".
      train: Lines of `train_metrics.jsonl`, each with a `step`.
      evaluation: Results of evaluations, each with a `global_step`.
      title: The title of the figure.
      baselines: Panel key -> value of a model that knows only how frequent each
        token is.
    """
    names = [name for name, _, _ in panels]
    # An odd number of panels leaves room: the first (the loss) fills a row.
    cells = names if len(names) % 2 == 0 else [names[0], *names]
    rows = [cells[i : i + 2] for i in range(0, len(cells), 2)]
    figure = new_figure(title, 0.8 + 1.7 * len(rows))
    mosaic = figure.subplot_mosaic(rows)
    for name, label, factor in panels:
        axes = mosaic[name]
        axes.set_xlabel("step")
        axes.locator_params(axis="x", nbins=5, integer=True, min_n_ticks=1)
        axes.margins(y=0.12)
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 5))
        axes.yaxis.offsetText.set_size(SMALL)
        _draw_training(axes, name, *_series(train, name, "step", factor))
        steps, values = _series(evaluation, name, "global_step", factor)
        if len(steps):
            draw_line(axes, "evaluation", steps, values, 1)
            # Leave an empty second line in the title, for the last value.
            label += "\n"
            axes.set_title(
                f"evaluation {values[-1]:.4g}",
                fontsize=SMALL,
                loc="right",
                color=ORANGE,
            )
        if not axes.lines:
            middle = {"transform": axes.transAxes, "ha": "center"}
            axes.text(0.5, 0.5, "not measured", color=GRAY, **middle)
            axes.set(xticks=[], yticks=[])
        elif line := (baselines or {}).get(name):
            dotted = {"color": GRAY, "linestyle": ":"}
            axes.axhline(line, label="frequency of tokens alone", **dotted)
        finish(axes, title=label)
    add_legend(figure)
    write(path, figure)


def _series(
    rows: Rows, name: str, step_name: str, factor: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the steps and values of the rows with a finite value."""
    points = [
        (row[step_name], factor * row[name])
        for row in rows
        if row.get(name) is not None
    ]
    steps, values = np.array(points, float).reshape(-1, 2).T
    finite = np.isfinite(values)
    return steps[finite], values[finite]


def _draw_training(
    axes: Axes, name: str, steps: np.ndarray, values: np.ndarray
) -> None:
    if not len(steps):
        return
    label = "training" if len(steps) < _SMOOTHED_FROM else None
    # The learning rate has no noise, so it needs no average.
    if label is None and name != "learning_rate":
        label = "training, moving average"
        pale = {"color": BLUE, "alpha": 0.25, "linewidth": 0.8}
        axes.plot(steps, values, label="training, single steps", **pale)
        values = moving_average(values, len(values) // 20)
    marker = "o" if len(steps) < 3 else None
    axes.plot(steps, values, color=BLUE, marker=marker, label=label)


def moving_average(values: np.ndarray, width: int) -> np.ndarray:
    """Averages each value with `width // 2` neighbors on each side.

    For [1, 2, 3, 4] and width 2 or 3, the result is [1, 2, 3, 3.5].
    """
    half = max(width // 2, 1)
    sums = np.cumsum(np.concatenate([[0.0], values]))
    index = np.arange(len(values))
    # Near the left end the curve is steep, so shrink both sides of the window:
    # with more values from one side, the mean would be biased. Near the right
    # end the curve is flat, so shrink only the right side.
    low = index - np.minimum(half, index)
    high = np.minimum(index + np.minimum(half, index), len(values) - 1) + 1
    return (sums[high] - sums[low]) / (high - low)


# === Predictions compared with correct answers ===


def write_confusion_matrix(
    path: str,
    labels: Sequence[str],
    counts: np.ndarray,
    title: str,
    note: str = "",
) -> None:
    """Writes a confusion matrix as PNG, atomically.

    `counts` <int64>[C, C] has the numbers of examples; its rows are the correct
    labels. A cell's color shows the cell's share of its row. `labels` has the
    names, as from `drawable`, and `note` is a text below the matrix.
    """
    from sklearn.metrics import ConfusionMatrixDisplay

    total = len(labels)
    has_numbers = total <= _MAX_LABELS_WITH_NUMBERS
    shares = counts / np.maximum(counts.sum(-1, keepdims=True), 1)
    if has_numbers:
        side = 1.0 + max(0.5 * total, 2.0) + 0.09 * max(map(len, labels))
        figure = new_figure(title, side, max(side, 4.0))
        axes = figure.subplots()
        size = 10.0
    else:
        side = float(np.clip(0.11 * total, 8.0, 18.0))
        figure = new_figure(title, side, side + 6.0)
        axes, bars = figure.subplots(1, 2, width_ratios=[side, 4.0])
        _draw_confusions(bars, labels, counts, side)
        size = min(44 * side / total, 10.0)
    display = ConfusionMatrixDisplay(
        # Without numbers, a small share would be invisible: darken the colors.
        shares if has_numbers else shares**0.4,
        display_labels=labels,
    ).plot(
        ax=axes,
        cmap="Blues",
        colorbar=False,
        include_values=has_numbers,
        im_kw={"vmin": 0, "vmax": 1},
        # A cell is half an inch wide, so long numbers get small digits.
        text_kw={"fontsize": min(36 / len(str(counts.max())), 10.0)},
        xticks_rotation=90 if max(map(len, labels)) > 3 else 0,
    )
    if has_numbers:
        for place, cell in np.ndenumerate(display.text_):
            cell.set_text(str(counts[place]))
            cell.set_color("white" if shares[place] > 0.5 else "black")
    if total > _MAX_LABELS_WITH_NAMES:
        ticks = range(0, total, 50)
        axes.set(xticks=ticks, yticks=ticks)
        axes.set(xticklabels=ticks, yticklabels=ticks)
        size = 10.0
    axes.set(xlabel="predicted label", ylabel="actual label")
    axes.tick_params(length=2, pad=1, labelsize=size)
    figure.supxlabel(note, fontsize=SMALL)
    write(path, figure)


def confusions(counts: np.ndarray) -> list[tuple[int, int]]:
    """Returns the (correct, predicted) pairs of errors, most frequent first."""
    wrong = counts - np.diag(np.diag(counts))
    rows, columns = np.nonzero(wrong)
    order = np.argsort(-wrong[rows, columns], kind="stable")
    return [(int(rows[i]), int(columns[i])) for i in order]


def _draw_confusions(
    axes: Axes, labels: Sequence[str], counts: np.ndarray, side: float
) -> None:
    """Draws the most frequent confusions as bars, `side` inches high."""
    pairs = confusions(counts)[:_MAX_CONFUSIONS]
    names = [
        f"{labels[correct]}\n\N{RIGHTWARDS ARROW} {labels[predicted]}"
        for correct, predicted in pairs
    ]
    values = {"": [counts[pair] for pair in pairs]}
    draw_bars(axes, names, values, name_width=_MAX_NAME_CHARS + 2)
    # Always leave room for 30 bars, otherwise a few bars would be thick.
    axes.set_ylim(_MAX_CONFUSIONS - 0.5, -0.5)
    # Names have two lines, so a short figure needs a small font.
    axes.tick_params(axis="y", labelsize=min(0.75 * side, SMALL))
    axes.set_title("Most frequent confusions", fontsize=9, loc="left")


def write_calibration(
    path: str,
    probabilities: np.ndarray,
    is_right: np.ndarray,
    right_among_surest: np.ndarray,
    title: str,
) -> None:
    """Writes a reliability plot and a coverage curve of answers as PNG.

    Element i of `right_among_surest` <float64>[N] is the share of correct
    answers among the i + 1 surest.
    """
    from sklearn.calibration import CalibrationDisplay

    figure = new_figure(title, 2.9)
    reliability, coverage = figure.subplots(1, 2)
    CalibrationDisplay.from_predictions(
        is_right, probabilities, n_bins=15, ax=reliability, color=BLUE
    )
    reliability.get_legend().remove()
    reliability.set(xlabel="probability of answers", ylabel="share correct")
    finish(reliability, title="Reliability")
    count = len(right_among_surest)
    shares = np.linspace(1 / count, 1, count)
    coverage.plot(shares, right_among_surest, color=BLUE)
    coverage.set(xlabel="share of the surest answers", xlim=(0, 1.02))
    finish(coverage, title="Share correct among them")
    write(path, figure)


def write_score_scatter(
    path: str, references: np.ndarray, predictions: np.ndarray, title: str
) -> None:
    """Writes predicted and correct scores, <float64>[N], as PNG, atomically."""
    from sklearn.metrics import PredictionErrorDisplay

    figure = new_figure(title, _WIDTH)
    axes = figure.subplots()
    # Points are transparent, so overlapping points look darker.
    alpha = float(np.clip(400 / len(references), 0.1, 0.8))
    points = {"s": 14, "color": BLUE, "alpha": alpha, "edgecolors": "none"}
    PredictionErrorDisplay(y_true=references, y_pred=predictions).plot(
        ax=axes,
        kind="actual_vs_predicted",
        scatter_kwargs=points,
        line_kwargs={"color": GRAY, "linewidth": 0.8, "linestyle": "-"},
    )
    axes.set(xlabel="predicted score", ylabel="correct score")
    finish(axes)
    write(path, figure)

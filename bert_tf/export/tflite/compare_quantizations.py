"""Compares the files of one model in all quantizations: a table and a plot."""

import os
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence

from matplotlib.axes import Axes

from bert_tf.export.tflite.accuracy import Report
from bert_tf.io import files
from bert_tf.tasks import plots
from bert_tf.tasks import result_tables

# Distinct for the color-blind, too.
_COLORS = ("#1f6fb4", "#d95f02", "#8fbbdc", "#f4a971")
_MODEL = "model"


def path_of(output_file: str, quantization: str) -> str:
    """Returns the output path for a quantization."""
    stem, ending = os.path.splitext(output_file)
    return f"{stem}.{quantization}{ending}"


def write(
    output_file: str,
    reports: Sequence[Report],
    refused: Collection[str] = (),
) -> str:
    """Writes <stem>.ladder.json, .txt and .png.

    Args:
      output_file: The path of a .tflite file, whose stem is used.
      reports: The report of each file.
      refused: Quantizations whose files lose too much to be published.

    Returns:
      The table, as text.
    """
    stem, _ = os.path.splitext(output_file)
    text = table(reports, refused)
    files.write_json(
        f"{stem}.ladder.json",
        [
            report.to_json()
            | {"is_published": report.quantization not in refused}
            for report in reports
        ],
    )
    files.write_text(f"{stem}.ladder.txt", text)
    draw(f"{stem}.ladder.png", reports)
    return text


def table(reports: Sequence[Report], refused: Collection[str] = ()) -> str:
    """Returns a table with a header and a line for each file.

    Args:
      reports: The report of each file.
      refused: Quantizations whose files lose too much.
    """
    first = reports[0]
    heads = ["quantization", "MB"]
    if first.accuracy is not None:
        heads += [first.accuracy.metric, "drop", "agreement, %"]
    heads += [f"ms, {one.setting}" for one in first.latencies]
    if first.peak_memory is not None:
        heads.append("memory, MB")
    lines = [heads, *([*map(str, _cells(report))] for report in reports)]
    for report, line in zip(reports, lines[1:], strict=True):
        if report.quantization in refused:
            line[0] += " (refused)"
    if first.accuracy is not None:
        score = f"{first.accuracy.model_score:.2f}"
        rest = [""] * (len(heads) - 3)
        lines.insert(1, [_MODEL, "", score, *rest])
    return result_tables.aligned(lines)


def _cells(report: Report) -> list[str]:
    cells = [report.quantization, f"{report.num_bytes / 1e6:.1f}"]
    found = report.accuracy
    if found is not None:
        cells += [f"{found.score:.2f}", f"{found.drop:+.2f}"]
        cells.append(
            "-" if found.agreement is None else f"{100 * found.agreement:.2f}"
        )
    cells += [f"{one.milliseconds:.2f}" for one in report.latencies]
    if report.peak_memory is not None:
        cells.append(f"{report.peak_memory / 1e6:.0f}")
    return cells


def draw(path: str, reports: Sequence[Report]) -> None:
    """Plots scores, sizes, latencies and memory of files as PNG, atomically.

    Args:
      path: The path of the PNG.
      reports: The report of each file.
    """
    first = reports[0]
    panels: list[Callable[[Axes], None]] = []
    if first.accuracy is not None:
        panels.append(lambda axes: _draw_scores(axes, reports))
    panels.append(
        lambda axes: _draw_bars(
            axes, "size, MB", [r.num_bytes / 1e6 for r in reports]
        )
    )
    panels.append(lambda axes: _draw_latencies(axes, reports))
    if first.peak_memory is not None:
        panels.append(
            lambda axes: _draw_bars(
                axes, "peak memory, MB", [r.peak_memory / 1e6 for r in reports]
            )
        )
    figure = plots.new_figure(3.4 * len(panels) + 1.0, 1.6 + 0.7 * len(reports))
    all_axes = figure.subplots(1, len(panels), sharey=True)
    for panel, axes in zip(panels, all_axes, strict=True):
        panel(axes)
        axes.grid(axis="x", alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.2)
    all_axes[0].set_yticks(
        range(len(reports)), [report.quantization for report in reports]
    )
    all_axes[0].invert_yaxis()  # The first one is on top.
    plots.write_figure(figure, path)


def _draw_bars(axes: Axes, title: str, values: Sequence[float]) -> None:
    bars = axes.barh(range(len(values)), values, 0.6, color=_COLORS[0])
    axes.bar_label(bars, fmt="%.4g", fontsize=8, padding=2)
    axes.set_title(title, fontsize=10, loc="left")


def _draw_scores(axes: Axes, reports: Sequence[Report]) -> None:
    accuracies = [report.accuracy for report in reports]
    scores = [accuracy.score for accuracy in accuracies]
    model_score = accuracies[0].model_score
    rows = range(len(reports))
    axes.plot(scores, rows, "o", color=_COLORS[1])
    for row, score in zip(rows, scores, strict=True):
        axes.annotate(
            f"{score:.2f}",
            (score, row),
            (0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axes.axvline(model_score, color="gray", linewidth=0.8)
    axes.set_title(
        f"{accuracies[0].metric} (model {model_score:.2f})",
        fontsize=10,
        loc="left",
    )


def _draw_latencies(axes: Axes, reports: Sequence[Report]) -> None:
    settings = [one.setting for one in reports[0].latencies]
    height = 0.8 / len(settings)
    for number, setting in enumerate(settings):
        offset = height * (number - (len(settings) - 1) / 2)
        bars = axes.barh(
            [row + offset for row in range(len(reports))],
            [report.latencies[number].milliseconds for report in reports],
            0.9 * height,
            color=_COLORS[number % len(_COLORS)],
            label=setting,
        )
        axes.bar_label(bars, fmt="%.3g", fontsize=7, padding=2)
    axes.set_title("latency, ms", fontsize=10, loc="left")
    axes.legend(fontsize=7, frameon=False, loc="lower right")

"""Accuracy, size and latency of .tflite files beside their model.

Reports on files, the gate before they are published, and the table and the plot
of all quantizations.
"""

import dataclasses
import os
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging
from matplotlib.axes import Axes

from bert_tf.errors import UserError
from bert_tf.export.tflite import costs
from bert_tf.export.tflite import datasets
from bert_tf.export.tflite.build import Build
from bert_tf.export.tflite.costs import Latency
from bert_tf.export.tflite.datasets import EvalSet
from bert_tf.flags.export import QUANTIZATIONS
from bert_tf.inference.lite_model import LiteModel
from bert_tf.io import files
from bert_tf.tasks import plots
from bert_tf.tasks import result_tables
from bert_tf.tasks.squad.task import SquadTask

# Kinds of tasks whose official metric is in percent, not between 0 and 1.
_IN_POINTS = (SquadTask.kind,)
# Distinct for the color-blind, too.
_COLORS = ("#1f6fb4", "#d95f02", "#8fbbdc", "#f4a971")


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """The score of a file compared with that of its model.

    Attributes:
      metric: The name of the task's main metric.
      score: The score of the file, in percentage points; errors, of which less
        is better, are not scaled.
      model_score: The score of the model, in the same unit.
      drop: The loss of the file in points, negative if it is better; for
        errors, their increase in percent.
      agreement: The share of examples with equal predictions; None if there is
        no decision, as in regression.
      scores: All metrics of the file.
      model_scores: All metrics of the model.
    """

    eval_file: str
    num_examples: int
    metric: str
    score: float
    model_score: float
    drop: float
    agreement: float | None
    scores: Mapping[str, float]
    model_scores: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Report:
    """The accuracy, size, latency and memory of a file.

    Attributes:
      quantization: One of `flags.export.QUANTIZATIONS`.
      latencies: The latencies of calls with one row, or with the fixed batch
        size of the file.
      peak_memory: The peak memory of a process with one thread, in bytes; None
        if the system does not report it.
      accuracy: The accuracy; None without --eval_file.
    """

    quantization: str
    num_bytes: int
    latencies: Sequence[Latency]
    peak_memory: int | None
    accuracy: Accuracy | None

    def text(self) -> str:
        """Returns the report as lines of text."""
        lines = [f"{self.num_bytes / 1e6:.1f} MB"]
        if self.peak_memory is not None:
            lines[0] += f", {self.peak_memory / 1e6:.0f} MB of memory"
        for one in self.latencies:
            lines.append(f"{one.milliseconds:.2f} ms for {one.setting}")
        found = self.accuracy
        if found is not None:
            line = (
                f"{found.metric} {found.score:.2f} on {found.eval_file} (model "
                f"{found.model_score:.2f})"
            )
            if found.agreement is not None:
                line += (
                    f"; predictions agree on {100 * found.agreement:.2f} % of "
                    f"{found.num_examples:,} examples"
                )
            lines.append(line)
        return "\n".join(lines)


class Gate:
    """Measures and scores the files that are built from a model.

    Attributes:
      examples: The examples of --eval_file; empty without it.

    Raises:
      UserError: If --eval_file is not of the model's task.
    """

    def __init__(self, build: Build) -> None:
        self._is_text = build.config.input == "text"
        self._rows = datasets.read_eval_set(build)
        self._lengths = _lengths(build, self._rows)
        self.examples: Sequence[Any] = ()
        if self._rows is not None:
            self.examples = self._rows.examples
            self._model = self._rows.evaluate_model(build.model)

    def measure(self, contents: Mapping[str, bytes]) -> dict[str, Report]:
        """Returns a report for each file, by quantization."""
        latencies = costs.measure_latencies(
            contents, self._lengths, self._is_text
        )
        reports = {}
        for name, content in contents.items():
            memory = costs.measure_peak_memory(
                content, self._lengths[-1], self._is_text
            )
            reports[name] = report = Report(
                name,
                len(content),
                latencies[name],
                memory,
                self._score(content),
            )
            logging.info("%s: %s.", name, report.text().replace("\n", ", "))
        return reports

    def _score(self, content: bytes) -> Accuracy | None:
        rows = self._rows
        if rows is None:
            return None
        model = LiteModel(content, os.cpu_count() or 1, self._is_text)
        found = rows.evaluate(rows.compute_outputs(model))
        metric = rows.task.metric
        score, model_score = found.scores[metric], self._model.scores[metric]
        if rows.task.more_is_better:
            points = 1.0 if rows.task.kind in _IN_POINTS else 100.0
            score, model_score = points * score, points * model_score
            drop = model_score - score
        else:
            drop = _percent_more(score, model_score)
        return Accuracy(
            rows.path,
            len(rows.examples),
            metric,
            score,
            model_score,
            drop,
            found.agreement(self._model),
            found.scores,
            self._model.scores,
        )


def _percent_more(score: float, model_score: float) -> float:
    if score == model_score:
        return 0.0
    return 100.0 * (score / max(model_score, np.finfo(float).tiny) - 1.0)


def require(report: Report, max_drop: float) -> None:
    """Checks that a file is accurate enough to be published.

    Raises:
      UserError: If it loses more than `max_drop` points.
    """
    found = report.accuracy
    if found is None or is_good_enough(report, max_drop):
        return
    number = QUANTIZATIONS.index(report.quantization)
    advice = (
        f"try --quantization={QUANTIZATIONS[number - 1]}"
        if number
        else "the model's outputs are ambiguous, or its weights are damaged"
    )
    raise UserError(
        f"The {found.metric} of the .tflite file must be at most --max_drop="
        f"{max_drop:g} points below the model's, {found.model_score:.2f} on "
        f"{found.eval_file}. Received: {found.score:.2f} with --quantization="
        f"{report.quantization}, {found.drop:.2f} below; {advice}."
    )


def is_good_enough(report: Report, max_drop: float) -> bool:
    """Returns whether `require` accepts a file."""
    # False if the drop is NaN.
    return report.accuracy is None or report.accuracy.drop <= max_drop


def _lengths(build: Build, rows: EvalSet | None) -> tuple[int, ...]:
    """Returns the row lengths to time, in ascending order.

    For files with rows of any length, these are the median length of the
    evaluation set and the maximum length of the model.
    """
    longest = build.seq_length or build.head.max_seq_length
    if build.seq_length is not None or rows is None:
        return (longest,)
    median = int(np.median(rows.features.lengths))
    return tuple(sorted({median, longest}))


def path_of(output_file: str, quantization: str) -> str:
    """Returns the output path for a quantization."""
    stem, ending = os.path.splitext(output_file)
    return f"{stem}.{quantization}{ending}"


def write_comparison(
    output_file: str,
    reports: Sequence[Report],
    refused: Collection[str] = (),
) -> str:
    """Writes <stem>.ladder.json, .txt and .png; returns the table.

    Args:
      output_file: The path of a .tflite file, whose stem is used.
      reports: The report of each file.
      refused: Quantizations whose files lose too much to be published.
    """
    stem, _ = os.path.splitext(output_file)
    text = table(reports, refused)
    files.write_json(
        f"{stem}.ladder.json",
        [
            dataclasses.asdict(report)
            | {"is_published": report.quantization not in refused}
            for report in reports
        ],
    )
    files.write_text(f"{stem}.ladder.txt", text)
    draw(f"{stem}.ladder.png", reports)
    return text


def table(reports: Sequence[Report], refused: Collection[str] = ()) -> str:
    """Returns a table with a header and a line for each file."""
    first = reports[0]
    heads = ["quantization", "MB"]
    if first.accuracy is not None:
        heads += [first.accuracy.metric, "drop", "agreement, %"]
    heads += [f"ms, {one.setting}" for one in first.latencies]
    if first.peak_memory is not None:
        heads.append("memory, MB")
    lines = [heads]
    if first.accuracy is not None:
        score = f"{first.accuracy.model_score:.2f}"
        lines.append(["model", "", score, *[""] * (len(heads) - 3)])
    for report in reports:
        name = report.quantization
        line = [f"{name} (refused)" if name in refused else name]
        line.append(f"{report.num_bytes / 1e6:.1f}")
        if report.accuracy is not None:
            agreement = report.accuracy.agreement
            line += [
                f"{report.accuracy.score:.2f}",
                f"{report.accuracy.drop:+.2f}",
                "-" if agreement is None else f"{100 * agreement:.2f}",
            ]
        line += [f"{one.milliseconds:.2f}" for one in report.latencies]
        if report.peak_memory is not None:
            line.append(f"{report.peak_memory / 1e6:.0f}")
        lines.append(line)
    return result_tables.aligned(lines)


def draw(path: str, reports: Sequence[Report]) -> None:
    """Plots scores, sizes, latencies and memory of files as PNG, atomically."""
    sizes = [report.num_bytes / 1e6 for report in reports]
    panels: list[Callable[[Axes], None]] = [
        lambda axes: _draw_bars(axes, "size, MB", sizes),
        lambda axes: _draw_latencies(axes, reports),
    ]
    if reports[0].accuracy is not None:
        panels.insert(0, lambda axes: _draw_scores(axes, reports))
    if reports[0].peak_memory is not None:
        memory = [report.peak_memory / 1e6 for report in reports]
        panels.append(lambda axes: _draw_bars(axes, "peak memory, MB", memory))
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
    scores = [report.accuracy.score for report in reports]
    first = reports[0].accuracy
    axes.plot(scores, range(len(scores)), "o", color=_COLORS[1])
    for row, score in enumerate(scores):
        axes.annotate(
            f"{score:.2f}",
            (score, row),
            (0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axes.axvline(first.model_score, color="gray", linewidth=0.8)
    title = f"{first.metric} (model {first.model_score:.2f})"
    axes.set_title(title, fontsize=10, loc="left")


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

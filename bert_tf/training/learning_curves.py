"""Draws the learning curves of a run as a PNG."""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bert_tf.io import files

# Blue for training and orange for evaluation, distinct for color-blind readers.
_TRAIN_COLOR = "#1f6fb4"
_EVAL_COLOR = "#d95f02"

# With more points they are drawn pale, under their moving average.
_SMOOTHED_FROM = 40

_PRETRAINING = (
    ("loss", "Loss", 1),
    ("masked_lm_loss", "Masked-LM loss", 1),
    ("next_sentence_loss", "Next-sentence loss", 1),
    ("learning_rate", "Learning rate", 1),
    ("masked_lm_accuracy", "Masked-LM accuracy (%)", 100),
    ("next_sentence_accuracy", "Next-sentence accuracy (%)", 100),
)

_FINETUNING = (
    ("loss", "Loss", 1),
    ("learning_rate", "Learning rate", 1),
    ("grad_norm", "Norm of the gradient", 1),
    ("tokens_per_second", "Tokens per second", 1),
)

# Not averaged: these values are exact, without noise.
_WITHOUT_NOISE = ("learning_rate",)

_COLUMNS = 3

Rows = Sequence[Mapping[str, Any]]
# The name of the values, the title, and the factor of the values.
Panel = tuple[str, str, float]


def draw_pretraining(
    path: str, train: Rows, evaluation: Rows = (), title: str = ""
) -> None:
    """Writes the learning curves of pretraining, atomically.

    `train` holds lines of `train_metrics.jsonl`, each with a `step`;
    `evaluation` holds results of evaluations, each with a `global_step`.
    """
    _draw(path, _PRETRAINING, train, evaluation, title)


def draw_finetuning(
    path: str, train: Rows, evaluation: Rows = (), title: str = ""
) -> None:
    """Writes the learning curves of fine-tuning, atomically.

    Values that were not measured have no panel; each metric of the task has
    one if it was measured more than once.

    `evaluation` holds a `global_step`, an optional `loss`, and the task's
    metrics.
    """
    panels = [
        panel
        for panel in _FINETUNING
        if any(row.get(panel[0]) is not None for row in (*train, *evaluation))
    ]
    panels += [
        (name, f"{name.replace('_', ' ')} on dev", 1)
        for name in _varying_metrics(evaluation)
    ]
    _draw(path, panels or _FINETUNING[:1], train, evaluation, title)


def _varying_metrics(evaluation: Rows) -> list[str]:
    """Returns the names of the task's metrics that vary.

    Constant ones are counts, such as SQuAD's `total`. If no metric varies, the
    plot should show that, so all are returned.
    """
    if len(evaluation) < 2:
        return []
    names = [
        name for name in evaluation[-1] if name not in ("global_step", "loss")
    ]
    varying = [
        name for name in names if len({row[name] for row in evaluation}) > 1
    ]
    return varying or names


def _draw(
    path: str,
    panels: Sequence[Panel],
    train: Rows,
    evaluation: Rows,
    title: str,
) -> None:
    columns = min(len(panels), _COLUMNS)
    rows = -(-len(panels) // _COLUMNS)
    figure = Figure(
        figsize=(13 / _COLUMNS * columns, 3.5 * rows),
        dpi=100,
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    for number, (name, label, factor) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        axes.set_title(label, fontsize=11, loc="left")
        _draw_training(axes, name, *_series(train, name, "step", factor))
        _draw_evaluation(
            axes, *_series(evaluation, name, "global_step", factor)
        )
        _finish(axes)
    handles, labels = _legend(figure)
    if handles:
        figure.legend(
            handles, labels, loc="outside lower center", ncols=3, frameon=False
        )
    if title:
        figure.suptitle(title, fontsize=13)
    with files.atomic_file(path) as temporary:
        figure.savefig(temporary, format="png")


def _series(
    rows: Rows, name: str, step_name: str, factor: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the steps and values of the rows that have a finite value."""
    points = [
        (row[step_name], factor * row[name])
        for row in rows
        if row.get(name) is not None
    ]
    steps, values = np.array(points, float).reshape(-1, 2).T
    finite = np.isfinite(values)
    return steps[finite], values[finite]


def _draw_training(
    axes, name: str, steps: np.ndarray, values: np.ndarray
) -> None:
    if not len(steps):
        return
    if len(steps) < _SMOOTHED_FROM or name in _WITHOUT_NOISE:
        axes.plot(
            steps,
            values,
            color=_TRAIN_COLOR,
            marker="o" if len(steps) < 3 else None,
            # Next to smoothed panels the learning rate needs no legend entry.
            label="training" if len(steps) < _SMOOTHED_FROM else None,
        )
        return
    smooth = _moving_average(values, len(values) // 20)
    axes.plot(
        steps,
        values,
        color=_TRAIN_COLOR,
        alpha=0.25,
        linewidth=0.8,
        label="training, single steps",
    )
    axes.plot(
        steps, smooth, color=_TRAIN_COLOR, label="training, moving average"
    )


def _moving_average(values: np.ndarray, width: int) -> np.ndarray:
    """Averages over `width` values around each, fewer at the ends."""
    half = max(width // 2, 1)
    sums = np.cumsum(np.concatenate([[0.0], values]))
    index = np.arange(len(values))
    # At the left end, where the curve is steep, the window stays symmetric; at
    # the right end, where it is flat, it is cut off.
    low = index - np.minimum(half, index)
    high = np.minimum(index + np.minimum(half, index), len(values) - 1) + 1
    return (sums[high] - sums[low]) / (high - low)


def _draw_evaluation(axes, steps: np.ndarray, values: np.ndarray) -> None:
    if not len(steps):
        return
    axes.plot(
        steps,
        values,
        color=_EVAL_COLOR,
        marker="o",
        markersize=5,
        linewidth=1.2,
        label="evaluation",
    )
    axes.set_title(
        f"evaluation {values[-1]:.4g}",
        loc="right",
        color=_EVAL_COLOR,
        fontsize=9,
    )


def _finish(axes) -> None:
    """Sets grid, limits and labels; marks an empty panel "not measured"."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("step", fontsize=9)
    axes.tick_params(labelsize=9)
    axes.xaxis.set_major_locator(
        ticker.MaxNLocator(nbins=6, integer=True, min_n_ticks=1)
    )
    axes.margins(y=0.12)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 5))
    if not axes.lines:
        axes.text(
            0.5,
            0.5,
            "not measured",
            transform=axes.transAxes,
            horizontalalignment="center",
            color="gray",
        )
        axes.set_xticks([])
        axes.set_yticks([])


def _legend(figure: Figure) -> tuple[list, list[str]]:
    """Returns one handle for each label that occurs in any panel."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(
            *axes.get_legend_handles_labels(), strict=True
        ):
            handles.setdefault(label, handle)
    return list(handles.values()), list(handles)

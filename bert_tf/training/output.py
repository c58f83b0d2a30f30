"""Writes the output of a run: model directory, results and learning curves."""

import contextlib
import math
import os
import sys
import textwrap
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from matplotlib import ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bert_tf.checkpoints import model_directory
from bert_tf.config import BertConfig
from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import terminal
from bert_tf.io import train_log
from bert_tf.text.vocabulary import Vocabulary
from bert_tf.training import metrics as training_metrics

LEARNING_CURVES_FILE = "learning_curves.png"

# Flags of the original for TPUs, without effect.
MEANINGLESS_FLAGS = ("master", "num_tpu_cores", "tpu_zone", "gcp_project")

_WRITE_ERRORS = (OSError, tf.errors.OpError)

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

# Numbers of columns; the first of those that leave the fewest gaps counts.
_COLUMNS = (3, 4, 2)

# What a run reports of its output directory.
_PREDICTIONS = "_predictions.jsonl"
_FILES = (
    (model_directory.MODEL_FOLDER, "the model, for every script"),
    ("eval_results.json", "scores"),
    ("eval_results.txt", "scores, in the original's format"),
    ("runs.txt", "scores of all trials"),
    (LEARNING_CURVES_FILE, "loss and scores by step"),
    (train_log.FILE, "the log"),
)

Rows = Sequence[Mapping[str, Any]]
# The name of the values, the title, and the factor of the values.
Panel = tuple[str, str, float]


def write_model_directory(output_dir: str, *contents: Any) -> None:
    """Writes the model directory of a run."""
    path = os.path.join(output_dir, model_directory.MODEL_FOLDER)
    with writing("The trained model", path):
        model_directory.write(path, *contents)
    logging.info("The model is in %s.", path)


def describe_checkpoints(
    output_dir: str, bert_config: BertConfig, vocabulary: Vocabulary | None
) -> None:
    """Writes bert_config.json and vocab.txt next to the checkpoints.

    With them the output directory can be read and converted like the
    original's. Existing files stay; if a file cannot be written, an error is
    logged.
    """
    texts = {model_directory.CONFIG_FILE: bert_config.to_json()}
    if vocabulary is not None:
        texts[model_directory.VOCAB_FILE] = vocabulary.to_text()
    for name, text in texts.items():
        path = os.path.join(output_dir, name)
        try:
            if not tf.io.gfile.exists(path):
                files.write_text(path, text)
            elif not _has_contents(path, text):
                logging.warning(
                    "%s exists already and differs from what this run would "
                    "have written; compare it with the model card before "
                    "converting the checkpoints.",
                    path,
                )
        except _WRITE_ERRORS as error:
            logging.error("%s could not be written: %s", path, error)


def _has_contents(path: str, text: str) -> bool:
    """Returns whether a file has these contents, in any JSON formatting."""
    existing = files.read_bytes(path)
    if existing == text.encode():
        return True
    try:
        return BertConfig.from_json(existing.decode(), path) == (
            BertConfig.from_json(text, path)
        )
    except (UserError, UnicodeDecodeError):
        return False


def model_is_written(output_dir: str, step: int) -> bool:
    """Returns whether the model directory has the model of a step."""
    path = os.path.join(output_dir, model_directory.MODEL_FOLDER)
    if not model_directory.recognizes(path):
        return False
    task = files.read_json(os.path.join(path, model_directory.TASK_FILE))
    return task.get("global_step") == step


def write_results(path: str, results: Mapping[str, float | int]) -> None:
    """Writes `eval_results.txt` in the original's format, atomically.

    One line "name = value" per result, sorted by name; values that are not
    integers are written as float32, in which the original computes them
    (run_pretraining.py:484-489).
    """
    lines = []
    for name in sorted(results):
        value = results[name]
        shown = value if isinstance(value, int) else np.float32(value)
        lines.append(f"{name} = {shown!s}\n")
    files.write_text(path, "".join(lines))


def print_report(
    output_dir: str,
    results: Mapping[str, Mapping[str, float]],
    commands: Sequence[str],
) -> None:
    """Prints scores, files and the next commands, at the end of a run.

    Args:
      output_dir: The output directory.
      results: Metrics by split.
      commands: The commands.
    """
    texts = {}
    if results:
        texts["Scores:"] = "\n".join(
            _score_line(split, metrics) for split, metrics in results.items()
        )
    names = {x.rstrip("/") for x in tf.io.gfile.listdir(output_dir)}
    files_of_run = {
        name: text
        for name, text in (
            *_FILES,
            *((f"{x}{_PREDICTIONS}", f"predictions of {x}") for x in results),
        )
        if name in names
    }
    width = max(map(len, files_of_run), default=0)
    texts[f"Files in {output_dir}:"] = "\n".join(
        f"{name:{width}}  {text}" for name, text in files_of_run.items()
    )
    texts["Next:"] = "\n".join(commands)
    sys.stdout.write(f"\n{terminal.sections(texts)}\n")
    sys.stdout.flush()


def _score_line(split: str, metrics: Mapping[str, float]) -> str:
    """Returns the metrics of a split in lines of 76 columns."""
    text = ", ".join(
        f"{name} {value:.4g}"
        for name, value in metrics.items()
        if name != "global_step"
    )
    return textwrap.fill(
        f"{split}: {text}", 76, subsequent_indent=" " * (len(split) + 2)
    )


@contextlib.contextmanager
def writing(description: str, path: str) -> Iterator[None]:
    """Raises a `UserError` if the block cannot write to `path`."""
    try:
        yield
    except _WRITE_ERRORS as error:
        raise UserError(
            f"{description} could not be written to {path} "
            f"({str(error).splitlines()[0]}); free some space and rerun the "
            "same command."
        ) from error


def warn_of_flags(config: Any, names: Sequence[str]) -> None:
    """Logs a warning for flags of the original that have no effect."""
    given = [name for name in names if getattr(config, name) is not None]
    if given:
        logging.warning(
            "These flags of the original have no effect: %s.",
            ", ".join(f"--{name}" for name in given),
        )


# === Learning curves ===


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
    columns = min(_COLUMNS, key=lambda number: -len(panels) % number)
    columns = min(len(panels), columns)
    rows = -(-len(panels) // columns)
    figure = Figure(
        figsize=(13 / 3 * columns, 3.5 * rows),
        dpi=100,
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    # The panels of the last row fill it.
    in_last = len(panels) - columns * (rows - 1)
    cells = math.lcm(columns, in_last)
    grid = figure.add_gridspec(rows, cells)
    for number, (name, label, factor) in enumerate(panels):
        row, column = divmod(number, columns)
        width = cells // (in_last if row == rows - 1 else columns)
        axes = figure.add_subplot(
            grid[row, column * width : (column + 1) * width]
        )
        axes.set_title(label, fontsize=11, loc="left")
        _draw_training(axes, name, *_series(train, name, "step", factor))
        _draw_evaluation(
            axes, *_series(evaluation, name, "global_step", factor)
        )
        _finish(axes)
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(
            *axes.get_legend_handles_labels(), strict=True
        ):
            handles.setdefault(label, handle)
    if handles:
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=3,
            frameon=False,
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
    # Next to smoothed panels the learning rate needs no legend entry.
    label = "training" if len(steps) < _SMOOTHED_FROM else None
    if label is None and name not in _WITHOUT_NOISE:
        label = "training, moving average"
        axes.plot(
            steps,
            values,
            color=_TRAIN_COLOR,
            alpha=0.25,
            linewidth=0.8,
            label="training, single steps",
        )
        values = _moving_average(values, len(values) // 20)
    marker = "o" if len(steps) < 3 else None
    axes.plot(steps, values, color=_TRAIN_COLOR, marker=marker, label=label)


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


def draw_learning_curves(
    output_dir: str,
    evaluations: Sequence[Mapping[str, float]],
    draw: Callable[..., None] = draw_pretraining,
    title: str = "",
) -> None:
    """Draws the metrics of `output_dir` and the evaluations.

    If the plot cannot be written, an error is logged.

    `draw` is one of the two functions above; each evaluation has a
    `global_step`.
    """
    metrics_file = os.path.join(output_dir, training_metrics.METRICS_FILE)
    try:
        draw(
            os.path.join(output_dir, LEARNING_CURVES_FILE),
            training_metrics.read(metrics_file),
            evaluations,
            title,
        )
    except _WRITE_ERRORS as error:
        logging.error("The learning curves could not be written: %s", error)

"""Loss and accuracy over tokens, of the pretrainings of several sizes."""

import glob
import json
import math
import os
import re
import shlex
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from bert_tf.errors import UserError
from bert_tf.experiments import plots
from bert_tf.flags import flag_files
from bert_tf.io import figures

NAME = "pretraining"
_FOLDER = "pretraining"
# The same data and objective in several sizes: pretraining-bert_SIZE-HASH.
_RUN = re.compile(r"pretraining-(bert(?:_\d+_\d+_\d+)?)-\w+")
_BATCH = "--train_batch_size="
_METRICS = ("masked_lm_loss", "masked_lm_accuracy")
_NUM_POINTS = 60

Curve = Mapping[str, Any]


def read(out_dir: str) -> list[dict[str, Any]]:
    """Returns the curves of the finished pretrainings in an output folder.

    Each has a `name`, and lists of `tokens`, `masked_lm_loss` and
    `masked_lm_accuracy`. They are means over the parts between points, which
    are closer together at the start, and of training, not of held-out text.
    """
    curves = []
    for path in sorted(glob.glob(os.path.join(out_dir, _FOLDER, "*"))):
        run = _RUN.fullmatch(os.path.basename(path))
        if run and (batch := _batch_size(out_dir, run[0])):
            points = list(_points(os.path.join(path, "train_metrics.jsonl")))
            if points:
                curves.append({"name": run[1]} | _thin(points, batch))
    return curves


def draw(path: str, curves: Sequence[Curve]) -> None:
    """Writes the curves as a PNG, on a logarithmic axis."""
    figure = figures.new_figure("Pretraining, by size of the model", 6.2)
    panels = figure.subplots(2, 1, sharex=True)
    labels = ("masked-LM loss of training", "masked-LM accuracy, %")
    for axes, metric, label in zip(panels, _METRICS, labels, strict=True):
        factor = 100 if metric == "masked_lm_accuracy" else 1
        for number, curve in enumerate(curves):
            color, marker = plots.CURVES[number % len(plots.CURVES)]
            axes.plot(
                curve["tokens"],
                [factor * value for value in curve[metric]],
                color=color,
                marker=marker,
                markersize=4,
                markevery=(3 * number, 12),
                linewidth=1.3,
                label=curve["name"],
            )
        axes.set_xscale("log")
        axes.set_title(label, fontsize=10, loc="left")
        figures.finish(axes, "both")
    panels[1].set_xlabel("tokens", fontsize=figures.SMALL)
    figures.legend(figure, *panels[0].get_legend_handles_labels(), ncols=2)
    figure.savefig(path, format="png")


def _batch_size(out_dir: str, job_id: str) -> int | None:
    """Returns the batch size in a finished job's commands."""
    path = os.path.join(out_dir, "steps", f"{job_id}.json")
    try:
        with open(path, encoding="utf-8") as file:
            commands = json.load(file)["commands"]
        words = flag_files.expand(shlex.split(" ".join(commands)))
    except (FileNotFoundError, UserError, ValueError):
        return None  # Of another machine, perhaps.
    # The last of a command wins.
    found = [x.removeprefix(_BATCH) for x in words if x.startswith(_BATCH)]
    return int(found[-1]) if found else None


def _points(path: str) -> Iterator[tuple[int, float, float, float]]:
    """Yields step, tokens of an example, loss and accuracy of each line."""
    try:
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
    except (FileNotFoundError, ValueError):
        return
    for row in rows:
        rate = row.get("examples_per_second")
        values = [row.get(metric) for metric in _METRICS]
        if rate and None not in values and all(map(math.isfinite, values)):
            yield row["step"], row["tokens_per_second"] / rate, *values


def _thin(
    points: Sequence[tuple[int, float, float, float]], batch_size: int
) -> dict[str, list[float]]:
    """Returns means over parts that are equal on a logarithmic axis."""
    tokens, total, before = [], 0.0, 0
    for step, length, _, _ in points:
        total += (step - before) * batch_size * length
        before = step
        tokens.append(total)
    width = math.log(max(tokens[-1] / tokens[0], math.e)) / _NUM_POINTS
    parts: dict[int, list[int]] = {}
    for number, count in enumerate(tokens):
        part = int(math.log(count / tokens[0]) / width)
        part = min(part, _NUM_POINTS - 1)  # The last point itself.
        parts.setdefault(part, []).append(number)
    curve = {"tokens": [round(tokens[part[-1]]) for part in parts.values()]}
    for place, metric in enumerate(_METRICS, start=2):
        curve[metric] = [
            sum(points[number][place] for number in part) / len(part)
            for part in parts.values()
        ]
    return curve

"""Draws the plots of docs/results.md, docs/experiments.md and the README.

    python -m tools.docs_plots

Scores, cells and curves come from the JSON files of benchmarks/results. Times
come from the tables of docs/results.md, which name their commands.
"""

import json
import pathlib
import re
from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import ScalarFormatter
from PIL import Image

from bert_tf import reports
from bert_tf.experiments import report
from tools import check_claims
from tools import docs_figures

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_RESULTS = _ROOT / "benchmarks" / "results"
_PAGE = _ROOT / "docs" / "results.md"
_BLUE, _ORANGE = docs_figures.BLUE, docs_figures.ORANGE
_GRAY = docs_figures.GRAY
_METRICS = {"exact_match": "EM", "f1": "F1"}


def read_table(page: str, first_cells: Sequence[str]) -> list[list[str]]:
    """Returns the rows of the table with these first cells in its header."""
    header = "| " + " | ".join(first_cells) + " |"
    lines = page[page.index(header) :].split("\n\n")[0].splitlines()[2:]
    return [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in lines
    ]


def draw_scores() -> None:
    """Draws the differences to transformers with two standard errors."""
    scores = check_claims.read_scores()
    figure = docs_figures.new_figure(7.2, 4.2)
    axes = figure.subplots()
    for row, by in enumerate(scores.values()):
        values = check_claims.compare(by["bert_tf"], by["transformers"])
        difference, error = values["difference"], values["error"]
        missed = check_claims.is_missed(difference, error)
        axes.errorbar(
            difference, row, xerr=2 * error, fmt="o", capsize=3,
            color=_ORANGE if missed else _BLUE,
        )  # fmt: skip
        axes.text(
            1.02, row, f"{values['ours']:.1f} / {values['theirs']:.1f}",
            transform=axes.get_yaxis_transform(), va="center", fontsize=8,
        )  # fmt: skip
    axes.axvline(0, color=_GRAY, linewidth=1)
    axes.axvline(-1, color=_GRAY, linewidth=1, linestyle=":")
    names = [
        task.replace("_", " ")
        + (f", {_METRICS[metric]}" if "squad" in task else "")
        for task, metric in scores
    ]
    axes.set_yticks(range(len(scores)), names)
    axes.invert_yaxis()
    axes.set_xlabel("bert_tf minus transformers, points, ± 2 standard errors")
    _open(axes)
    docs_figures.save(figure, "scores")


def draw_latency() -> None:
    """Draws the median time of one request, by server and precision."""
    rows = read_table(
        _PAGE.read_text(encoding="utf-8"),
        ("way", "precision", "batch 1, p50 / p99, ms"),
    )
    bars = sorted((float(x[2].split("/")[0]), x[0], x[1]) for x in rows)
    figure = docs_figures.new_figure(7.2, 3.4)
    axes = figure.subplots()
    for row, (time, way, _) in enumerate(bars):
        color = _BLUE if way.startswith("bert_tf") else "#b9b9b9"
        axes.barh(row, time, color=color, height=0.7)
        axes.text(time + 1, row, f"{time:g}", va="center", fontsize=8)
    axes.set_yticks(
        range(len(bars)), [f"{way}, {kind}" for _, way, kind in bars]
    )
    axes.invert_yaxis()
    axes.set_xlabel("one request, BERT-base, 2 threads: median, ms")
    _open(axes)
    docs_figures.save(figure, "latency")


def read_ratios() -> list[tuple[str, float]]:
    """Returns tasks with the ratio of this project's speed to a peer's."""
    page = _PAGE.read_text(encoding="utf-8")
    speed = read_table(page, ("what", "ours", "peer", "ratio"))
    ratios = [("tokenizing: FastBertTokenizer", float(speed[1][3]))]
    names = {
        "pretraining step": "pretraining step: KerasHub",
        "the same": "tokenizing: Hugging Face",
        "featurizing": "featurizing pairs: Hugging Face",
        "data creation, 35": "pretraining data: the original's algorithm",
    }
    for row in speed:
        for start, name in names.items():
            if row[0].startswith(start) and (
                start != "the same" or "BertWordPiece" in row[2]
            ):
                ratios.append((name, float(re.match(r"[\d.]+", row[3])[0])))
                names.pop(start)
                break
    tuning = read_table(page, ("model, texts, further flags", "what"))
    for row in tuning:
        size = "base" if row[0].startswith("base") else "MiniLM's size"
        if row[1] == "fine-tuning" and "QNLI" in row[0]:
            name = f"fine-tuning, {size}: transformers"
            ratios.append((name, float(re.match(r"[\d.]+", row[3])[0])))
    return sorted(ratios, key=lambda x: x[1])


def draw_ratios() -> None:
    """Draws the ratios of this project's speed to its peers' speeds."""
    ratios = read_ratios()
    figure = docs_figures.new_figure(7.2, 2.7)
    axes = figure.subplots()
    for row, (_, ratio) in enumerate(ratios):
        color = _BLUE if ratio >= 1 else _ORANGE
        axes.barh(row, ratio - 1, left=1, color=color, height=0.65)
        axes.text(
            max(ratio, 1) * 1.03, row, f"{ratio:g}", va="center", fontsize=9
        )
    axes.set_yticks(range(len(ratios)), [name for name, _ in ratios])
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 4, 8])
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(axes.xaxis.get_major_locator())
    axes.axvline(1, color=_GRAY, linewidth=1)
    axes.set_xlim(0.8, 18)
    axes.set_xlabel("times as fast, on 2 CPU cores")
    _open(axes)
    docs_figures.save(figure, "ratios")


def draw_curve() -> None:
    """Draws loss and accuracy of the fine-tuning in docs/guides/classify.md."""
    folder = _RESULTS / "topics"
    lines = (folder / "train_metrics.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    dev = json.loads((folder / "dev_accuracy.json").read_text("utf-8"))
    figure = docs_figures.new_figure(5.2, 2.8)
    left, right = figure.subplots(1, 2)
    left.plot([x["step"] for x in rows], [x["loss"] for x in rows], color=_BLUE)
    left.set_ylabel("training loss")
    left.set_ylim(0)
    right.plot(
        [int(step) for step in dev],
        [100 * accuracy for accuracy in dev.values()],
        "o-", color=_BLUE,
    )  # fmt: skip
    right.axhline(25, color=_GRAY, linewidth=1, linestyle=":")
    right.text(30, 27, "guessing", ha="right", fontsize=8)
    right.set_ylabel("right on dev, %")
    right.set_ylim(0, 100)
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.set_xlim(0, 31)
        _open(axes)
    docs_figures.save(figure, "curves")


def draw_abuse() -> None:
    """Draws a server's memory and other clients' times under attacks."""
    figure = docs_figures.new_figure(7.2, 2.8)
    memory, times = figure.subplots(1, 2)
    path = _RESULTS / "abuse" / "soak_savedmodel.json"
    report = json.loads(path.read_text("utf-8"))
    seconds, most_bytes, p99 = np.array(report["curve"]).T
    memory.plot(seconds / 60, most_bytes / 2**20, color=_BLUE)
    times.plot(seconds / 60, 1000 * p99, color=_BLUE)
    memory.set_ylabel("memory of the server, MiB")
    times.set_ylabel("honest clients, 99th percentile, ms")
    for axes in (memory, times):
        axes.set_xlabel("minutes of attacks")
        axes.set_xlim(0)
        axes.set_ylim(0)
        _open(axes)
    docs_figures.save(figure, "abuse")


def draw_experiments() -> None:
    """Draws the tables of the paper's experiments."""
    folders = {"small": "", "minilm": "_minilm"}
    for folder, end in folders.items():
        path = _RESULTS / "experiments" / folder
        paths = path.glob("tables/*.json")
        planned = [json.loads(x.read_text("utf-8")) for x in paths]
        for table in report.build(planned, str(path))["tables"]:
            name = docs_figures.FOLDER / f"experiments_{table['name']}{end}.png"
            reports.write(str(name), report.draw(table))
            # A palette makes files small.
            Image.open(name).quantize(64).save(name)


def _open(axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    draw_scores()
    draw_latency()
    draw_ratios()
    draw_curve()
    draw_abuse()
    draw_experiments()

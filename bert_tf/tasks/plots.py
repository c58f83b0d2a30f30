"""Plots of results: confusion matrices, score scatters, scores per type.

`result_tables` has the same results as text. If the font lacks a character of
a name, as DejaVu Sans does Chinese, the plot has numbers in place of all names,
and the text next to it has both.

Shapes:
  C: number of labels.
  N: number of examples.
"""

import os
from collections.abc import Iterable
from collections.abc import Sequence

import numpy as np
from absl import logging
from matplotlib import colors
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bert_tf.io import files
from bert_tf.tasks import metrics
from bert_tf.tasks import result_tables
from bert_tf.tasks.tagging.metrics import EntityScore

# Distinguishable for color-blind readers.
_COLORS = {"precision": "#1f6fb4", "recall": "#8fbbdc", "f1": "#d95f02"}
_MATRIX_COLORS = "Blues"

# The middle of longer names is omitted.
_MAX_NAME_CHARS = 28
# Matrices with more labels have no numbers in their cells, but a chart of the
# most frequent confusions. Those with even more labels have no names.
_MAX_LABELS_WITH_NUMBERS = 20
_MAX_LABELS_WITH_NAMES = 200
_MAX_CONFUSIONS = 30
_MAX_BARS = 60


def write_confusion_matrix(
    path: str, labels: Sequence[str], counts: np.ndarray
) -> None:
    """Writes a confusion matrix to <path>.png and <path>.txt."""
    draw_confusion_matrix(f"{path}.png", labels, counts)
    text = result_tables.confusion_matrix_text(
        labels, counts, needs_numbers(labels)
    )
    files.write_text(f"{path}.txt", text)


def write_scores(
    path: str, kind: str, rows: Sequence[tuple[str, EntityScore]]
) -> None:
    """Writes scores to <path>.png and <path>.txt; see `scores_text`."""
    draw_entity_scores(f"{path}.png", rows)
    numbered = needs_numbers(name for name, _ in rows)
    text = result_tables.scores_text(kind, rows, numbered)
    files.write_text(f"{path}.txt", text)


def write_score_scatter(
    path: str, references: np.ndarray, predictions: np.ndarray
) -> None:
    """Writes predicted and correct scores to <path>.png and <path>.txt."""
    draw_score_scatter(f"{path}.png", references, predictions)
    text = result_tables.score_scatter_text(references, predictions)
    files.write_text(f"{path}.txt", text)


def draw_confusion_matrix(
    path: str, labels: Sequence[str], counts: np.ndarray
) -> None:
    """Writes a confusion matrix as PNG, atomically.

    The color of a cell shows its share of its row, the examples with the same
    correct label.

    Args:
      path: The PNG.
      labels: C names.
      counts: <int64>[C, C], with correct labels in rows.
    """
    counts = np.asarray(counts)
    missing = _missing_characters(labels)
    if missing:
        labels = result_tables.numbers(labels)
    if len(labels) <= _MAX_LABELS_WITH_NUMBERS:
        names = 0.09 * max(len(_shorten(label)) for label in labels)
        side = 1.0 + max(0.5 * len(labels), 2.0) + names
        figure = new_figure(max(side, 4.0), side)
        axes = figure.add_subplot()
        _write_numbers(axes, counts, _draw_matrix(axes, labels, counts))
        _name_labels(axes, labels, 10.0)
    else:
        side = float(np.clip(0.11 * len(labels), 8.0, 18.0))
        figure = new_figure(side + 6.0, side)
        matrix, pairs = figure.subplots(1, 2, width_ratios=[side, 4.0])
        # Makes single confusions visible.
        norm = colors.PowerNorm(0.4, vmin=0, vmax=1)
        _draw_matrix(matrix, labels, counts, norm)
        if len(labels) <= _MAX_LABELS_WITH_NAMES:
            _name_labels(matrix, labels, min(44 * side / len(labels), 10.0))
        _draw_confusions(pairs, labels, counts, min(0.75 * side, 10.0))
    figure.suptitle(result_tables.accuracy_line(counts), fontsize=11)
    if missing:
        figure.supxlabel(_note_of_numbers(path, missing), fontsize=8)
    write_figure(figure, path)


def draw_score_scatter(
    path: str, references: Sequence[float], predictions: Sequence[float]
) -> None:
    """Writes a scatter plot of predicted over correct scores, atomically.

    Args:
      path: The PNG.
      references: <float32>[N], the correct scores.
      predictions: <float32>[N].
    """
    references = np.asarray(references, np.float64)
    predictions = np.asarray(predictions, np.float64)
    figure = new_figure(6.0, 6.0)
    axes = figure.add_subplot()
    # Transparent, so that many overlapping points look darker.
    axes.scatter(
        references,
        predictions,
        s=14,
        color=_COLORS["precision"],
        alpha=float(np.clip(400 / len(references), 0.1, 0.8)),
        edgecolors="none",
    )
    low = min(references.min(), predictions.min())
    high = max(references.max(), predictions.max())
    axes.plot([low, high], [low, high], color="gray", linewidth=0.8)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel("right score")
    axes.set_ylabel("predicted score")
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    scores = metrics.compute_metrics(
        (metrics.PEARSON, metrics.SPEARMAN), references, predictions
    )
    axes.set_title(
        f"{len(references):,} examples, Pearson "
        f"{scores[metrics.PEARSON]:.3f}, Spearman "
        f"{scores[metrics.SPEARMAN]:.3f}",
        fontsize=11,
        loc="left",
    )
    write_figure(figure, path)


def draw_entity_scores(
    path: str, rows: Sequence[tuple[str, EntityScore]]
) -> None:
    """Writes precision, recall and F1 of each type as PNG, atomically.

    Only the 60 most frequent types are drawn.
    """
    *types, overall = rows
    names = [name for name, _ in types]
    missing = _missing_characters(names)
    if missing:
        scores = [score for _, score in types]
        types = list(zip(result_tables.numbers(names), scores, strict=True))
    shown = sorted(types, key=lambda row: -row[1].num_references)[:_MAX_BARS]
    shown = [row for row in types if row in shown] + [overall]
    figure = new_figure(8.0, 1.6 + 0.5 * len(shown))
    axes = figure.add_subplot()
    position = np.arange(len(shown))
    for number, (name, color) in enumerate(_COLORS.items()):
        values = [100 * getattr(score, name) for _, score in shown]
        bars = axes.barh(
            position + 0.26 * (number - 1), values, 0.24, color=color
        )
        bars.set_label("F1" if name == "f1" else name)
        if name == "f1":
            axes.bar_label(bars, fmt="%.1f", fontsize=8, padding=2)
    _name_ticks(
        axes.set_yticks,
        [f"{name} ({score.num_references:,})" for name, score in shown],
        9,
    )
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.axhline(len(shown) - 1.5, color="gray", linewidth=0.8)
    axes.set_xlim(0, 106)
    note = f"\n{_note_of_numbers(path, missing)}" if missing else ""
    axes.set_xlabel(f"%{note}")
    axes.grid(axis="x", alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if len(shown) <= len(types):
        axes.set_title(
            f"The {_MAX_BARS} most frequent of {len(types)} types",
            fontsize=11,
            loc="left",
        )
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    write_figure(figure, path)


def needs_numbers(names: Iterable[str]) -> bool:
    """Returns True if plots show numbers in place of these names."""
    return bool(_missing_characters(names))


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure of a width and height in inches."""
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_figure(figure: Figure, path: str) -> None:
    """Writes a figure as PNG, atomically."""
    with files.atomic_file(path) as temporary:
        figure.savefig(temporary, format="png")


def _missing_characters(names: Iterable[str]) -> str:
    """Returns the characters of names that no font has."""
    fonts = []
    # All fonts that Matplotlib searches.
    for family in font_manager.FontProperties().get_family():
        properties = font_manager.FontProperties(family=[family])
        fonts.append(font_manager.get_font(font_manager.findfont(properties)))
    return "".join(
        character
        for character in dict.fromkeys("".join(map(_shorten, names)))
        if not any(font.get_char_index(ord(character)) for font in fonts)
    )


def _note_of_numbers(path: str, missing: str) -> str:
    """Returns and logs where to find the names of a plot's numbers."""
    text = f"{os.path.splitext(os.path.basename(path))[0]}.txt"
    logging.info(
        "%s has numbers in place of names because its font lacks characters "
        "such as %r; %s has both.",
        path,
        missing[0],
        text,
    )
    return f"[0], [1] ...: see {text}"


def _draw_matrix(
    axes,
    labels: Sequence[str],
    counts: np.ndarray,
    norm: colors.Normalize | None = None,
) -> np.ndarray:
    """Draws the cells; returns <float64>[C, C], their shares of their rows."""
    shares = counts / np.maximum(counts.sum(-1, keepdims=True), 1)
    norm = norm or colors.Normalize(0, 1)
    axes.imshow(shares, cmap=_MATRIX_COLORS, norm=norm, aspect="equal")
    axes.set_xlabel("predicted label")
    axes.set_ylabel("right label")
    return shares


def _name_labels(axes, labels: Sequence[str], size: float) -> None:
    longest = max(map(len, labels))
    _name_ticks(
        axes.set_xticks, labels, size, rotation=90 if longest > 3 else 0
    )
    _name_ticks(axes.set_yticks, labels, size)
    axes.tick_params(length=2, pad=1)


def _write_numbers(axes, counts: np.ndarray, shares: np.ndarray) -> None:
    # A cell is about half an inch wide.
    size = min(36 / len(str(counts.max())), 10.0)
    for (row, column), count in np.ndenumerate(counts):
        axes.text(
            column,
            row,
            str(count),
            ha="center",
            va="center",
            fontsize=size,
            color="white" if shares[row, column] > 0.5 else "black",
        )


def _draw_confusions(
    axes, labels: Sequence[str], counts: np.ndarray, size: float
) -> None:
    """Draws a bar chart of the most frequent confusions."""
    pairs = result_tables.confusions(counts)[:_MAX_CONFUSIONS]
    axes.set_title("Most frequent confusions", fontsize=10, loc="left")
    axes.spines[["top", "right", "bottom", "left"]].set_visible(False)
    axes.set_xticks([])
    axes.tick_params(length=0)
    bars = axes.barh(
        np.arange(len(pairs)),
        [counts[pair] for pair in pairs],
        0.5,
        color=_COLORS["precision"],
    )
    axes.bar_label(bars, fontsize=size, padding=2)
    # Room for the same number of bars in all plots, so that none is too wide.
    axes.set_ylim(_MAX_CONFUSIONS - 0.5, -0.5)
    _name_ticks(
        axes.set_yticks,
        [
            f"{_shorten(labels[correct])}\n\N{RIGHTWARDS ARROW} "
            f"{_shorten(labels[predicted])}"
            for correct, predicted in pairs
        ],
        size,
        shorten=False,
    )


def _name_ticks(
    set_ticks,
    names: Sequence[str],
    size: float,
    shorten: bool = True,
    **properties,
) -> None:
    """Sets the names of the ticks 0, 1, 2 ... of an axis."""
    set_ticks(
        np.arange(len(names)),
        [_shorten(name) for name in names] if shorten else names,
        fontsize=size,
        # A name may have dollar signs, which would begin formulas.
        parse_math=False,
        **properties,
    )


def _shorten(name: str) -> str:
    name = " ".join(name.split())
    if len(name) <= _MAX_NAME_CHARS:
        return name
    half = _MAX_NAME_CHARS // 2
    return f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[1 - half :]}"

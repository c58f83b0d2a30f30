"""Results as text and picture: confusion matrices, scores by label or type.

If the font of a picture lacks a character of a name, the picture shows numbers
instead of names, and the text file next to it lists numbers and names.

Shapes:
  C: number of labels.
  N: number of examples.
"""

from collections.abc import Sequence

import numpy as np

from bert_tf import reports
from bert_tf.io import files
from bert_tf.tasks import confidence
from bert_tf.tasks import metrics
from bert_tf.tasks.metrics import EntityScore

# With more labels than this, list confusions: a matrix would not fit a screen.
_MAX_COLUMNS = 20
# Number of score ranges in the table for regression. Empty ranges have no row.
_NUM_RANGES = 10
_MAX_BARS = 60


def write_confusion_matrix(
    path: str, labels: Sequence[str], counts: np.ndarray
) -> None:
    """Writes a confusion matrix to <path>.png and <path>.txt."""
    counts = np.asarray(counts)
    names, note = reports.drawable(labels, f"{path}.txt")
    reports.write_confusion_matrix(
        f"{path}.png", names, counts, accuracy_line(counts), note
    )
    # If the picture numbers the labels, number them in the text, too.
    if note and len(labels) > _MAX_COLUMNS:
        labels = _with_numbers(labels)
    files.write_text(f"{path}.txt", confusion_matrix_text(labels, counts))


def write_scores(
    path: str, kind: str, rows: Sequence[tuple[str, EntityScore]]
) -> None:
    """Writes scores to <path>.txt, and the 60 most frequent to <path>.png.

    `rows` has the labels or types (`kind`), and ends with the overall score.
    """
    (*names, _), (*scores, overall) = zip(*rows, strict=True)
    short, note = reports.drawable(names, f"{path}.txt")
    if note:
        names = _with_numbers(names)
    types = list(zip(short, scores, strict=True))
    frequent = sorted(types, key=lambda row: -row[1].num_references)[:_MAX_BARS]
    drawn = [row for row in types if row in frequent]
    title = f"Scores of each {kind}, %"
    if len(drawn) < len(types):
        title = f"The {_MAX_BARS} most frequent of {len(types)} {kind}s, %"
    drawn.append(("overall", overall))
    figure, (axes,) = reports.new_panels(title, [len(drawn)], 0.45)
    reports.draw_bars(
        axes,
        [f"{name} ({score.num_references:,})" for name, score in drawn],
        {
            name: [100 * getattr(score, name.lower()) for _, score in drawn]
            for name in ("precision", "recall", "F1")
        },
        text="{:.1f}",
    )
    axes.axhline(len(drawn) - 1.5, color=reports.GRAY, linewidth=0.8)
    axes.set_xlim(0, 112)
    axes.set_xlabel(note)
    reports.add_legend(figure, ncols=3)
    reports.write(f"{path}.png", figure)
    rows = [*zip(names, scores, strict=True), ("overall", overall)]
    files.write_text(f"{path}.txt", scores_text(kind, rows))


def write_score_scatter(
    path: str, references: Sequence[float], predictions: Sequence[float]
) -> None:
    """Writes predicted and correct scores to <path>.png and <path>.txt."""
    references = np.asarray(references, np.float64)
    predictions = np.asarray(predictions, np.float64)
    scores = metrics.compute_metrics(
        (metrics.PEARSON, metrics.SPEARMAN), references, predictions
    )
    title = (
        f"{len(references):,} examples, Pearson "
        f"{scores[metrics.PEARSON]:.3f}, Spearman "
        f"{scores[metrics.SPEARMAN]:.3f}"
    )
    reports.write_score_scatter(f"{path}.png", references, predictions, title)
    text = score_scatter_text(references, predictions)
    files.write_text(f"{path}.txt", text)


def write_calibration(
    path: str,
    probabilities: np.ndarray,
    is_right: np.ndarray,
    is_known: np.ndarray,
) -> None:
    """Draws reliability and coverage in <path>.png; tabulates coverage in .txt.

    An answer has a probability, `probabilities` <float>[N], and is correct
    where `is_right` <bool>[N] is true. `is_known` <bool>[N] is false for texts
    that no label fits. These texts are left out; the title counts them.
    """
    probabilities, is_right = probabilities[is_known], is_right[is_known]
    error = confidence.calibration_error(probabilities, is_right)
    title = f"{len(is_right):,} answers, calibration error {error:.2%}"
    if left_out := len(is_known) - len(is_right):
        title += f"; {left_out:,} left out, as no label fits"
    right = confidence.right_among_surest(probabilities, is_right)
    reports.write_calibration(
        f"{path}.png", probabilities, is_right, right, title
    )
    ranked = np.sort(probabilities)[::-1]
    table = [["answered, %", "least probability, %", "correct, %"]]
    for share in (100, 95, 90, 80, 70, 60, 50, 25, 10):
        last = max(round(share / 100 * len(ranked)), 1) - 1
        values = (f"{100 * x[last]:.2f}" for x in (ranked, right))
        table.append([str(share), *values])
    files.write_text(f"{path}.txt", f"{title}\n\n{aligned(table, 0)}")


def confusion_matrix_text(labels: Sequence[str], counts: np.ndarray) -> str:
    """Returns a confusion matrix with scores per label.

    `counts` <int64>[C, C] has a row for each correct label. With more than 20
    labels a row does not fit in a line, so the confusions that occur are listed
    instead, the most frequent first.
    """
    names = [_one_line(label) for label in labels]
    head = f"{accuracy_line(counts)}\n\n"
    label_counts = (counts.sum(1), counts.sum(0), np.diag(counts))
    scores = scores_text("label", _score_rows(names, *label_counts))
    if len(labels) > _MAX_COLUMNS:
        return f"{head}{_confusions_text(names, counts)}\n{scores}"
    # Number the columns, because long names would make the table too wide.
    table = [["actual \\ predicted", *reports.numbers(names)]]
    for name, row in zip(_with_numbers(names), counts, strict=True):
        table.append([name, *map(str, row)])
    return f"{head}{aligned(table)}\n{scores}"


def accuracy_line(counts: np.ndarray) -> str:
    """Returns a line such as "50 examples, 45 correct (90.00%), 2 labels"."""
    total = int(counts.sum())
    correct = int(np.trace(counts))
    accuracy = correct / max(total, 1)
    return (
        f"{total:,} examples, {correct:,} correct ({accuracy:.2%}), "
        f"{len(counts):,} labels"
    )


def scores_text(kind: str, rows: Sequence[tuple[str, EntityScore]]) -> str:
    """Returns a table with a line of scores for each entity type or label."""
    heads = ("precision", "recall", "F1", "support", "predicted", "correct")
    table = [[kind, *heads]]
    for name, score in rows:
        shares = (score.precision, score.recall, score.f1)
        cells = [_one_line(name), *(f"{100 * share:.2f}" for share in shares)]
        counts = score.num_references, score.num_predictions, score.num_correct
        table.append([*cells, *map(str, counts)])
    return aligned(table)


def label_score_rows(
    labels: Sequence[str], references: np.ndarray, predictions: np.ndarray
) -> list[tuple[str, EntityScore]]:
    """Returns the scores of each label of a multi-label task, and "overall".

    `references` and `predictions` <int32>[N, C] are 1 for the correct and the
    predicted labels.
    """
    references = np.asarray(references, bool)
    predictions = np.asarray(predictions, bool)
    counts = [
        x.sum(0) for x in (references, predictions, references & predictions)
    ]
    overall = EntityScore(*(int(x.sum()) for x in counts))
    return [*_score_rows(labels, *counts), ("overall", overall)]


def score_scatter_text(
    references: Sequence[float], predictions: Sequence[float]
) -> str:
    """Returns a table of predicted scores by range of the correct score."""
    edges = np.linspace(references.min(), references.max(), _NUM_RANGES + 1)
    # Clip the index, or else the greatest score would be after the last range.
    ranges = np.clip(
        np.searchsorted(edges, references, side="right") - 1, 0, _NUM_RANGES - 1
    )
    heads = ("examples", "mean", "predicted mean", "mean absolute error")
    table = [["correct score", *heads]]
    for number in np.unique(ranges):
        expected, predicted = (
            x[ranges == number] for x in (references, predictions)
        )
        low, high = edges[number : number + 2]
        error = np.abs(predicted - expected).mean()
        means = (expected.mean(), predicted.mean(), error)
        cells = [f"{low:.4g} to {high:.4g}", str(len(expected))]
        table.append([*cells, *(f"{mean:.4f}" for mean in means)])
    return aligned(table)


def _score_rows(
    names: Sequence[str], *counts: np.ndarray
) -> list[tuple[str, EntityScore]]:
    """Returns names with scores, from the three counts of `EntityScore`."""
    return [
        (name, EntityScore(*map(int, row)))
        for name, *row in zip(names, *counts, strict=True)
    ]


def _confusions_text(names: Sequence[str], counts: np.ndarray) -> str:
    totals = counts.sum(-1)
    table = [["actual label", "predicted label", "times", "of"]]
    for correct, predicted in reports.confusions(counts):
        count, total = counts[correct, predicted], totals[correct]
        table.append([names[correct], names[predicted], str(count), str(total)])
    return aligned(table, num_names=2)


def _with_numbers(names: Sequence[str]) -> list[str]:
    pairs = zip(reports.numbers(names), names, strict=True)
    return [f"{number} {name}" for number, name in pairs]


def _one_line(name: str) -> str:
    return " ".join(name.split())


def aligned(table: Sequence[Sequence[str]], num_names: int = 1) -> str:
    """Returns a table: `num_names` columns of names, then aligned numbers."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    signs = num_names * "<" + (len(widths) - num_names) * ">"
    layout = "  ".join(
        f"{{:{sign}{width}}}" for sign, width in zip(signs, widths, strict=True)
    )
    return "".join(f"{layout.format(*row).rstrip()}\n" for row in table)

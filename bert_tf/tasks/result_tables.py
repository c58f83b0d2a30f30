"""Tables of what a model got right and wrong, for people to read.

Shapes:
  C: number of labels.
  N: number of examples.
"""

from collections.abc import Sequence

import numpy as np

from bert_tf.tasks.tagging.metrics import EntityScore

# A matrix of more labels is wider than a screen.
_MAX_COLUMNS = 20
# Of scores.
_NUM_RANGES = 10


def confusion_matrix_text(
    labels: Sequence[str], counts: np.ndarray, numbered: bool = False
) -> str:
    """Returns a confusion matrix, or of many labels all that it has in it.

    With more than 20 labels, most cells are 0 and no line has room for a row:
    then each label has a line with its scores, and each confusion that occurs
    another, the most frequent first.

    Args:
      labels: C names.
      counts: <int64>[C, C], a row for each right label, a column for each
        predicted; see `metrics.confusion_matrix`.
      numbered: Whether the lines of many labels have their numbers, too; those
        of a matrix always have.
    """
    counts = np.asarray(counts)
    names = [_one_line(label) for label in labels]
    if numbered and len(labels) > _MAX_COLUMNS:
        names = _with_numbers(names)
    head = f"{accuracy_line(counts)}\n\n"
    scores = _scores_text("label", _label_rows(names, counts))
    if len(labels) > _MAX_COLUMNS:
        return f"{head}{_confusions_text(names, counts)}\n{scores}"
    # Columns go by number, so that long names do not make them wide.
    table = [["right \\ predicted", *numbers(names)]]
    for name, row in zip(_with_numbers(names), counts, strict=True):
        table.append([name, *map(str, row)])
    return f"{head}{aligned(table)}\n{scores}"


def accuracy_line(counts: np.ndarray) -> str:
    """Returns in words how many examples there are, and how many are right."""
    total = int(counts.sum())
    right = int(np.trace(counts))
    return (
        f"{total:,} examples, {right:,} right ({right / max(total, 1):.2%}), "
        f"{len(counts):,} labels"
    )


def confusions(counts: np.ndarray) -> list[tuple[int, int]]:
    """Returns the pairs of a right and a wrong label, most frequent first."""
    wrong = counts - np.diag(np.diag(counts))
    rows, columns = np.nonzero(wrong)
    order = np.argsort(-wrong[rows, columns], kind="stable")
    return [(int(rows[i]), int(columns[i])) for i in order]


def entity_scores_text(
    rows: Sequence[tuple[str, EntityScore]], numbered: bool = False
) -> str:
    """Returns a line of scores for each type of entities.

    Args:
      rows: `TaggingScore.rows()`: a name and its scores, "overall" at the end.
      numbered: Whether the types have their numbers before them.
    """
    return _scores_text("type", _number_rows(rows) if numbered else rows)


def label_scores_text(
    labels: Sequence[str],
    references: np.ndarray,
    predictions: np.ndarray,
    numbered: bool = False,
) -> str:
    """Returns a line of scores for each label of a multi-label problem.

    Args:
      labels: C names.
      references: <int32>[N, C], 1 for each label that is right.
      predictions: <int32>[N, C], 1 for each that was predicted.
      numbered: Whether the labels have their numbers before them.
    """
    rows = label_score_rows(labels, references, predictions)
    return _scores_text("label", _number_rows(rows) if numbered else rows)


def label_score_rows(
    labels: Sequence[str], references: np.ndarray, predictions: np.ndarray
) -> list[tuple[str, EntityScore]]:
    """Returns what `label_scores_text` shows, with "overall" at the end."""
    references = np.asarray(references, bool)
    predictions = np.asarray(predictions, bool)
    counts = np.stack(
        [x.sum(0) for x in (references, predictions, references & predictions)],
        axis=-1,
    )
    rows = [
        (name, EntityScore(*map(int, row)))
        for name, row in zip(labels, counts, strict=True)
    ]
    return [*rows, ("overall", EntityScore(*map(int, counts.sum(0))))]


def score_scatter_text(
    references: Sequence[float], predictions: Sequence[float]
) -> str:
    """Returns what was predicted for low, middling and high scores.

    Args:
      references: <float32>[N], the right scores.
      predictions: <float32>[N].
    """
    references = np.asarray(references, np.float64)
    predictions = np.asarray(predictions, np.float64)
    edges = np.linspace(references.min(), references.max(), _NUM_RANGES + 1)
    # The greatest score is in the last range.
    ranges = np.clip(
        np.searchsorted(edges, references, side="right") - 1, 0, _NUM_RANGES - 1
    )
    heads = ("examples", "mean", "predicted mean", "mean absolute error")
    table = [["right score", *heads]]
    for number in np.unique(ranges):
        right, predicted = (
            x[ranges == number] for x in (references, predictions)
        )
        low, high = edges[number : number + 2]
        error = np.abs(predicted - right).mean()
        means = (right.mean(), predicted.mean(), error)
        table.append(
            [
                f"{low:.4g} to {high:.4g}",
                str(len(right)),
                *(f"{mean:.4f}" for mean in means),
            ]
        )
    return aligned(table)


def _label_rows(
    names: Sequence[str], counts: np.ndarray
) -> list[tuple[str, EntityScore]]:
    """Returns how each label of a confusion matrix was found."""
    columns = (counts.sum(1), counts.sum(0), np.diag(counts))
    return [
        (name, EntityScore(*map(int, row)))
        for name, *row in zip(names, *columns, strict=True)
    ]


def _scores_text(kind: str, rows: Sequence[tuple[str, EntityScore]]) -> str:
    heads = ("precision", "recall", "F1", "support", "predicted", "correct")
    table = [[kind, *heads]]
    for name, score in rows:
        shares = (score.precision, score.recall, score.f1)
        counts = (
            score.num_references,
            score.num_predictions,
            score.num_correct,
        )
        table.append(
            [
                _one_line(name),
                *(f"{100 * share:.2f}" for share in shares),
                *map(str, counts),
            ]
        )
    return aligned(table)


def _confusions_text(names: Sequence[str], counts: np.ndarray) -> str:
    totals = counts.sum(-1)
    table = [["right label", "predicted label", "times", "of"]]
    for right, predicted in confusions(counts):
        count, total = counts[right, predicted], totals[right]
        table.append([names[right], names[predicted], str(count), str(total)])
    return aligned(table, num_names=2)


def numbers(names: Sequence[str]) -> list[str]:
    """Returns what stands for names where there is no room for them."""
    return [f"[{number}]" for number in range(len(names))]


def _with_numbers(names: Sequence[str]) -> list[str]:
    pairs = zip(numbers(names), names, strict=True)
    return [f"{number} {name}" for number, name in pairs]


def _number_rows(
    rows: Sequence[tuple[str, EntityScore]],
) -> list[tuple[str, EntityScore]]:
    """Returns rows of scores with numbers in front, but for the last one."""
    names = _with_numbers([name for name, _ in rows[:-1]])
    scores = [score for _, score in rows[:-1]]
    return [*zip(names, scores, strict=True), rows[-1]]


def _one_line(name: str) -> str:
    return " ".join(name.split())


def aligned(table: Sequence[Sequence[str]], num_names: int = 1) -> str:
    """Returns lines with names to the left and numbers to the right.

    Args:
      table: Rows of as many cells each.
      num_names: How many columns have names; all others have numbers.
    """
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [
            cell.ljust(width) if number < num_names else cell.rjust(width)
            for number, (cell, width) in enumerate(
                zip(row, widths, strict=True)
            )
        ]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)

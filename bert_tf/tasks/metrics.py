"""Metrics of classification, regression and tagging.

Shapes:
  N: number of examples.
  C: number of labels.
"""

import collections
import dataclasses
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

ACCURACY = "accuracy"
F1 = "f1"
MACRO_F1 = "macro_f1"
MATTHEWS = "matthews_correlation"
PEARSON = "pearson"
SPEARMAN = "spearmanr"
MEAN_SQUARED_ERROR = "mean_squared_error"
MEAN_ABSOLUTE_ERROR = "mean_absolute_error"
MICRO_F1 = "micro_f1"
MICRO_PRECISION = "micro_precision"
MICRO_RECALL = "micro_recall"
SUBSET_ACCURACY = "subset_accuracy"

# Metrics of tasks without official metrics; the first selects the best model.
METRICS_OF_PROBLEM: Mapping[str, tuple[str, ...]] = {
    "single_label": (ACCURACY, MACRO_F1, MATTHEWS),
    "multi_label": (
        MICRO_F1,
        MACRO_F1,
        MICRO_PRECISION,
        MICRO_RECALL,
        SUBSET_ACCURACY,
    ),
    "regression": (PEARSON, SPEARMAN, MEAN_SQUARED_ERROR, MEAN_ABSOLUTE_ERROR),
}
# Metrics for which lower is better; for all other metrics, higher is better.
LESS_IS_BETTER = frozenset({MEAN_SQUARED_ERROR, MEAN_ABSOLUTE_ERROR})


def _sklearn(
    name: str, prepare: Callable = np.asarray, **options: Any
) -> Callable[[np.ndarray, np.ndarray], float]:
    """Returns a metric of scikit-learn, imported when it is called."""

    def compute(*values: np.ndarray) -> float:
        from sklearn import metrics

        return getattr(metrics, name)(*map(prepare, values), **options)

    return compute


def _correlation(name: str) -> Callable[[np.ndarray, np.ndarray], float]:
    def compute(*values: np.ndarray) -> float:
        from scipy import stats

        # The correlation with a constant is undefined (0 / 0), so return 0.
        if 0 in map(np.ptp, values):
            return 0.0
        return getattr(stats, name)(*np.asarray(values, np.float64)).statistic

    return compute


def _macro_f1(label_ids: np.ndarray, predictions: np.ndarray) -> float:
    if label_ids.ndim == 1:
        f1 = _sklearn("f1_score", average="macro", zero_division=0.0)
        return f1(label_ids, predictions)
    columns = zip(label_ids.T, predictions.T, strict=True)
    return np.mean([METRICS[F1](*column) for column in columns])


# scikit-learn's own micro average treats 0 and 1 as two classes if there is
# only one label, so flatten all decisions to one binary array.
_MICRO = {"prepare": np.ravel, "zero_division": 0.0}

METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
    ACCURACY: _sklearn("accuracy_score"),
    # The F1 of the label with id 1, which is "1" in MRPC and QQP.
    F1: _sklearn("f1_score", zero_division=0.0),
    MACRO_F1: _macro_f1,
    MATTHEWS: _sklearn("matthews_corrcoef"),
    PEARSON: _correlation("pearsonr"),
    SPEARMAN: _correlation("spearmanr"),
    MEAN_SQUARED_ERROR: _sklearn("mean_squared_error"),
    MEAN_ABSOLUTE_ERROR: _sklearn("mean_absolute_error"),
    MICRO_F1: _sklearn("f1_score", **_MICRO),
    MICRO_PRECISION: _sklearn("precision_score", **_MICRO),
    MICRO_RECALL: _sklearn("recall_score", **_MICRO),
    # The share of rows whose labels are all correct.
    SUBSET_ACCURACY: _sklearn("accuracy_score"),
}


def compute_metrics(
    names: Sequence[str], label_ids: np.ndarray, predictions: np.ndarray
) -> dict[str, float]:
    """Computes the metrics `names` of `METRICS`, as fractions, not percentages.

    `label_ids` and `predictions` are <int32>[N] label ids; <int32>[N, C], 1 for
    the labels of a multi-label example; or <float32>[N] scores.

    Raises:
      ValueError: If there is no example or the shapes differ.
    """
    label_ids, predictions = np.asarray(label_ids), np.asarray(predictions)
    if label_ids.shape != predictions.shape or not len(label_ids):
        raise ValueError(
            "Labels and predictions must have the same shape and at least one "
            f"row. Received: {label_ids.shape} and {predictions.shape}."
        )
    return {
        name: float(METRICS[name](label_ids, predictions)) for name in names
    }


@dataclasses.dataclass(frozen=True)
class EntityScore:
    """Counts and scores of all entities or of one type.

    A prediction is correct if its type, first and last word are.
    """

    num_references: int
    num_predictions: int
    num_correct: int

    @property
    def precision(self) -> float:
        """The share of predictions that are correct, 0 if there are none."""
        return self.num_correct / max(self.num_predictions, 1)

    @property
    def recall(self) -> float:
        """The share of references that are predicted, 0 if there are none."""
        return self.num_correct / max(self.num_references, 1)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        total = self.num_predictions + self.num_references
        return 2 * self.num_correct / max(total, 1)


def score_entities(
    references: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> list[tuple[str, EntityScore]]:
    """Scores predicted tags, as conlleval and seqeval do.

    An I- tag that does not follow a tag of its type begins an entity.

    Returns:
      The score of each type, sorted by name, including types that are only
      predicted; then "overall", the score of all entities.
    """
    expected, actual = _find_entities(references), _find_entities(predictions)
    counts = [
        collections.Counter(name for name, *_ in entities)
        for entities in (expected, actual, expected & actual)
    ]
    rows = [
        (name, EntityScore(*(counter[name] for counter in counts)))
        for name in sorted(counts[0] | counts[1])
    ]
    overall = EntityScore(*(counter.total() for counter in counts))
    return [*rows, ("overall", overall)]


def _find_entities(
    sentences: Sequence[Sequence[str]],
) -> set[tuple[str, int, int, int]]:
    """Returns (type, sentence, first word, last word) of each entity."""
    found = set()
    for number, tags in enumerate(sentences):
        first, name, letter = 0, "", "O"
        for place, tag in enumerate([*tags, "O"]):
            previous = letter
            letter, _, next_name = tag.partition("-")
            # S- and U- are entities of one word; E- and L- are last words.
            if letter in "BSU" or previous in "ELSU" or next_name != name:
                if name:
                    found.add((name, number, first, place - 1))
                first, name = place, next_name
    return found


def tag_accuracy(
    references: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> float:
    """Returns the share of words with the correct tag.

    Raises:
      ValueError: If a sentence has more or fewer predictions than references.
    """
    is_correct = [
        x == y
        for tags in zip(references, predictions, strict=True)
        for x, y in zip(*tags, strict=True)
    ]
    return sum(is_correct) / max(len(is_correct), 1)

"""Metrics of classification and regression, with GLUE's names.

Shapes:
  N: number of examples.
  C: number of labels.
"""

import importlib
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

# The metrics of tasks without official ones; the first selects models.
METRICS_OF_PROBLEM: Mapping[str, tuple[str, ...]] = {
    "single_label": (ACCURACY, MACRO_F1, MATTHEWS),
    "multi_label": (
        MICRO_F1,
        MACRO_F1,
        MICRO_PRECISION,
        MICRO_RECALL,
        SUBSET_ACCURACY,
    ),
    "regression": (
        PEARSON,
        SPEARMAN,
        MEAN_SQUARED_ERROR,
        MEAN_ABSOLUTE_ERROR,
    ),
}
# For all other metrics more is better.
LESS_IS_BETTER = frozenset({MEAN_SQUARED_ERROR, MEAN_ABSOLUTE_ERROR})


def _imported(module: str, name: str) -> Callable[..., Any]:
    """Returns a function that is imported at its first call, which is slow."""
    return lambda *args, **kwargs: getattr(
        importlib.import_module(module), name
    )(*args, **kwargs)


def _sklearn(name: str) -> Callable[..., Any]:
    return _imported("sklearn.metrics", name)


def _correlation(
    compute: Callable[[np.ndarray, np.ndarray], tuple[float, float]],
    label_ids: np.ndarray,
    predictions: np.ndarray,
) -> float:
    # A constant has no correlation; 0, as for Matthews' coefficient.
    if np.ptp(label_ids) == 0 or np.ptp(predictions) == 0:
        return 0.0
    return compute(
        np.asarray(label_ids, np.float64), np.asarray(predictions, np.float64)
    )[0]


def _averaged_f1(average: str) -> Callable[[np.ndarray, np.ndarray], float]:
    return lambda label_ids, predictions: _sklearn("f1_score")(
        label_ids, predictions, average=average, zero_division=0.0
    )


def _micro_averaged(
    compute: Callable[..., float],
) -> Callable[[np.ndarray, np.ndarray], float]:
    """Returns the micro average of a metric, over all binary decisions.

    scikit-learn's own micro average reads an array with one column as classes
    instead of decisions.
    """
    return lambda label_ids, predictions: compute(
        np.ravel(label_ids), np.ravel(predictions), zero_division=0.0
    )


def _macro_f1(label_ids: np.ndarray, predictions: np.ndarray) -> float:
    if label_ids.ndim == 1:
        return _averaged_f1("macro")(label_ids, predictions)
    columns = zip(label_ids.T, predictions.T, strict=True)
    return np.mean([_averaged_f1("binary")(*column) for column in columns])


METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
    ACCURACY: _sklearn("accuracy_score"),
    # The F1 of the label with id 1: "1" in MRPC and QQP.
    F1: _averaged_f1("binary"),
    MACRO_F1: _macro_f1,
    MATTHEWS: _sklearn("matthews_corrcoef"),
    PEARSON: lambda *values: _correlation(
        _imported("scipy.stats", "pearsonr"), *values
    ),
    SPEARMAN: lambda *values: _correlation(
        _imported("scipy.stats", "spearmanr"), *values
    ),
    MEAN_SQUARED_ERROR: _sklearn("mean_squared_error"),
    MEAN_ABSOLUTE_ERROR: _sklearn("mean_absolute_error"),
    MICRO_F1: _micro_averaged(_sklearn("f1_score")),
    MICRO_PRECISION: _micro_averaged(_sklearn("precision_score")),
    MICRO_RECALL: _micro_averaged(_sklearn("recall_score")),
    # The share of rows with exactly the correct labels.
    SUBSET_ACCURACY: _sklearn("accuracy_score"),
}


def compute_metrics(
    names: Sequence[str], label_ids: np.ndarray, predictions: np.ndarray
) -> dict[str, float]:
    """Computes metrics: scores up to 1, not percent, and errors.

    Args:
      names: Keys of `METRICS`.
      label_ids: The references: <int32>[N] label ids; <int32>[N, C], 1 for the
        labels of a multi-label example; or <float32>[N] scores.
      predictions: The predictions, in the same form.

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

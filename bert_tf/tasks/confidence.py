"""Calibration of probabilities: temperature, thresholds, rejection, error.

A temperature divides the logits, so that about 80% of the answers with the
probability 0.8 are right (Guo et al., 2017, https://arxiv.org/abs/1706.04599).
The module does not import TensorFlow.

Shapes:
  M: number of texts.
  L: number of labels.
"""

import math
from collections.abc import Callable

import numpy as np
from absl import logging

# Fields of a classification task that control how logits become answers.
FIELDS = ("temperature", "thresholds", "reject_below", "reject_label")
# The default threshold of each label, and the default `reject_label`.
THRESHOLD, REJECT_LABEL = 0.5, "none of these"
# The label id of a text to which no label applies.
OUTSIDE = -1

_NUM_BINS = 15
_MAX_TEMPERATURE = 20.0
# If the log loss is lower, all answers are correct, so no temperature is best.
_NO_LOSS = 1e-5


def fit_temperature(
    predict: Callable[[float], np.ndarray], label_ids: np.ndarray
) -> float:
    """Returns the temperature with the least log loss.

    Returns 1.0 if the loss has no minimum, as when all answers are correct.

    Args:
      predict: Returns the probabilities <float>[M, L] at a temperature, of
        texts that the model was not trained on.
      label_ids: <int>[M], `OUTSIDE` if no label fits; in multi-label tasks
        <float>[M, L], 1 for each label of a text.
    """
    from scipy import optimize

    def loss(log_temperature):
        found = predict(math.exp(log_temperature))
        if label_ids.ndim == 1:
            known = np.flatnonzero(label_ids != OUTSIDE)
            found = found[known, label_ids[known]]
        else:
            found = np.where(label_ids > 0, found, 1 - found)
        return -np.log(np.maximum(found, 1e-37)).mean()

    bound = math.log(_MAX_TEMPERATURE)
    found = optimize.minimize_scalar(
        loss, bounds=(-bound, bound), method="bounded", options={"xatol": 1e-4}
    ).x
    if abs(found) < bound - 0.01 and loss(found) > _NO_LOSS:
        return math.exp(found)
    logging.warning(
        "The %d texts to judge by determine no temperature: their answers are "
        "all correct, or no better than chance; the probabilities stay.",
        len(label_ids),
    )
    return 1.0


def fit_thresholds(
    probabilities: np.ndarray, label_ids: np.ndarray
) -> tuple[float, ...]:
    """Returns each label's threshold with the best F1, for multi-label tasks.

    A threshold is halfway between the lowest accepted and the highest rejected
    probability. If texts with 0.9 and 0.7 have the label and a text with 0.5
    does not, the threshold is 0.6. A label without texts has threshold 0.5.

    `probabilities` and `label_ids` (1 for each label of a text) are
    <float>[M, L].
    """
    from sklearn import metrics

    thresholds = []
    for column, is_label in zip(probabilities.T, label_ids.T, strict=True):
        if not is_label.any():
            thresholds.append(THRESHOLD)
            continue
        *rates, cuts = metrics.precision_recall_curve(is_label, column)
        # Drop the last point of scikit-learn's curve, which has no threshold.
        precision, recall = (x[:-1] for x in rates)
        f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
        best = int(np.argmax(f1))
        thresholds.append(_below(cuts[best], cuts[:best][-1:]))
    return tuple(thresholds)


def fit_rejection(
    confidences: np.ndarray, is_right: np.ndarray, precision: float
) -> float:
    """Returns the lowest threshold at which answers reach a precision.

    `confidences` <float>[M] are the probabilities of the most probable labels,
    and `is_right` <bool>[M] is true where that label is correct. `precision` is
    the share of answers that must be correct, below 1.

    At precision 0.95, at least 1 / (1 - 0.95) = 20 answers must reach the
    threshold, so that one of them may be wrong. If no threshold reaches the
    precision, returns the most precise threshold, and logs a warning.
    """
    reached = right_among_surest(confidences, is_right)
    ranked = np.sort(confidences)[::-1]
    min_answers = math.ceil(1 / (1 - precision) - 1e-9)
    # A threshold cannot separate answers with equal probabilities.
    may_end = np.append(ranked[1:] < ranked[:-1], True)
    may_end[: min(min_answers, len(ranked)) - 1] = False
    last = int(np.argmax(np.where(may_end, reached, -1)))
    if reached[last] >= precision and len(ranked) >= min_answers:
        last = int(np.flatnonzero(may_end & (reached >= precision))[-1])
    else:
        logging.warning(
            "No threshold shows a precision of %.4g, which takes %d answers, "
            "on the %d texts to judge by: the best reaches %.4g, for %.1f%% "
            "of them, and is used.",
            precision,
            min_answers,
            len(ranked),
            reached[last],
            100 * (last + 1) / len(ranked),
        )
    return _below(ranked[last], ranked[last + 1 : last + 2])


def _below(accepted: float, rejected: np.ndarray) -> float:
    """Returns the mean of the last accepted and the first rejected probability.

    If none is rejected, the threshold is 1% below the accepted probability,
    because at the same value rounding in another format would reject that text.
    """
    return float((accepted + np.append(rejected, 0.98 * accepted)[0]) / 2)


def calibration_error(confidences: np.ndarray, is_right: np.ndarray) -> float:
    """Returns the expected calibration error, 0 to 1.

    Probabilities are sorted into 15 equally wide bins that contain their upper
    edge. A bin's error is |mean probability - share of correct answers|. The
    result is the mean of these errors, each weighted by its number of answers.
    Two answers at 0.9, one correct and one wrong, give the error 0.4.
    """
    places = np.ceil(np.asarray(confidences, np.float64) * _NUM_BINS) - 1
    places = np.clip(places.astype(int), 0, _NUM_BINS - 1)
    sums = np.bincount(places, confidences - np.float64(is_right))
    return float(np.abs(sums).sum() / len(places))


def right_among_surest(
    confidences: np.ndarray, is_right: np.ndarray
) -> np.ndarray:
    """Returns <float64>[M], the precision of the top 1, 2, ..., M answers."""
    ranked = is_right[np.argsort(-confidences, kind="stable")]
    return np.cumsum(ranked) / np.arange(1, len(ranked) + 1)

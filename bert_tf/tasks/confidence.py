"""Calibrated probabilities: temperature, thresholds, rejection, their errors.

A temperature divides the logits, so that of the answers with a probability of
0.8 about 80% are right (Guo et al., 2017, https://arxiv.org/abs/1706.04599).
Nothing here imports TensorFlow.

Shapes:
  M: number of texts.
  L: number of labels.
"""

import math
from collections.abc import Callable

import numpy as np
from absl import logging

# Fields of classification tasks: how logits become probabilities and answers.
FIELDS = ("temperature", "thresholds", "reject_below", "reject_label")
# The default of `thresholds` and of `reject_label`.
THRESHOLD, REJECT_LABEL = 0.5, "none of these"
# In `label_ids`: none of the labels fits.
OUTSIDE = -1

_NUM_BINS = 15
_MAX_TEMPERATURE = 20.0
# Below it all answers are right, at many temperatures.
_NO_LOSS = 1e-5


def fit_temperature(
    predict: Callable[[float], np.ndarray], label_ids: np.ndarray
) -> float:
    """Returns the temperature with the least log loss.

    It is 1.0 if the texts do not determine it, as if all answers are right.

    Args:
      predict: Returns the probabilities <float>[M, L] at a temperature, of
        texts that the model was not trained on.
      label_ids: <int>[M], `OUTSIDE` where none fits; or for several labels
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

    most = math.log(_MAX_TEMPERATURE)
    found = optimize.minimize_scalar(
        loss, bounds=(-most, most), method="bounded", options={"xatol": 1e-4}
    ).x
    if abs(found) < most - 0.01 and loss(found) > _NO_LOSS:
        return math.exp(found)
    logging.warning(
        "The %d texts to judge by determine no temperature: their answers are "
        "all right, or no better than chance; the probabilities stay.",
        len(label_ids),
    )
    return 1.0


def fit_thresholds(
    probabilities: np.ndarray, label_ids: np.ndarray
) -> tuple[float, ...]:
    """Returns the threshold of each of several labels with the best F1.

    It is halfway to the next lower probability. Labels that no text has keep
    0.5.

    Args:
      probabilities: <float>[M, L].
      label_ids: <float>[M, L], 1 for each label of a text.
    """
    from sklearn import metrics

    thresholds = []
    for column, is_label in zip(probabilities.T, label_ids.T, strict=True):
        if not is_label.any():
            thresholds.append(THRESHOLD)
            continue
        *rates, cuts = metrics.precision_recall_curve(is_label, column)
        precision, recall = (x[:-1] for x in rates)  # The last has no cut.
        f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
        best = int(np.argmax(f1))
        thresholds.append(float(cuts[max(best - 1, 0)] + cuts[best]) / 2)
    return tuple(thresholds)


def fit_rejection(
    confidences: np.ndarray, is_right: np.ndarray, precision: float
) -> float:
    """Returns the least probability from which answers have a precision.

    It takes 1 / (1 - precision) answers to show it, as of fewer one error is
    too many. If none do, the closest is returned, and a warning states it.

    Args:
      confidences: <float>[M], the probability of the most probable label.
      is_right: <bool>[M], whether it is the right one.
      precision: The share of answers that must be right, below 1.
    """
    reached = right_among_surest(confidences, is_right)
    ranked = np.sort(confidences)[::-1]
    least = math.ceil(1 / (1 - precision) - 1e-9)
    # Answers of equal probability are rejected together.
    may_end = np.append(ranked[1:] < ranked[:-1], True)
    may_end[: min(least, len(ranked)) - 1] = False
    last = int(np.argmax(np.where(may_end, reached, -1)))
    if reached[last] >= precision and len(ranked) >= least:
        last = int(np.flatnonzero(may_end & (reached >= precision))[-1])
    else:
        logging.warning(
            "No threshold shows a precision of %.4g, which takes %d answers, "
            "on the %d texts of dev: the best reaches %.4g, for %.1f%% of "
            "them, and is used.",
            precision,
            least,
            len(ranked),
            reached[last],
            100 * (last + 1) / len(ranked),
        )
    return float(ranked[last : last + 2].mean())


def calibration_error(confidences: np.ndarray, is_right: np.ndarray) -> float:
    """Returns the expected calibration error, 0 to 1.

    It is the mean distance between the probability of answers and the share of
    them that is right, of 15 equally wide bins that contain their upper edge.
    """
    places = np.ceil(np.asarray(confidences, np.float64) * _NUM_BINS) - 1
    places = np.clip(places.astype(int), 0, _NUM_BINS - 1)
    sums = np.bincount(places, confidences - np.float64(is_right))
    return float(np.abs(sums).sum() / len(places))


def right_among_surest(
    confidences: np.ndarray, is_right: np.ndarray
) -> np.ndarray:
    """Returns <float64>[M], the share right among the 1 to M surest answers."""
    ranked = is_right[np.argsort(-confidences, kind="stable")]
    return np.cumsum(ranked) / np.arange(1, len(ranked) + 1)

"""Means, standard errors and verdicts on differences between rows.

A difference is distinguishable if it is larger than two standard errors. With
few seeds the standard error is itself uncertain, so chance passes that limit
more often than the 5% of a normal distribution: see `chance_beyond_limit`.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping
from collections.abc import Sequence

from scipy import special

AGREES = "agrees"
CONTRADICTS = "contradicts"
NOT_DISTINGUISHABLE = "not distinguishable"

# Ways to compute the standard error of a difference.
PAIRED = "paired by seed"
WELCH = "Welch"
HELD_OUT = "held-out text"
ONE_SEED = "one seed"

_LIMIT = 2.0  # Standard errors.
# Equal scores may differ by rounding.
_ROUNDING = 1e-9
_SIGNS = {"above": 1, "below": -1}


@dataclasses.dataclass(frozen=True)
class Score:
    """The score of one cell.

    Attributes:
      seed: The seed of the cell.
      value: The score.
      error: The standard error of a score that was computed on a sample, as a
        perplexity on held-out text; None if it is not known.
    """

    seed: int
    value: float
    error: float | None = None


@dataclasses.dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation of scores.

    Attributes:
      mean: The mean.
      deviation: The standard deviation, with n - 1; None for one score.
      count: The number of scores.
    """

    mean: float
    deviation: float | None
    count: int


@dataclasses.dataclass(frozen=True)
class Difference:
    """A row's mean minus the mean of the reference row.

    Attributes:
      value: The difference.
      error: Its standard error; None if it cannot be estimated.
      method: `PAIRED`, `WELCH`, `HELD_OUT` or `ONE_SEED`.
      degrees: Degrees of freedom of the standard error; None without error.
    """

    value: float
    error: float | None
    method: str
    degrees: float | None


def summarize(scores: Sequence[Score]) -> Summary:
    """Returns the mean and the deviation of at least one score."""
    values = [score.value for score in scores]
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), deviation, len(values))


def compare(scores: Sequence[Score], reference: Sequence[Score]) -> Difference:
    """Returns the difference of two rows, each with at least one score.

    - Both have the same seeds, two or more: the error is the deviation of the
      differences by seed, over the square root of their number.
    - Other seeds, two or more in each row: Welch's error of two means.
    - One seed in a row: no error, unless both are single scores whose own
      errors are known. These are added as if they were independent, which
      overestimates the error of two models on the same text.

    Example:
      >>> row = [Score(1, 3.0), Score(2, 5.0)]
      >>> compare(row, [Score(1, 1.0), Score(2, 2.0)])
      Difference(value=2.5, error=0.5, method='paired by seed', degrees=1)
    """
    mean, other = summarize(scores), summarize(reference)
    value = mean.mean - other.mean
    by_seed = {score.seed: score.value for score in scores}
    others = {score.seed: score.value for score in reference}
    counts = (mean.count, other.count)
    if min(counts) > 1:
        has_pairs = by_seed.keys() == others.keys()
        if has_pairs and counts == (len(by_seed), len(others)):
            error = _paired_error(by_seed, others)
            return Difference(value, error, PAIRED, mean.count - 1)
        return _welch(value, mean, other)
    errors = [score.error for score in (*scores, *reference)]
    if counts == (1, 1) and None not in errors:
        return Difference(value, math.hypot(*errors), HELD_OUT, math.inf)
    return Difference(value, None, ONE_SEED, None)


def judge(difference: Difference, expected: str) -> str:
    """Returns a verdict on the sign that the paper found.

    Args:
      difference: A difference to the reference row.
      expected: "above" or "below": the paper's sign.

    Returns:
      `NOT_DISTINGUISHABLE` within two standard errors or without any; else
      `AGREES` or `CONTRADICTS`.
    """
    if difference.error is None:
        return NOT_DISTINGUISHABLE
    if abs(difference.value) <= _LIMIT * difference.error + _ROUNDING:
        return NOT_DISTINGUISHABLE
    agrees = difference.value * _SIGNS[expected] > 0
    return AGREES if agrees else CONTRADICTS


def chance_beyond_limit(degrees: float) -> float:
    """Returns how often a difference of zero is beyond two standard errors.

    For Student's distribution: 0.30 with one degree of freedom (two seeds,
    paired), 0.18 with two, 0.12 with four, 0.05 with many.
    """
    if math.isinf(degrees):
        return float(2 * special.ndtr(-_LIMIT))
    return float(2 * special.stdtr(degrees, -_LIMIT))


def _paired_error(
    scores: Mapping[int, float], reference: Mapping[int, float]
) -> float:
    gaps = [value - reference[seed] for seed, value in scores.items()]
    return statistics.stdev(gaps) / math.sqrt(len(gaps))


def _welch(value: float, mean: Summary, other: Summary) -> Difference:
    """Returns Welch's error, with Satterthwaite's degrees of freedom."""
    parts = [each.deviation**2 / each.count for each in (mean, other)]
    squares = sum(
        part**2 / (each.count - 1)
        for part, each in zip(parts, (mean, other), strict=True)
    )
    degrees = sum(parts) ** 2 / squares if squares else math.inf
    return Difference(value, math.sqrt(sum(parts)), WELCH, degrees)

"""Means, standard errors and verdicts on differences between rows.

A difference is distinguishable if it is larger than two standard errors. With
few seeds the standard error is itself uncertain, so chance passes that limit
more often than the 5% of a normal distribution: see `chance_beyond_limit`.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

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


class Score(NamedTuple):
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


def summarize(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean and the sample standard deviation, if there is one."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return statistics.fmean(values), deviation


def compare(
    scores: Sequence[Score], reference: Sequence[Score]
) -> dict[str, Any]:
    """Returns the difference of two rows, each with at least one score.

    - Both have the same seeds, two or more: the error is the deviation of the
      differences by seed, over the square root of their number.
    - Other seeds, two or more in each row: Welch's error of two means.
    - One seed in a row: no error, unless both are single scores whose own
      errors are known. These are added as if they were independent, which
      overestimates the error of two models on the same text.

    Returns:
      The `difference`, its standard `error` or None, the `method`, and with an
      error the `chance` to pass two errors with its degrees of freedom.

    Example:
      >>> row = [Score(1, 3.0), Score(2, 5.0)]
      >>> found = compare(row, [Score(1, 1.0), Score(2, 2.0)])
      >>> found["difference"], found["error"], found["method"]
      (2.5, 0.5, 'paired by seed')
    """
    both = (scores, reference)
    (mean, deviation), (other, other_deviation) = (
        summarize([score.value for score in row]) for row in both
    )
    by_seed, others = ({x.seed: x.value for x in row} for row in both)
    errors = [x.error for x in (*scores, *reference)]
    error, method, degrees = None, ONE_SEED, math.nan
    if min(map(len, both)) > 1:
        if by_seed.keys() == others.keys() and len(by_seed) == len(
            scores
        ) == len(reference):
            gaps = [value - others[seed] for seed, value in by_seed.items()]
            error = statistics.stdev(gaps) / math.sqrt(len(gaps))
            method, degrees = PAIRED, len(gaps) - 1
        else:
            parts = (
                (deviation**2 / len(scores), len(scores)),
                (other_deviation**2 / len(reference), len(reference)),
            )
            total = sum(part for part, _ in parts)
            # Satterthwaite's degrees of freedom.
            squares = sum(part**2 / (count - 1) for part, count in parts)
            degrees = total**2 / squares if squares else math.inf
            error, method = math.sqrt(total), WELCH
    elif len(errors) == 2 and None not in errors:
        error, method, degrees = math.hypot(*errors), HELD_OUT, math.inf
    found = {"difference": mean - other, "error": error, "method": method}
    if error is not None:
        found["chance"] = chance_beyond_limit(degrees)
    return found


def judge(difference: float, error: float | None, expected: str) -> str:
    """Returns a verdict on the sign that the paper found.

    It is `NOT_DISTINGUISHABLE` within two standard errors or without any; else
    `AGREES` or `CONTRADICTS`. The paper's sign is "above" or "below".
    """
    if error is None or abs(difference) <= _LIMIT * error + _ROUNDING:
        return NOT_DISTINGUISHABLE
    return AGREES if (difference > 0) == (expected == "above") else CONTRADICTS


def chance_beyond_limit(degrees: float) -> float:
    """Returns how often a difference of zero is beyond two standard errors.

    For Student's distribution: 0.30 with one degree of freedom (two seeds,
    paired), 0.18 with two, 0.12 with four, 0.05 with many.
    """
    if math.isinf(degrees):
        return float(2 * special.ndtr(-_LIMIT))
    return float(2 * special.stdtr(degrees, -_LIMIT))

"""Whether an answer is what was expected, to a tolerance."""

import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np
from scipy import special

from bert_tf.export.verify.expectation import Expected

_MAX_SHOWN = 60
# Greater tolerances are those of half precisions.
_OF_FULL_PRECISION = 1e-4
# Of logits, which in real models differ by more than their last bits between
# two orders of the same sums, most of all where there is padding.
_LOGITS = "logits"
_TIMES_FOR_LOGITS = 10


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far an answer is from what was expected.

    Attributes:
      largest: Of all numbers, as a share of their scale.
      faults: Sentences without their full stops; none is good.
      num_compared: How many values were looked at, those in doubt left out.
    """

    largest: float = 0.0
    faults: tuple[str, ...] = ()
    num_compared: int = 0


def measure_scales(expected: Iterable[Expected]) -> dict[str, float]:
    """Returns how large the numbers of each output become, at least 1.

    Probabilities end there; scores and embeddings are sums of terms as large
    as the largest of them, whose last bits are lost in all others.
    """
    scales: dict[str, float] = {}
    for one in expected:
        for name, values in one.values.items():
            if values.dtype.kind == "f" and values.size:
                largest = float(np.abs(values).max())
                scales[name] = max(scales.get(name, 1.0), largest)
    return scales


def compare(
    expected: Expected,
    outputs: Mapping[str, np.ndarray],
    tolerance: float,
    scales: Mapping[str, float],
) -> Difference:
    """Compares the outputs of a call.

    Args:
      expected: What they must be.
      outputs: What they are.
      tolerance: How far floating-point numbers may be apart, as a share of
        their scale. Logits may be ten times as far apart,
        if their softmax over the last axis is not.
      scales: What `measure_scales` returns for this and other calls. The scale
        of numbers that are not in it is 1, or each of them where it is above
        1; in half precisions the greatest of them.
    """
    if set(expected.values) != set(outputs):
        return Difference(
            faults=(
                f"it gives {_names(outputs)} in place of "
                f"{_names(expected.values)}",
            )
        )
    largest, faults, num_compared = 0.0, [], 0
    for name, wanted in expected.values.items():
        difference = _compare(
            name,
            wanted,
            outputs[name],
            expected.doubtful.get(name),
            tolerance,
            scales.get(name),
        )
        largest = max(largest, difference.largest)
        faults += difference.faults
        num_compared += difference.num_compared
    return Difference(largest, tuple(faults), num_compared)


def _compare(
    name: str,
    wanted: np.ndarray,
    given: np.ndarray,
    doubtful: np.ndarray | None,
    tolerance: float,
    scale: float | None,
) -> Difference:
    """Compares one output; rows that are in doubt may be anything."""
    # Of no rows nothing else is certain.
    is_empty = not len(wanted) and wanted.ndim == given.ndim
    same_shape = wanted.shape == given.shape or (is_empty and not len(given))
    if wanted.dtype != given.dtype or not same_shape:
        return Difference(
            faults=(f"{name} is {_form(given)}, and should be {_form(wanted)}",)
        )
    rows = np.arange(len(wanted))
    if doubtful is not None:
        rows = rows[~doubtful]
    wanted, given = wanted[rows], given[rows]
    if not wanted.size:
        return Difference()
    if wanted.dtype.kind != "f":
        wrong = wanted != given
        faults = tuple(_describe(name, rows, wanted, given, wrong))
        return Difference(0.0, faults, wanted.size)
    if scale is None:
        # Far from 0 the last bits of float32 are more than 1e-5.
        scale = np.maximum(1, np.abs(wanted))
        if tolerance > _OF_FULL_PRECISION:
            # A small logit is the difference of sums as great as the others.
            scale = scale.max()
    distance = np.abs(given - wanted) / scale
    right = distance <= tolerance  # Of NaN, too, this is false.
    if name.endswith(_LOGITS):
        apart = np.abs(special.softmax(given, -1) - special.softmax(wanted, -1))
        is_near = distance <= _TIMES_FOR_LOGITS * tolerance
        right |= is_near & (apart <= tolerance)
    wrong = ~right
    return Difference(
        float(np.nan_to_num(distance, nan=np.inf).max()),
        tuple(_describe(name, rows, wanted, given, wrong)),
        wanted.size,
    )


def _describe(
    name: str,
    rows: np.ndarray,
    wanted: np.ndarray,
    given: np.ndarray,
    wrong: np.ndarray,
) -> Iterator[str]:
    """Yields what is wrong in the first place where something is."""
    places = np.argwhere(wrong)
    if len(places):
        place = tuple(places[0])
        yield (
            f"{name} is {_show(given[place])} in row {rows[place[0]]}, and "
            f"should be {_show(wanted[place])} ({len(places)} of {wrong.size} "
            "values are wrong)"
        )


def _show(value: object) -> str:
    if isinstance(value, bytes):
        return repr(value.decode("utf-8", "replace")[:_MAX_SHOWN])
    return f"{value:.7g}" if isinstance(value, np.floating) else str(value)


def _form(values: np.ndarray) -> str:
    name = "string" if values.dtype == object else values.dtype.name
    return f"<{name}>{list(values.shape)}"


def _names(values: Mapping[str, object]) -> str:
    return ", ".join(sorted(values)) or "nothing"

"""Compares outputs of an export with reference outputs, and reports on it."""

import dataclasses
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
from scipy import special

from bert_tf.errors import UserError
from bert_tf.export.verify.calls import Answer
from bert_tf.export.verify.calls import Planned
from bert_tf.export.verify.reference import TIMES_FOR_LOGITS
from bert_tf.export.verify.reference import ReferenceOutputs

# The largest allowed difference of numbers: by the precision of an export, or
# the quantization of a .tflite file. The effect of int8 is measured by the
# score on a dev set instead.
TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2}
LITE_TOLERANCES = {"none": 1e-4, "float16": 5e-3}

_MAX_SHOWN = 60
_MAX_FAULTS_OF_CHECK = 3
# Greater tolerances are for half precision.
_OF_FULL_PRECISION = 1e-4
# Logits of real models differ by more than their last bits if sums are computed
# in another order, most of all with padding.
_LOGITS = "logits"


@dataclasses.dataclass(frozen=True)
class Check:
    """One check of an export.

    Attributes:
      name: The name of the check.
      detail: The result in words.
      faults: The faults, in sentences without periods.
      largest: The largest difference of numbers, or None.
    """

    name: str
    detail: str
    faults: tuple[str, ...] = ()
    largest: float | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """All checks of an export.

    Attributes:
      directory: The path of the export.
      source: The path of the model.
      checks: The checks in their order.
      latencies: The median latency in milliseconds for each warm-up request of
        one row; empty if none was timed.
    """

    directory: str
    source: str
    checks: tuple[Check, ...]
    latencies: tuple[float, ...] = ()

    @property
    def faults(self) -> list[str]:
        """All faults, each with the name of its check."""
        return [
            f"{check.name}: {fault}"
            for check in self.checks
            for fault in check.faults
        ]

    def text(self) -> str:
        """Returns a line for each check, and one more for each fault."""
        width = max(len(check.name) for check in self.checks)
        lines = [f"{self.directory}, compared with {self.source}:"]
        for check in self.checks:
            verdict = "WRONG" if check.faults else "ok"
            lines.append(f"  {verdict:5}  {check.name:{width}}  {check.detail}")
            shown = check.faults[:_MAX_FAULTS_OF_CHECK]
            lines += [f"         {fault}." for fault in shown]
            more = len(check.faults) - len(shown)
            if more:
                lines.append(f"         And {more} more faults.")
        return "\n".join(lines) + "\n"

    def require_correct(self) -> None:
        """Raises a `UserError` of one sentence if there are faults."""
        faults = self.faults
        if faults:
            more = len(faults) - 1
            others = f" (and {more} more, see the report)" if more else ""
            raise UserError(
                f"The export in {self.directory} differs from {self.source}: "
                f"{faults[0]}{others}."
            )


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference between an answer and its reference outputs.

    Attributes:
      largest: The largest difference of numbers, relative to their scale.
      faults: Sentences without periods; empty if there is no fault.
      num_compared: The number of values compared, without doubtful ones.
    """

    largest: float = 0.0
    faults: tuple[str, ...] = ()
    num_compared: int = 0


def measure_scales(expected: Iterable[ReferenceOutputs]) -> dict[str, float]:
    """Returns the largest absolute value of each output, at least 1.

    1 is the scale of probabilities. Scores and embeddings are sums of terms as
    large as the largest of them, so all have its rounding error.
    """
    scales: dict[str, float] = {}
    for one in expected:
        for name, values in one.values.items():
            if values.dtype.kind == "f" and values.size:
                largest = float(np.abs(values).max())
                scales[name] = max(scales.get(name, 1.0), largest)
    return scales


def compare(
    expected: ReferenceOutputs,
    outputs: Mapping[str, np.ndarray],
    tolerance: float,
    scales: Mapping[str, float],
) -> Difference:
    """Compares the outputs of a call.

    Args:
      expected: The reference outputs.
      outputs: The actual outputs.
      tolerance: The largest allowed difference of floating-point numbers,
        relative to their scale. Logits may differ by ten times as much if
        their softmax over the last axis does not.
      scales: The result of `measure_scales` for this and other calls. Outputs
        without a scale are compared relative to each number, or to 1 if it is
        smaller; in half precision relative to the greatest number.
    """
    if set(expected.values) != set(outputs):
        return Difference(
            faults=(
                f"it returns {_names(outputs)} instead of "
                f"{_names(expected.values)}",
            )
        )
    largest, faults, num_compared = 0.0, [], 0
    for name, values in expected.values.items():
        difference = _compare(
            name,
            values,
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
    expected: np.ndarray,
    actual: np.ndarray,
    doubtful: np.ndarray | None,
    tolerance: float,
    scale: float | None,
) -> Difference:
    """Compares one output, except for doubtful rows."""
    # The other axes of an empty batch may have any size.
    is_empty = not len(expected) and expected.ndim == actual.ndim
    same_shape = expected.shape == actual.shape or (
        is_empty and not len(actual)
    )
    if expected.dtype != actual.dtype or not same_shape:
        fault = f"{name} is {_form(actual)}, and should be {_form(expected)}"
        return Difference(faults=(fault,))
    rows = np.arange(len(expected))
    if doubtful is not None:
        rows = rows[~doubtful]
    expected, actual = expected[rows], actual[rows]
    if not expected.size:
        return Difference()
    if expected.dtype.kind != "f":
        wrong = expected != actual
        faults = tuple(_describe(name, rows, expected, actual, wrong))
        return Difference(0.0, faults, expected.size)
    if scale is None:
        # For numbers far from 0, the last bits of float32 exceed 1e-5.
        scale = np.maximum(1, np.abs(expected))
        if tolerance > _OF_FULL_PRECISION:
            # A small logit is the difference of sums as great as the others.
            scale = scale.max()
    distance = np.abs(actual - expected) / scale
    correct = distance <= tolerance  # False for NaN.
    if name.endswith(_LOGITS):
        apart = np.abs(
            special.softmax(actual, -1) - special.softmax(expected, -1)
        )
        is_near = distance <= TIMES_FOR_LOGITS * tolerance
        correct |= is_near & (apart <= tolerance)
    wrong = ~correct
    return Difference(
        float(np.nan_to_num(distance, nan=np.inf).max()),
        tuple(_describe(name, rows, expected, actual, wrong)),
        expected.size,
    )


def _describe(
    name: str,
    rows: np.ndarray,
    expected: np.ndarray,
    actual: np.ndarray,
    wrong: np.ndarray,
) -> Iterator[str]:
    """Yields a fault that describes the first wrong value, if any."""
    places = np.argwhere(wrong)
    if len(places):
        place = tuple(places[0])
        yield (
            f"{name} is {_show(actual[place])} in row {rows[place[0]]}, and "
            f"should be {_show(expected[place])} ({len(places)} of "
            f"{wrong.size} values are wrong)"
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


def check_answers(
    planned: Sequence[Planned],
    answers: Sequence[Answer],
    client: str,
    tolerance: float,
) -> list[Check]:
    """Compares the answers of an export; returns a check for each signature.

    Args:
      planned: The calls with their reference outputs.
      answers: The answers to the calls.
      client: The name of the client that made the calls.
      tolerance: The largest allowed difference of numbers.
    """
    by_signature: dict[str, list[tuple[Planned, Answer]]] = {}
    for one, answer in zip(planned, answers, strict=True):
        pairs = by_signature.setdefault(one.call.signature, [])
        pairs.append((one, answer))
    scales = measure_scales(one.expected for one in planned)
    checks = []
    for signature, pairs in by_signature.items():
        faults: list[str] = []
        largest, num_compared = 0.0, 0
        for one, answer in pairs:
            if answer.error is None:
                difference = compare(
                    one.expected, answer.outputs, tolerance, scales
                )
            else:
                difference = Difference(faults=(f"it fails: {answer.error}",))
            faults += [f"{one.description}: {x}" for x in difference.faults]
            largest = max(largest, difference.largest)
            num_compared += difference.num_compared
        if not num_compared and not faults:
            faults.append("nothing was compared")
        checks.append(
            Check(
                f"{signature} by {client}",
                f"{len(pairs)} calls, {num_compared:,} values, "
                f"largest difference {largest:.2g}",
                tuple(faults),
                largest,
            )
        )
    return checks


def find_failures(
    planned: Sequence[Planned], answers: Sequence[Answer]
) -> list[str]:
    """Returns a fault for each call that failed."""
    return [
        f"{one.description} fails: {answer.error}"
        for one, answer in zip(planned, answers, strict=True)
        if answer.error is not None
    ]

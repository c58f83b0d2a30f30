"""Verifies that an export returns what its model computes.

The export is loaded from its files and runs on texts chosen to reveal errors.
Its answers are compared with the answers that `reference` computes from the
model directory. The server's LiteRT engine runs the files in litert/. Files in
float32 must return the outputs of the model. For files with quantized weights,
differences are only reported.
"""

import dataclasses
import functools
import os
import platform
import statistics
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from absl import logging
from scipy import special

from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts
from bert_tf.export import serving_module
from bert_tf.export.artifact import Artifact
from bert_tf.export.heads.head import ServingHead
from bert_tf.export.serving_module import SERVING
from bert_tf.export.verify import reference as reference_lib
from bert_tf.export.verify.reference import TIMES_FOR_LOGITS
from bert_tf.export.verify.reference import Call
from bert_tf.export.verify.reference import Expected
from bert_tf.export.verify.reference import Reference
from bert_tf.io import files
from bert_tf.io import stored_files
from bert_tf.io import terminal
from bert_tf.serving import errors
from bert_tf.serving.litert import LitertEngine
from bert_tf.serving.saved_model import SavedModelEngine
from bert_tf.serving.servable import Arrays
from bert_tf.serving.servable import Servable
from bert_tf.text.vocabulary import Vocabulary

# The largest allowed difference of numbers, by the precision of a SavedModel or
# the quantization of a .tflite file. Int8 has no limit: its reports state the
# share of equal decisions and the score on a dev set.
TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2, "none": 1e-4, "float16": 5e-3}

# A `Decide` function returns the decisions in an output, such as its argmax.
Decide = Callable[[np.ndarray], np.ndarray]
# Outputs that are decisions, for reports of how many equal the model's.
_DECISIONS: Mapping[str, Decide] = dict.fromkeys(
    ("answer", "index", "label", "labels", "tags", "tokens"), lambda x: x
)
_MAX_SHOWN = 60
_MAX_FAULTS_OF_CHECK = 3
# Outputs with this ending may differ by `TIMES_FOR_LOGITS` times the tolerance,
# because padding changes the order in which their sums are rounded.
_LOGITS = "logits"


@dataclasses.dataclass(frozen=True)
class Answer:
    """The outputs of a call and the times of repetitions, or an error."""

    outputs: Arrays
    error: str | None = None
    milliseconds: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Check:
    """One check of an export.

    Attributes:
      detail: The result in words.
      faults: Error messages without final periods; empty if the check passed.
      largest: The largest difference from an expected number, or None.
    """

    name: str
    detail: str
    faults: tuple[str, ...] = ()
    largest: float | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """All checks of an export, in the order in which the report lists them.

    Attributes:
      source: The path of the model.
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
        return [f"{one.name}: {x}" for one in self.checks for x in one.faults]

    def text(self) -> str:
        """Returns a line for each check, and lines for its first faults."""
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

    def to_json(self, lengths: Sequence[int]) -> dict[str, Any]:
        """Returns the part of the report for the model card.

        `lengths` has the row length of each timed warm-up request.
        """
        return {
            "latency": {
                "machine": f"{os.cpu_count()} cores, {platform.machine()}",
                "p50_ms": [
                    {"length": length, "rows": 1, "milliseconds": value}
                    for length, value in zip(
                        lengths, self.latencies, strict=True
                    )
                ],
            },
            "verification": [
                {
                    "check": check.name,
                    "detail": check.detail,
                    "largest_difference": check.largest,
                }
                for check in self.checks
            ],
        }

    def require_correct(self) -> None:
        """Raises a `UserError` of one sentence if there are faults."""
        if faults := self.faults:
            more = len(faults) - 1
            others = f" (and {more} more, see the report)" if more else ""
            raise UserError(
                f"The export in {self.directory} differs from {self.source}: "
                f"{faults[0]}{others}."
            )


def examine(
    directory: str,
    artifact: Artifact,
    head: ServingHead,
    model: keras.Model,
    source: str,
    num_timings: int = 0,
    exact_litert: bytes | None = None,
) -> Report:
    """Compares a version directory, published or not, with its model.

    The model is in its training form, built with `reference.OUTPUTS`; `source`
    is its path, for the report. Each warm-up request of one row is timed
    `num_timings` times. `exact_litert` is the model as a .tflite file in
    float32, to check an export with litert/.

    Raises:
      UserError: If the directory has no valid SavedModel.
    """
    signatures = artifacts.read_signatures(directory)
    checks = [_check_vocabulary(directory, head.tokenizer.vocabulary)]
    names = {SERVING, *(() if artifact.ids_only else serving_module.OF_STRINGS)}
    if missing := sorted(names - set(signatures)):
        # Stop here: failing calls would hide that signatures are missing.
        fault = f"there is no {' and no '.join(missing)}"
        shown = ", ".join(sorted(signatures))
        checks.append(Check("signatures", shown, (fault,)))
        return Report(directory, source, tuple(checks))
    tolerance = least = TOLERANCES[artifact.precision]
    if artifact.litert is not None:
        least = max(tolerance, TOLERANCES["none"])
    # Silence a warning for each test text that is too long.
    with terminal.below(logging.ERROR):
        reference = Reference(head, model, least, artifact.ids_only)
        calls = list(reference.plan(signatures))
    path = os.path.join(directory, artifacts.WARMUP_FILE)
    warmups = reference_lib.read_requests(path, num_timings)
    answers = call(directory, [*calls, *warmups])
    of_calls, of_warmups = answers[: len(calls)], answers[len(calls) :]
    checks += check_answers(calls, of_calls, "TensorFlow", tolerance)
    checks.append(_check_warmups("warm-up", warmups, of_warmups))
    if artifact.litert is not None:
        checks += examine_litert(
            directory, artifact.litert, calls, warmups, exact_litert
        )
    return Report(directory, source, tuple(checks), _medians(of_warmups))


def examine_litert(
    directory: str,
    quantization: str,
    calls: Sequence[Call],
    warmups: Sequence[Call],
    exact: bytes | None = None,
) -> list[Check]:
    """Verifies the litert/ part of an export with the planned calls.

    Warm-up requests with `repeats` are timed. `exact` is the float32 .tflite
    file of the model, to check quantized exports.

    Raises:
      UserError: If a file of the export cannot be loaded.
    """
    # The LiteRT engine lacks the signature `attention`, so do not call it.
    calls = [x for x in calls if x.signature != serving_module.ATTENTION]
    name, tolerance = f"LiteRT ({quantization})", TOLERANCES["none"]
    load = LitertEngine().load
    checks = []
    if quantization != "none":
        if exact is not None:
            load_exact = functools.partial(load, content=exact)
            answers = call(directory, calls, load_exact)
            checks += check_answers(
                calls, answers, "LiteRT (float32)", tolerance
            )
        calls = [x for x in calls if x.signature == SERVING]
        tolerance = None
    answers = call(directory, [*calls, *warmups], load)
    of_calls, of_warmups = answers[: len(calls)], answers[len(calls) :]
    checks += check_answers(calls, of_calls, name, tolerance)
    check = _check_warmups(f"warm-up by {name}", warmups, of_warmups)
    if times := _medians(of_warmups):
        detail = f", one row takes {min(times):.3g} to {max(times):.3g} ms"
        check = dataclasses.replace(check, detail=check.detail + detail)
    return [*checks, check]


def call(
    directory: str,
    calls: Sequence[Call],
    load: Callable[[str, int, str], Servable] | None = None,
) -> list[Answer]:
    """Returns an engine's answers to calls; by default, TensorFlow runs them.

    Raises:
      UserError: If the export cannot be loaded.
    """
    load = load or SavedModelEngine().load
    try:
        servable = load("export", 1, directory)
    except errors.RequestError as error:
        raise UserError(
            f"{directory} must be a SavedModel that TensorFlow can load. "
            f"Received: {error}."
        ) from error

    def run(call: Call) -> Arrays:
        signature = servable.signatures[call.signature]
        return servable.run(signature, call.inputs, tuple(signature.outputs))

    answers = []
    for one in calls:
        try:
            outputs = run(one)
        except Exception as error:  # noqa: BLE001  # Servers catch all, too.
            reply = errors.from_exception(error)
            answers.append(Answer({}, f"{reply.code_name}: {reply.message}"))
            continue
        times = []
        for _ in range(one.repeats):
            start = time.perf_counter()
            run(one)
            times.append((time.perf_counter() - start) * 1000)
        answers.append(Answer(outputs, None, tuple(times)))
    servable.close()
    return answers


def _medians(answers: Sequence[Answer]) -> tuple[float, ...]:
    """Returns the median milliseconds of each timed call."""
    times = (answer.milliseconds for answer in answers)
    return tuple(statistics.median(one) for one in times if one)


def _check_vocabulary(directory: str, vocabulary: Vocabulary) -> Check:
    path = os.path.join(directory, artifacts.VOCAB_FILE)
    files.require_file(path, "--export_dir")
    is_same = files.read_bytes(path) == vocabulary.to_text().encode("utf-8")
    return Check(
        "vocabulary",
        artifacts.VOCAB_FILE,
        () if is_same else ("it is not the vocabulary of the model",),
    )


def _check_warmups(
    name: str, calls: Sequence[Call], answers: Sequence[Answer]
) -> Check:
    # TensorFlow Serving rejects a model if its warm-up fails.
    faults = [
        f"{one.description} fails: {answer.error}"
        for one, answer in zip(calls, answers, strict=True)
        if answer.error is not None
    ]
    if not calls:
        faults.append("there is no request")
    return Check(name, f"{len(calls)} requests", tuple(faults))


def check_files(directory: str) -> Check:
    """Compares the files with the checksums in the model card."""
    path = os.path.join(directory, artifacts.CARD_FILE)
    checksums = files.read_json_object(path).get("sha256")
    if not isinstance(checksums, dict):
        raise UserError(f'{path} must have checksums under "sha256".')
    faults = []
    for name, expected in checksums.items():
        file = os.path.join(directory, name)
        if not stored_files.is_inside(name):
            faults.append(f"{name} is not a file of the export")
        elif not stored_files.exists(file):
            faults.append(f"{name} is missing")
        elif files.sha256(file) != expected:
            faults.append(f"{name} was changed after the export")
    return Check("files", f"{len(checksums)} with checksums", tuple(faults))


def check_answers(
    calls: Sequence[Call],
    answers: Sequence[Answer],
    client: str,
    tolerance: float | None,
) -> list[Check]:
    """Compares the answers of an export; returns a check for each signature.

    `client` is the name of the client that made the calls, and `tolerance` is
    as for `Comparison`.
    """
    scales = measure_scales(one.expected for one in calls)
    found: dict[str, Comparison] = {}
    for one, answer in zip(calls, answers, strict=True):
        comparison = found.setdefault(
            one.signature, Comparison(tolerance, scales)
        )
        if answer.error is None:
            comparison.add(one.description, one.expected, answer.outputs)
        else:
            comparison.num_calls += 1
            comparison.faults.append(
                f"{one.description}: it fails: {answer.error}"
            )
    return [x.check(f"{name} by {client}") for name, x in found.items()]


def measure_scales(expected: Iterable[Expected]) -> dict[str, float]:
    """Returns the largest absolute value of each output, at least 1.

    Probabilities have the scale 1. Scores, logits and embeddings are sums of
    large terms, so even their small values can have large rounding errors.
    """
    scales: dict[str, float] = {}
    for one in expected:
        for name, values in one.values.items():
            if values.dtype.kind == "f" and values.size:
                largest = float(np.abs(values).max())
                scales[name] = max(scales.get(name, 1.0), largest)
    return scales


class Comparison:
    """Compares answers with the expected outputs, call by call.

    Args:
      tolerance: The largest allowed difference of floating-point numbers,
        relative to their scale. Logits may differ by ten times the tolerance if
        their softmax over the last axis is within the tolerance. With None,
        differences are only measured.
      scales: The result of `measure_scales` for all calls.
      decisions: Output name to the function that reads the output's decisions.

    Attributes:
      num_calls: The number of calls.
      num_compared: The number of compared values; doubtful values are skipped.
      largest: The largest difference of numbers, relative to their scale.
      faults: Error messages without final periods; empty if there is no fault.
      equal: Output name to <int>[2], the number of decisions that equal the
        model's decisions and the number of all decisions.
    """

    def __init__(
        self,
        tolerance: float | None,
        scales: Mapping[str, float],
        decisions: Mapping[str, Decide] = _DECISIONS,
    ) -> None:
        self._tolerance = np.inf if tolerance is None else tolerance
        self._scales = scales
        self._decisions = decisions
        self.num_calls = self.num_compared = 0
        self.largest = 0.0
        self.faults: list[str] = []
        self.equal: dict[str, np.ndarray] = {}

    def add(self, name: str, expected: Expected, outputs: Arrays) -> None:
        """Compares the outputs of a call; `name` is its name in faults."""
        self.num_calls += 1
        values = expected.values
        faults = []
        if set(values) != set(outputs):
            actual, right = (
                ", ".join(sorted(x)) or "nothing" for x in (outputs, values)
            )
            faults.append(f"it returns {actual} instead of {right}")
        else:
            for key, value in values.items():
                self._count_equal(key, value, outputs[key])
                if value.dtype.kind == "f" or self._tolerance < np.inf:
                    doubtful = expected.doubtful.get(key, np.False_)
                    faults += self._compare(key, value, outputs[key], doubtful)
        self.faults += [f"{name}: {fault}" for fault in faults]

    def check(self, name: str) -> Check:
        """Returns the comparison as a check of the report."""
        detail = f"{self.num_calls} calls, "
        faults = self.faults
        if self._tolerance < np.inf:
            detail += f"{self.num_compared:,} values, "
            if not self.num_compared and not faults:
                faults = ["nothing was compared"]
        detail += f"largest difference {self.largest:.2g}"
        num_equal, count = sum(self.equal.values(), np.zeros(2, int))
        if count and self._tolerance == np.inf:
            detail += (
                f", {num_equal / count:.2%} of {count} decisions agree with "
                "the model"
            )
        return Check(name, detail, tuple(faults), self.largest)

    def _count_equal(
        self, name: str, expected: np.ndarray, actual: np.ndarray
    ) -> None:
        # Skip arrays of different shapes, which occur for empty batches.
        if name not in self._decisions or expected.shape != actual.shape:
            return
        first, second = map(self._decisions[name], (expected, actual))
        is_choice = np.ones(first.shape, bool)
        if first.dtype == object:  # Padding is no decision.
            is_choice = (first != b"") | (second != b"")
        counts = (is_choice & (first == second)).sum(), is_choice.sum()
        self.equal[name] = self.equal.get(name, 0) + np.array(counts)

    def _compare(
        self,
        name: str,
        expected: np.ndarray,
        actual: np.ndarray,
        doubtful: np.ndarray,
    ) -> Iterator[str]:
        """Yields the fault of an output, if any; ignores doubtful rows."""
        # If both batches are empty, accept any size of the other axes.
        no_rows = not len(expected) and not len(actual)
        is_empty = no_rows and expected.ndim == actual.ndim
        if expected.dtype != actual.dtype or not (
            is_empty or expected.shape == actual.shape
        ):
            yield (
                f"{name} is {_form(actual)}, and should be {_form(expected)}"
            )
            return
        (rows,) = np.nonzero(~np.broadcast_to(doubtful, len(expected)))
        expected, actual = expected[rows], actual[rows]
        if not expected.size:
            return
        wrong = expected != actual
        if expected.dtype.kind == "f":
            distance = np.abs(actual - expected) / self._scales.get(name, 1.0)
            wrong = ~(distance <= self._tolerance)  # True for NaN.
            if name.endswith(_LOGITS):
                apart = np.abs(
                    special.softmax(actual, -1) - special.softmax(expected, -1)
                )
                is_near = distance <= TIMES_FOR_LOGITS * self._tolerance
                wrong &= ~(is_near & (apart <= self._tolerance))
            largest = np.nan_to_num(distance, nan=np.inf).max()
            self.largest = max(self.largest, float(largest))
        self.num_compared += expected.size
        places = np.argwhere(wrong)
        if len(places):
            place = tuple(places[0])
            yield (
                f"{name} is {_show(actual[place])} in row {rows[place[0]]}, "
                f"and should be {_show(expected[place])} ({len(places)} of "
                f"{wrong.size} values are wrong)"
            )


def _show(value: object) -> str:
    if isinstance(value, bytes):
        return repr(value.decode("utf-8", "replace")[:_MAX_SHOWN])
    return f"{value:.7g}" if isinstance(value, np.floating) else str(value)


def _form(values: np.ndarray) -> str:
    name = "string" if values.dtype == object else values.dtype.name
    return f"<{name}>{list(values.shape)}"

"""Verifies the litert/ part of an export with the LiteRT engine of the server.

The engine runs as in run/serve.py --engine=litert. In float32 its outputs must
equal the model's; with quantized weights the differences are only reported.
"""

import statistics
import time
from collections.abc import Sequence

import numpy as np

from bert_tf.export.verify import calls as verify_calls
from bert_tf.export.verify import compare as comparison
from bert_tf.export.verify.calls import Planned
from bert_tf.export.verify.clients import Answer
from bert_tf.export.verify.clients import Call
from bert_tf.export.verify.reference import ReferenceOutputs
from bert_tf.export.verify.report import Check
from bert_tf.serving import errors
from bert_tf.serving.litert import LitertEngine

# The largest allowed difference from the model in float32.
TOLERANCE = 1e-4
# Outputs that are decisions; all others are numbers or offsets of words.
_CHOICES = ("answer", "index", "label", "labels", "tags", "tokens")
# Signatures that the engine lacks.
_NOT_OFFERED = (verify_calls.ATTENTION,)


class InLitert:
    """Calls the litert/ part of an export in this process.

    Args:
      name: The name of the client in reports.
      directory: The version directory.
      content: The .tflite file, if not the one in the directory.
    """

    def __init__(
        self, name: str, directory: str, content: bytes | None = None
    ) -> None:
        self.name = name
        engine = LitertEngine()
        self._servable = (
            engine.load("model", 1, directory)
            if content is None
            else engine.load_content("model", 1, directory, content)
        )

    def send(self, calls: Sequence[Call]) -> list[Answer]:
        """Returns the answer to each call."""
        return [self._send(call) for call in calls]

    def _send(self, call: Call) -> Answer:
        try:
            outputs = self._run(call)
        except Exception as error:  # noqa: BLE001  # As the server does.
            answer = errors.from_exception(error)
            return Answer({}, f"{answer.code_name}: {answer.message}")
        times = []
        for _ in range(call.repeats):
            start = time.perf_counter()
            self._run(call)
            times.append((time.perf_counter() - start) * 1000)
        return Answer(outputs, None, tuple(times))

    def _run(self, call: Call) -> dict[str, np.ndarray]:
        signature = self._servable.signatures[call.signature]
        return self._servable.run(
            signature, call.inputs, tuple(signature.outputs)
        )


def examine(
    directory: str,
    quantization: str,
    planned: Sequence[Planned],
    warmups: Sequence[Planned],
    exact: bytes | None = None,
) -> list[Check]:
    """Verifies the litert/ part of an export with the planned calls.

    Args:
      directory: The version directory.
      quantization: How the weights are quantized, one of
        `flags.export.LITERT_QUANTIZATIONS`.
      planned: The calls with their reference outputs.
      warmups: Warm-up requests, of which some are timed.
      exact: The .tflite file in float32, if it is known and not the one in the
        directory.

    Raises:
      RequestError: If a part cannot be loaded.
    """
    planned = [x for x in planned if x.call.signature not in _NOT_OFFERED]
    checks = []
    rounded = InLitert(f"LiteRT ({quantization})", directory)
    if quantization == "none":
        exactly, exact = rounded, None
    elif exact is not None:
        exactly = InLitert("LiteRT (float32)", directory, exact)
    else:
        exactly = None
    if exactly is not None:
        answers = exactly.send([x.call for x in planned])
        checks += comparison.check_answers(
            planned, answers, exactly.name, TOLERANCE
        )
    if exactly is not rounded:
        checks.append(_measure(rounded, planned))
    checks.append(_time(rounded, warmups))
    return checks


def _measure(client: InLitert, planned: Sequence[Planned]) -> Check:
    """Reports the difference of numbers and the share of equal decisions."""
    planned = [
        x
        for x in planned
        if x.call.signature == verify_calls.SERVING and x.expected is not None
    ]
    scales = comparison.measure_scales(x.expected for x in planned)
    faults: list[str] = []
    largest, num_equal, num_choices = 0.0, 0, 0
    answers = client.send([x.call for x in planned])
    for one, answer in zip(planned, answers, strict=True):
        if answer.error is not None:
            faults.append(f"{one.description}: it fails: {answer.error}")
            continue
        difference = comparison.compare(
            ReferenceOutputs(_numbers(one.expected.values)),
            _numbers(answer.outputs),
            np.inf,
            scales,
        )
        faults += [f"{one.description}: {x}" for x in difference.faults]
        largest = max(largest, difference.largest)
        equal, choices = _count_equal(one.expected.values, answer.outputs)
        num_equal += equal
        num_choices += choices
    detail = f"{len(planned)} calls, largest difference {largest:.2g}"
    if num_choices:
        detail += (
            f", {num_equal / num_choices:.2%} of {num_choices} decisions agree "
            "with the model"
        )
    return Check(
        f"{verify_calls.SERVING} by {client.name}",
        detail,
        tuple(faults),
        largest,
    )


def _count_equal(
    expected: dict[str, np.ndarray], actual: dict[str, np.ndarray]
) -> tuple[int, int]:
    """Returns the number of equal decisions, and that of all decisions."""
    num_equal = num_choices = 0
    for name in set(_CHOICES) & set(expected):
        # The axes of an empty batch may differ.
        if not expected[name].size:
            continue
        # Padding is no decision.
        is_choice = (expected[name] != b"") | (actual[name] != b"")
        is_equal = expected[name] == actual[name]
        num_equal += np.count_nonzero(is_equal & is_choice)
        num_choices += np.count_nonzero(is_choice)
    return num_equal, num_choices


def _numbers(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: x for name, x in values.items() if x.dtype.kind == "f"}


def _time(client: InLitert, warmups: Sequence[Planned]) -> Check:
    """Reports the latency of one row, and failed warm-up requests."""
    answers = client.send([x.call for x in warmups])
    faults = comparison.find_failures(warmups, answers)
    medians = [
        statistics.median(answer.milliseconds)
        for answer in answers
        if answer.milliseconds
    ]
    detail = f"{len(warmups)} requests"
    if medians:
        detail += f", one row takes {min(medians):.3g} to {max(medians):.3g} ms"
    return Check(f"warm-up by {client.name}", detail, tuple(faults))

"""Whether LiteRT says what a model says, behind the engine of the server.

The parts in litert/ are asked as run/serve.py --engine=litert asks them. With
the model in float32 they must be right; what rounded weights say is measured,
and people judge it.
"""

import statistics
import time
from collections.abc import Sequence

import numpy as np

from bert_tf.export.verify import calls as replay_plan
from bert_tf.export.verify import compare as comparison
from bert_tf.export.verify import judging
from bert_tf.export.verify.calls import Planned
from bert_tf.export.verify.clients import Answer
from bert_tf.export.verify.clients import Call
from bert_tf.export.verify.clients import Client
from bert_tf.export.verify.expectation import Expected
from bert_tf.export.verify.report import Check
from bert_tf.serving import errors
from bert_tf.serving.litert import LitertEngine

# How far numbers of float32 may be from the model's.
TOLERANCE = 1e-4
# Outputs that say what was chosen; all others are numbers, or places of words.
_CHOICES = ("answer", "index", "label", "labels", "tags", "tokens")
# What only the weights of the SavedModel can answer.
_NOT_OFFERED = (replay_plan.ATTENTION,)


class InLitert(Client):
    """Asks the parts in litert/, in this process.

    Args:
      name: What reports call it.
      directory: The version directory.
      content: The model's file, if not that in the folder.
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

    def ask(self, calls: Sequence[Call]) -> list[Answer]:
        return [self._ask(call) for call in calls]

    def _ask(self, call: Call) -> Answer:
        try:
            outputs = self._run(call)
        except Exception as error:  # noqa: BLE001  # As a server answers it.
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
    """Asks the parts in litert/ what was planned for the whole.

    Args:
      directory: The version directory.
      quantization: How the weights are kept, one of
        `run_config.export.LITERT_QUANTIZATIONS`.
      planned: The calls, and what they must give.
      warmups: Warm-up requests, of which some are timed.
      exact: The model's file in float32, where it is known and not that in
        the folder.

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
        answers = exactly.ask([x.call for x in planned])
        checks += judging.judge(planned, answers, exactly, TOLERANCE)
    if exactly is not rounded:
        checks.append(_measure(rounded, planned))
    checks.append(_time(rounded, warmups))
    return checks


def _measure(client: Client, planned: Sequence[Planned]) -> Check:
    """Says how far numbers are off, and how many choices are the same."""
    planned = [
        x
        for x in planned
        if x.call.signature == replay_plan.SERVING and x.expected is not None
    ]
    scales = comparison.measure_scales(x.expected for x in planned)
    faults: list[str] = []
    largest, num_equal, num_choices = 0.0, 0, 0
    answers = client.ask([x.call for x in planned])
    for one, answer in zip(planned, answers, strict=True):
        if answer.error is not None:
            faults.append(f"{one.what}: it fails: {answer.error}")
            continue
        difference = comparison.compare(
            Expected(_numbers(one.expected.values)),
            _numbers(answer.outputs),
            np.inf,
            scales,
        )
        faults += [f"{one.what}: {x}" for x in difference.faults]
        largest = max(largest, difference.largest)
        equal, choices = _count_equal(one.expected.values, answer.outputs)
        num_equal += equal
        num_choices += choices
    detail = f"{len(planned)} calls, largest difference {largest:.2g}"
    if num_choices:
        detail += (
            f", {num_equal / num_choices:.2%} of {num_choices} choices are "
            "the model's"
        )
    return Check(
        f"{replay_plan.SERVING} by {client.name}",
        detail,
        tuple(faults),
        largest,
    )


def _count_equal(
    wanted: dict[str, np.ndarray], given: dict[str, np.ndarray]
) -> tuple[int, int]:
    """Returns how many choices are the same, and how many there are."""
    num_equal = num_choices = 0
    for name in set(_CHOICES) & set(wanted):
        # An empty batch has no choices, and other axes of any length.
        if not wanted[name].size:
            continue
        # What fills rows up is nobody's choice.
        is_choice = (wanted[name] != b"") | (given[name] != b"")
        is_equal = wanted[name] == given[name]
        num_equal += np.count_nonzero(is_equal & is_choice)
        num_choices += np.count_nonzero(is_choice)
    return num_equal, num_choices


def _numbers(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: x for name, x in values.items() if x.dtype.kind == "f"}


def _time(client: Client, warmups: Sequence[Planned]) -> Check:
    """Says what one row takes, and which warm-up requests fail."""
    answers = client.ask([x.call for x in warmups])
    faults = [
        f"{one.what} fails: {answer.error}"
        for one, answer in zip(warmups, answers, strict=True)
        if answer.error is not None
    ]
    medians = [
        statistics.median(answer.milliseconds)
        for answer in answers
        if answer.milliseconds
    ]
    detail = f"{len(warmups)} requests"
    if medians:
        detail += f", one row takes {min(medians):.3g} to {max(medians):.3g} ms"
    return Check(f"warm-up by {client.name}", detail, tuple(faults))

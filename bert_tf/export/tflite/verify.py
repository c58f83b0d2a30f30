"""Whether a .tflite file says what its model says.

Shapes:
  R: rows of a call.
"""

import dataclasses
import os
from collections.abc import Iterator
from collections.abc import Mapping

import numpy as np

from bert_tf.errors import UserError
from bert_tf.export.graph_file import Signature
from bert_tf.export.tflite import agreement
from bert_tf.export.tflite import convert as conversion
from bert_tf.export.tflite import ids_function
from bert_tf.export.tflite import text_expectations
from bert_tf.export.tflite.build import Build
from bert_tf.export.verify import calls as replay_plan
from bert_tf.export.verify import compare as comparison
from bert_tf.export.verify import expectation
from bert_tf.export.verify import registry as expectation_registry
from bert_tf.export.verify.expectation import Expectation
from bert_tf.export.verify.expectation import Expected
from bert_tf.inference.lite_model import LiteModel

# How far numbers may be from the model's. What int8 does to them is for the
# score on a dev set to judge, not for a number.
TOLERANCES = {"none": 1e-4, "float16": 5e-3}
# How near two numbers are that int8 may put in another order.
_CLOSE_IN_INT8 = 0.05
# Rows of each of the calls, as large models take a second for some.
_MAX_ROWS = 8

_Arrays = Mapping[str, np.ndarray]
_Call = tuple[_Arrays, Expected]


@dataclasses.dataclass(frozen=True)
class Verification:
    """What became of the comparison of a file with its model.

    Attributes:
      num_calls: How often the file was called.
      num_values: How many numbers were compared.
      largest_difference: Of all of them; relative where they are above 1, and
        but for float32 relative to the largest.
      tolerance: How large it may be; None in int8.
      agreement: What `agreement.measure` returns.
    """

    num_calls: int
    num_values: int
    largest_difference: float
    tolerance: float | None
    agreement: Mapping[str, float]

    def text(self) -> str:
        """Returns a line for people."""
        said = "".join(
            f", {name} {value:.4g}" for name, value in self.agreement.items()
        )
        return (
            f"{self.num_calls} calls, {self.num_values:,} values, largest "
            f"difference {self.largest_difference:.2g}{said}"
        )


def verify(content: bytes, build: Build) -> Verification:
    """Compares a file with its model, as the library computes it.

    Args:
      content: The file.
      build: What it is to be.

    Raises:
      UserError: If it says something else than the model.
    """
    takes_text = build.config.input == "text"
    model = LiteModel(content, os.cpu_count() or 1, takes_text)
    tolerance = TOLERANCES.get(build.quantization)
    expected = _expectation(build, model, tolerance or _CLOSE_IN_INT8)
    calls = list(
        _calls_of_text(expected, build)
        if takes_text
        else _calls_of_ids(expected, build)
    )
    answers = [_run(model, inputs) for inputs, _ in calls]
    wanted = [one for _, one in calls]
    differences = [
        _compare(one, answer, tolerance)
        for one, answer in zip(wanted, answers, strict=True)
    ]
    faults = [fault for one in differences for fault in one.faults]
    if faults:
        raise UserError(
            "The .tflite file must say what the model says"
            f"{'' if tolerance is None else f', to within {tolerance:g}'}. "
            f"Received: {faults[0]}; try another --quantization."
        )
    return Verification(
        num_calls=len(calls),
        num_values=sum(one.num_compared for one in differences),
        largest_difference=max(one.largest for one in differences),
        tolerance=tolerance,
        agreement=agreement.measure(
            [one.values for one in wanted],
            answers,
            getattr(build.head, "problem_type", None) == "multi_label",
        ),
    )


def _expectation(
    build: Build, model: LiteModel, tolerance: float
) -> Expectation:
    # What says which strings a head takes.
    signature = Signature(dict.fromkeys(model.inputs), {})
    return expectation_registry.build(
        build.stored, build.artifact(), "", signature, tolerance
    )


def _calls_of_ids(expected: Expectation, build: Build) -> Iterator[_Call]:
    """Yields calls with one row, with several, and with padding."""
    length = build.seq_length
    batches = [expected.batches()[0][:1], expected.batches()[-1]]
    with conversion.quiet():  # That sentences of ours are too long.
        packed = [_some_rows(expected.pack(rows)) for rows in batches]
    if length is None:
        longest = expected.artifact.max_seq_length
        packed.append(expectation.pad(packed[-1], longest))
    else:
        packed = [expectation.pad(rows, length) for rows in packed]
    for rows in packed:
        for inputs in split(rows, build.batch_size):
            wanted = expected.expect_ids(inputs)
            yield inputs, _numbers_alone(wanted)


def _calls_of_text(expected: Expectation, build: Build) -> Iterator[_Call]:
    answering = text_expectations.choose(expected, build)
    batches = answering.batches()
    for rows in (batches[0][:1], batches[-1]):
        size = build.batch_size or len(rows)
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            part = [*part, *[rows[0]] * (size - len(part))]
            with conversion.quiet():
                wanted = answering.expect(part)
            yield replay_plan.to_inputs(part), wanted


def split(rows: _Arrays, batch_size: int | None) -> Iterator[_Arrays]:
    """Yields calls of as many rows as a file takes.

    Args:
      rows: The rows, [R, ...] each.
      batch_size: How many; None for any number. The last call has its first
        row as often as it takes to be full.
    """
    count = len(next(iter(rows.values())))
    size = batch_size or count
    for first in range(0, count, size):
        numbers = np.arange(first, first + size)
        numbers[numbers >= count] = first
        yield {name: x[numbers] for name, x in rows.items()}


def _some_rows(packed: _Arrays) -> _Arrays:
    """Returns at most `_MAX_ROWS` of rows, from first to last."""
    count = len(packed["input_ids"])
    chosen = np.unique(np.linspace(0, count - 1, _MAX_ROWS).astype(int))
    return {name: x[chosen] for name, x in packed.items()}


def _numbers_alone(expected: Expected) -> Expected:
    values = {
        x: v
        for x, v in expected.values.items()
        if v.dtype != object and x not in ids_function.LEFT_OUT
    }
    return dataclasses.replace(expected, values=values)


def _run(model: LiteModel, inputs: _Arrays) -> _Arrays:
    try:
        return model.run(inputs)
    except (RuntimeError, ValueError) as error:
        shapes = {name: x.shape for name, x in inputs.items()}
        raise UserError(
            f"The .tflite file must run. With {shapes} LiteRT says: {error}"
        ) from error


def _compare(
    expected: Expected, answer: _Arrays, tolerance: float | None
) -> comparison.Difference:
    if tolerance is not None:
        return comparison.compare(expected, answer, tolerance, {})
    # What hangs on which number is the largest may be something else.
    floats = {x: v for x, v in expected.values.items() if v.dtype.kind == "f"}
    return comparison.compare(
        dataclasses.replace(expected, values=floats),
        {x: v for x, v in answer.items() if v.dtype.kind == "f"},
        np.inf,
        {},
    )

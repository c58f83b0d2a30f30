"""Calls that verify an export: plans them, makes them and times them.

Shapes:
  B: number of rows.
  P: tokens per text.
"""

import dataclasses
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from bert_tf.export.serving_module import ATTENTION
from bert_tf.export.serving_module import FROM_EXAMPLES
from bert_tf.export.serving_module import FROM_IDS
from bert_tf.export.serving_module import SERVING
from bert_tf.export.serving_module import TOKENIZE
from bert_tf.export.serving_module import Signature
from bert_tf.export.verify import reference as reference_lib
from bert_tf.export.verify import texts as test_texts
from bert_tf.export.verify.reference import Reference
from bert_tf.export.verify.reference import ReferenceOutputs
from bert_tf.export.verify.texts import Row

Arrays = Mapping[str, np.ndarray]

_TEXTS_PER_CALL = 64
# The attention of a row has layers x heads x length x length numbers.
_ROWS_OF_ATTENTION = 4


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a signature.

    Attributes:
      signature: The name of the signature.
      inputs: Numbers, or bytes in arrays of objects, by name.
      repeats: The number of further calls to time.
    """

    signature: str
    inputs: Arrays
    repeats: int = 0


@dataclasses.dataclass(frozen=True)
class Answer:
    """The outputs of a call, or its error.

    Attributes:
      outputs: The outputs by name.
      error: The error message if the call failed, or None.
      milliseconds: The time of each repeated call.
    """

    outputs: Arrays
    error: str | None = None
    milliseconds: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Planned:
    """A call and its reference outputs.

    Attributes:
      description: The request in words, such as "batch 0 of 3".
      call: The call.
      expected: Its reference outputs.
    """

    description: str
    call: Call
    expected: ReferenceOutputs


def send(
    calls: Sequence[Call],
    run: Callable[[Call], Arrays],
    explain: Callable[[Exception], str] = str,
) -> list[Answer]:
    """Makes calls and times the repeated ones.

    Args:
      calls: The calls.
      run: Returns the outputs of a call as arrays.
      explain: Returns the message of an exception that `run` raised.
    """
    answers = []
    for call in calls:
        try:
            outputs = run(call)
        except Exception as error:  # noqa: BLE001  # As a server does.
            answers.append(Answer({}, explain(error)))
            continue
        times = []
        for _ in range(call.repeats):
            start = time.perf_counter()
            run(call)
            times.append((time.perf_counter() - start) * 1000)
        answers.append(Answer(outputs, None, tuple(times)))
    return answers


def plan(
    reference: Reference, signatures: Mapping[str, Signature]
) -> list[Planned]:
    """Returns the calls for all signatures of an export.

    Args:
      reference: Computes the reference outputs.
      signatures: The signatures of the export.
    """
    batches = reference.batches()
    if reference.ids_only:
        return list(_plan_ids(reference, batches, SERVING))
    planned = list(_plan_strings(reference, batches, signatures))
    planned += _plan_ids(reference, batches, FROM_IDS)
    planned += _plan_tokens(reference)
    if ATTENTION in signatures:
        rows = batches[0][:_ROWS_OF_ATTENTION]
        planned.append(
            Planned(
                f"{len(rows)} rows",
                Call(ATTENTION, test_texts.to_inputs(rows)),
                reference.expect_attention(rows),
            )
        )
    return planned


def _plan_strings(
    reference: Reference,
    batches: Sequence[Sequence[Row]],
    signatures: Mapping[str, Signature],
) -> Iterator[Planned]:
    """Yields calls with strings, directly and as Examples."""
    nothing: dict[str, np.ndarray] = {}
    for number, rows in enumerate(batches):
        found = reference.expect(rows)
        expected = reference.for_predict(found)
        inputs = test_texts.to_inputs(rows)
        description = f"batch {number} of {len(rows)}"
        yield Planned(description, Call(SERVING, inputs), expected)
        nothing = nothing or {x: v[:0] for x, v in expected.values.items()}
        # Single rows run the same code.
        if len(rows) > 1 or number == 0:
            examples = test_texts.to_examples(rows)
            call = Call(FROM_EXAMPLES, {"examples": examples})
            yield Planned(description, call, expected)
            if reference.head.method in signatures:
                of_method = found.only(found.values.keys() - expected.values)
                call = Call(reference.head.method, {"inputs": examples})
                yield Planned(description, call, of_method)
    yield _plan_invalid(reference, batches[0][0])
    inputs = test_texts.to_inputs(batches[0])
    for call in (
        Call(SERVING, {name: x[:0] for name, x in inputs.items()}),
        Call(FROM_EXAMPLES, {"examples": np.empty(0, object)}),
    ):
        yield Planned("an empty batch", call, ReferenceOutputs(nothing))


def _plan_invalid(reference: Reference, like: Row) -> Planned:
    """Returns a call with invalid UTF-8, whose invalid bytes are ignored."""
    raw = [_replace_texts(like, data) for data in test_texts.INVALID]
    decoded = [
        _replace_texts(like, data.decode("utf-8", "ignore"))
        for data in test_texts.INVALID
    ]
    return Planned(
        "bytes that are not UTF-8",
        Call(SERVING, test_texts.to_inputs(raw)),
        reference.for_predict(reference.expect(decoded)),
    )


def _replace_texts(row: Row, text: str | bytes) -> Row:
    return {
        name: [text] * len(value) if isinstance(value, list) else text
        for name, value in row.items()
    }


def _plan_ids(
    reference: Reference, batches: Sequence[Sequence[Row]], signature: str
) -> Iterator[Planned]:
    """Yields calls with ids, of minimal length and padded to the maximum."""
    for number, rows in enumerate(batches):
        description = f"batch {number} of {len(rows)}"
        calls = {description: reference.pack(rows)}
        if number == len(batches) - 1:
            calls[f"{description}, padded"] = reference_lib.pad(
                calls[description], reference.head.max_seq_length
            )
        for description, packed in calls.items():
            expected = reference.expect_ids(packed)
            if reference.ids_only:
                expected = expected.numbers()
            yield Planned(description, Call(signature, packed), expected)


def _plan_tokens(reference: Reference) -> Iterator[Planned]:
    """Yields calls of `tokenize` that cover the whole vocabulary."""
    tokenizer = reference.tokenizer
    column = [
        *test_texts.TEXTS,
        *test_texts.QUESTIONS,
        *test_texts.CONTEXTS,
    ]
    column += test_texts.of_vocabulary(tokenizer, _TEXTS_PER_CALL)
    for first in range(0, len(column), _TEXTS_PER_CALL):
        part = column[first : first + _TEXTS_PER_CALL]
        yield Planned(
            f"texts {first} to {first + len(part) - 1}",
            Call(TOKENIZE, {"text": test_texts.to_array(part, "")}),
            reference.expect_tokens(part),
        )

"""Which calls find out whether an export is right, and what they must give.

Shapes:
  B: number of rows.
  P: pieces of a text.
"""

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_tf.export.graph_file import Signature
from bert_tf.export.verify import expectation
from bert_tf.export.verify import texts as text_expectations
from bert_tf.export.verify.clients import Arrays
from bert_tf.export.verify.clients import Call
from bert_tf.export.verify.expectation import Expectation
from bert_tf.export.verify.expectation import Expected
from bert_tf.export.verify.expectation import Row

SERVING = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
FROM_IDS = "from_ids"
FROM_EXAMPLES = "from_examples"
TOKENIZE = "tokenize"
ATTENTION = "attention"
_METHODS = ("classify", "regress")
_TEXTS_PER_CALL = 64
# Attention of a row is layers x heads x length x length numbers.
_ROWS_OF_ATTENTION = 4


@dataclasses.dataclass(frozen=True)
class Planned:
    """A call, and what it must give.

    Attributes:
      what: What is asked, in words: "batch of 3".
      call: The call.
      expected: What it must give.
    """

    what: str
    call: Call
    expected: Expected


def plan(
    expected: Expectation, signatures: Mapping[str, Signature]
) -> list[Planned]:
    """Returns the calls for all signatures of an export.

    Args:
      expected: What the library says.
      signatures: Those of the export.
    """
    if expected.artifact.ids_only:
        return list(_plan_ids(expected, SERVING))
    planned = list(_plan_strings(expected, signatures))
    planned += _plan_ids(expected, FROM_IDS)
    planned += _plan_tokens(expected)
    if ATTENTION in signatures:
        rows = expected.batches()[0][:_ROWS_OF_ATTENTION]
        planned.append(
            Planned(
                f"{len(rows)} rows",
                Call(ATTENTION, to_inputs(rows)),
                expected.expect_attention(rows),
            )
        )
    return planned


def _plan_strings(
    expected: Expectation, signatures: Mapping[str, Signature]
) -> Iterator[Planned]:
    """Yields what strings are sent to: serving_default and its other forms."""
    batches = expected.batches()
    for number, rows in enumerate(batches):
        wanted = expected.expect(rows)
        inputs = to_inputs(rows)
        what = f"batch {number} of {len(rows)}"
        yield Planned(what, Call(SERVING, inputs), wanted)
        # What is alone is short, and the same code reads it.
        if len(rows) > 1 or number == 0:
            examples = {"examples": to_examples(rows)}
            yield Planned(what, Call(FROM_EXAMPLES, examples), wanted)
            yield from _plan_methods(expected, what, rows, wanted, signatures)
    if expected.takes_invalid_bytes:
        yield from _plan_invalid(expected, batches[0][0])
    none = _none_of(batches[0])
    wanted = _nothing_of(expected.expect(batches[0]))
    yield Planned("an empty batch", Call(SERVING, none), wanted)
    yield Planned(
        "an empty batch",
        Call(FROM_EXAMPLES, {"examples": np.empty(0, object)}),
        wanted,
    )


def _plan_methods(
    expected: Expectation,
    what: str,
    rows: Sequence[Row],
    wanted: Expected,
    signatures: Mapping[str, Signature],
) -> Iterator[Planned]:
    """Yields calls of `classify` or `regress`, where they are."""
    for method in _METHODS:
        if method not in signatures:
            continue
        values = expected.method_values(wanted)
        yield Planned(
            what,
            Call(method, {"inputs": to_examples(rows)}),
            Expected(values),
        )


def _plan_invalid(expected: Expectation, like: Row) -> Iterator[Planned]:
    """Yields a call with bytes that are not UTF-8, which count for nothing."""
    raw = [_replace_texts(like, data) for data in text_expectations.INVALID]
    decoded = [
        _replace_texts(like, data.decode("utf-8", "ignore"))
        for data in text_expectations.INVALID
    ]
    yield Planned(
        "bytes that are not UTF-8",
        Call(SERVING, to_inputs(raw)),
        expected.expect(decoded),
    )


def _replace_texts(row: Row, text: str | bytes) -> Row:
    return {
        name: [text] * len(value) if isinstance(value, list) else text
        for name, value in row.items()
    }


def _plan_ids(expected: Expectation, signature: str) -> Iterator[Planned]:
    """Yields calls with ids, cut to what is in them and padded to the full."""
    batches = expected.batches()
    for number, rows in enumerate(batches):
        packed = expected.pack(rows)
        wanted = _expect_ids(expected, packed)
        what = f"batch {number} of {len(rows)}"
        yield Planned(what, Call(signature, packed), wanted)
        if number == len(batches) - 1:
            full = expectation.pad(packed, expected.artifact.max_seq_length)
            yield Planned(
                f"{what}, padded",
                Call(signature, full),
                _expect_ids(expected, full),
            )


def _expect_ids(expected: Expectation, packed: Arrays) -> Expected:
    """Returns what ids give; where strings are unknown, the numbers alone."""
    wanted = expected.expect_ids(packed)
    if not expected.artifact.ids_only:
        return wanted
    numbers = {x: v for x, v in wanted.values.items() if v.dtype != object}
    return dataclasses.replace(wanted, values=numbers)


def _plan_tokens(expected: Expectation) -> Iterator[Planned]:
    """Yields texts in which each piece of the vocabulary stands."""
    tokenizer = expected.tokenizer
    column = [
        *text_expectations.TEXTS,
        *text_expectations.QUESTIONS,
        *text_expectations.CONTEXTS,
    ]
    column += text_expectations.of_vocabulary(tokenizer, _TEXTS_PER_CALL)
    for first in range(0, len(column), _TEXTS_PER_CALL):
        part = column[first : first + _TEXTS_PER_CALL]
        yield Planned(
            f"texts {first} to {first + len(part) - 1}",
            Call(TOKENIZE, {"text": expectation.strings(part)}),
            expected.expect_tokens(part),
        )


def to_inputs(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Returns the tensors of rows, <string>[B] or [B, choices]."""
    inputs = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if isinstance(first, list):
            array = np.empty((len(rows), len(first)), object)
            for row, texts_of_row in zip(array, values, strict=True):
                row[:] = [_to_bytes(text) for text in texts_of_row]
        else:
            array = np.empty(len(rows), object)
            array[:] = [_to_bytes(text) for text in values]
        inputs[name] = array
    return inputs


def to_examples(rows: Sequence[Row]) -> np.ndarray:
    """Returns serialized tf.train.Examples of rows, <string>[B]."""
    serialized = np.empty(len(rows), object)
    for number, row in enumerate(rows):
        example = tf.train.Example()
        for name, value in row.items():
            values = value if isinstance(value, list) else [value]
            feature = example.features.feature[name]
            feature.bytes_list.value.extend(map(_to_bytes, values))
        serialized[number] = example.SerializeToString()
    return serialized


def _to_bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8") if isinstance(text, str) else text


def _none_of(rows: Sequence[Row]) -> Arrays:
    return {name: array[:0] for name, array in to_inputs(rows).items()}


def _nothing_of(expected: Expected) -> Expected:
    return Expected({name: x[:0] for name, x in expected.values.items()})

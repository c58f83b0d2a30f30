"""Plans the calls that verify an export, with their reference outputs.

Shapes:
  B: number of rows.
  P: tokens per text.
"""

import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from bert_tf.export.graph_file import Signature
from bert_tf.export.serving_module import ATTENTION
from bert_tf.export.serving_module import FROM_EXAMPLES
from bert_tf.export.serving_module import FROM_IDS
from bert_tf.export.serving_module import SERVING
from bert_tf.export.serving_module import TOKENIZE
from bert_tf.export.verify import reference as reference_lib
from bert_tf.export.verify import texts as test_texts
from bert_tf.export.verify.clients import Arrays
from bert_tf.export.verify.clients import Call
from bert_tf.export.verify.reference import Reference
from bert_tf.export.verify.reference import ReferenceOutputs
from bert_tf.export.verify.texts import Row

_METHODS = ("classify", "regress")
_TEXTS_PER_CALL = 64
# The attention of a row has layers x heads x length x length numbers.
_ROWS_OF_ATTENTION = 4


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


def plan(
    reference: Reference, signatures: Mapping[str, Signature]
) -> list[Planned]:
    """Returns the calls for all signatures of an export.

    Args:
      reference: Computes the reference outputs.
      signatures: The signatures of the export.
    """
    if reference.artifact.ids_only:
        return list(_plan_ids(reference, SERVING))
    planned = list(_plan_strings(reference, signatures))
    planned += _plan_ids(reference, FROM_IDS)
    planned += _plan_tokens(reference)
    if ATTENTION in signatures:
        rows = reference.batches()[0][:_ROWS_OF_ATTENTION]
        planned.append(
            Planned(
                f"{len(rows)} rows",
                Call(ATTENTION, test_texts.to_inputs(rows)),
                reference.expect_attention(rows),
            )
        )
    return planned


def _plan_strings(
    reference: Reference, signatures: Mapping[str, Signature]
) -> Iterator[Planned]:
    """Yields calls with strings, directly and as Examples."""
    batches = reference.batches()
    for number, rows in enumerate(batches):
        expected = reference.expect(rows)
        inputs = test_texts.to_inputs(rows)
        description = f"batch {number} of {len(rows)}"
        yield Planned(description, Call(SERVING, inputs), expected)
        # Single rows run the same code.
        if len(rows) > 1 or number == 0:
            examples = {"examples": test_texts.to_examples(rows)}
            yield Planned(description, Call(FROM_EXAMPLES, examples), expected)
            yield from _plan_methods(
                reference, description, rows, expected, signatures
            )
    if reference.takes_invalid_bytes:
        yield from _plan_invalid(reference, batches[0][0])
    inputs = test_texts.to_inputs(batches[0])
    none = {name: x[:0] for name, x in inputs.items()}
    values = reference.expect(batches[0]).values
    expected = ReferenceOutputs({name: x[:0] for name, x in values.items()})
    yield Planned("an empty batch", Call(SERVING, none), expected)
    yield Planned(
        "an empty batch",
        Call(FROM_EXAMPLES, {"examples": np.empty(0, object)}),
        expected,
    )


def _plan_methods(
    reference: Reference,
    description: str,
    rows: Sequence[Row],
    expected: ReferenceOutputs,
    signatures: Mapping[str, Signature],
) -> Iterator[Planned]:
    """Yields calls of `classify` or `regress`, if the export has them."""
    for method in _METHODS:
        if method not in signatures:
            continue
        values = reference.method_values(expected)
        yield Planned(
            description,
            Call(method, {"inputs": test_texts.to_examples(rows)}),
            ReferenceOutputs(values),
        )


def _plan_invalid(reference: Reference, like: Row) -> Iterator[Planned]:
    """Yields a call with invalid UTF-8, whose invalid bytes are ignored."""
    raw = [_replace_texts(like, data) for data in test_texts.INVALID]
    decoded = [
        _replace_texts(like, data.decode("utf-8", "ignore"))
        for data in test_texts.INVALID
    ]
    yield Planned(
        "bytes that are not UTF-8",
        Call(SERVING, test_texts.to_inputs(raw)),
        reference.expect(decoded),
    )


def _replace_texts(row: Row, text: str | bytes) -> Row:
    return {
        name: [text] * len(value) if isinstance(value, list) else text
        for name, value in row.items()
    }


def _plan_ids(reference: Reference, signature: str) -> Iterator[Planned]:
    """Yields calls with ids, of minimal length and padded to the maximum."""
    batches = reference.batches()
    for number, rows in enumerate(batches):
        packed = reference.pack(rows)
        expected = _expect_ids(reference, packed)
        description = f"batch {number} of {len(rows)}"
        yield Planned(description, Call(signature, packed), expected)
        if number == len(batches) - 1:
            full = reference_lib.pad(packed, reference.artifact.max_seq_length)
            yield Planned(
                f"{description}, padded",
                Call(signature, full),
                _expect_ids(reference, full),
            )


def _expect_ids(reference: Reference, packed: Arrays) -> ReferenceOutputs:
    """Returns the reference outputs of ids, without strings for ids_only."""
    expected = reference.expect_ids(packed)
    if not reference.artifact.ids_only:
        return expected
    numbers = {x: v for x, v in expected.values.items() if v.dtype != object}
    return dataclasses.replace(expected, values=numbers)


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
            Call(TOKENIZE, {"text": reference_lib.array(part, "")}),
            reference.expect_tokens(part),
        )

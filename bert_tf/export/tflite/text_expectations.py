"""What files must say that take strings and point into them, piece by piece.

Shapes:
  B: number of texts.
  T: pieces of a row.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_tf.export.tflite.build import Build
from bert_tf.export.verify.expectation import Expectation
from bert_tf.export.verify.expectation import Expected
from bert_tf.export.verify.expectation import Row

_NOWHERE = -1
_PLACES = ("starts", "ends")


def choose(expected: Expectation, build: Build) -> "Expectation | OfPieces":
    """Returns what a file that takes strings must say.

    Args:
      expected: What the SavedModel must say.
      build: The file.
    """
    if build.name == "tagging":
        return OfPieces(expected)
    if build.name == "question_answering":
        return OfPieces(expected, build.head.task.max_query_length)
    return expected


class OfPieces:
    """What a file must say of each piece of texts.

    Args:
      expected: Has the model, the tokenizer and rows to ask about.
      max_query_length: The most pieces of a question, which stands in front of
        the text; None where there is none.
    """

    def __init__(
        self, expected: Expectation, max_query_length: int | None = None
    ) -> None:
        self._expected = expected
        self._max_query_length = max_query_length
        self.batches = expected.batches

    def expect(self, rows: Sequence[Row]) -> Expected:
        """Returns what `expect_ids` says, and places <int32>[B, T]."""
        packed = self._pack(rows)
        places = {name: packed.pop(name) for name in _PLACES}
        said = self._expected.expect_ids(packed)
        return dataclasses.replace(said, values={**said.values, **places})

    def _pack(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Returns the model's inputs and places, <int32>[B, T] each."""
        expected = self._expected
        shape = (len(rows), expected.artifact.max_seq_length)
        packed = {
            "input_ids": expected.tokenizer.vocabulary.pad_id,
            "input_mask": 0,
            "segment_ids": 0,
        } | dict.fromkeys(_PLACES, _NOWHERE)
        packed = {
            name: np.full(shape, padding, np.int32)
            for name, padding in packed.items()
        }
        for number, row in enumerate(rows):
            pieces = self._pieces([row[name] for name in expected.inputs])
            for place, piece in enumerate(pieces):
                for values, value in zip(packed.values(), piece, strict=True):
                    values[number, place] = value
        return packed

    def _pieces(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Returns id, mask, segment, start and end of each piece of a row."""
        tokenizer = self._expected.tokenizer
        vocabulary = tokenizer.vocabulary
        segments = [
            list(zip(*(x.numpy() for x in found), strict=True))
            for found in map(tokenizer.tokenize_with_offsets, texts)
        ]
        if self._max_query_length is not None:
            # Nobody points into a question.
            segments[0] = [
                (token, _NOWHERE, _NOWHERE)
                for token, *_ in segments[0][: self._max_query_length]
            ]
        # A text without pieces has no [SEP] either.
        segments = [segments[0], *filter(None, segments[1:])]
        others = 1 + len(segments) + sum(map(len, segments[:-1]))
        length = self._expected.artifact.max_seq_length
        segments[-1] = segments[-1][: length - others]
        sep = (vocabulary.sep_id, _NOWHERE, _NOWHERE)
        row = [(vocabulary.cls_id, 1, 0, _NOWHERE, _NOWHERE)]
        for number, segment in enumerate(segments):
            for token, start, end in (*segment, sep):
                row.append((token, 1, number, start, end))
        return row

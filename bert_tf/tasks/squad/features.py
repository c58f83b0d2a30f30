"""Questions with paragraphs of any length as windows of the model's length."""

import dataclasses
import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np

from bert_tf.errors import UserError
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary

FIRST_UNIQUE_ID = 1_000_000_000
# One by one the tokenizer is slow.
_EXAMPLES_AT_ONCE = 2048
# [CLS], and [SEP] after the question and after the paragraph.
_NUM_SPECIAL_TOKENS = 3


@dataclasses.dataclass(frozen=True, eq=False)
class InputFeatures:
    """[CLS] question [SEP] window of the paragraph [SEP], without padding.

    Attributes:
      unique_id: Counts the windows of all questions.
      example_index: Which example it is of.
      doc_span_index: Which of the example's windows it is.
      input_ids: <int32>[T].
      doc_offset: Where the paragraph's D pieces begin in `input_ids`.
      word_indices: The word that each of them belongs to, <int32>[D].
      is_max_context: Whether no other window shows more around it, <bool>[D].
      is_query_truncated: Whether the question was too long.
      start_position: The answer's first piece in `input_ids`; 0, as of [CLS],
        if this window does not hold it; None outside training.
      end_position: Its last piece; 0 and None as above.
      is_impossible: That of the example, if it is known.
    """

    unique_id: int
    example_index: int
    doc_span_index: int
    input_ids: np.ndarray
    doc_offset: int
    word_indices: np.ndarray
    is_max_context: np.ndarray
    is_query_truncated: bool
    start_position: int | None = None
    end_position: int | None = None
    is_impossible: bool = False

    @property
    def segment_ids(self) -> np.ndarray:
        """0 for the question, 1 for the paragraph: <int32>[T]."""
        segments = np.ones_like(self.input_ids)
        segments[: self.doc_offset] = 0
        return segments

    @property
    def token_to_orig_map(self) -> dict[int, int]:
        """Position in `input_ids` to word of the paragraph."""
        return dict(enumerate(self.word_indices.tolist(), self.doc_offset))

    @property
    def token_is_max_context(self) -> dict[int, bool]:
        """Position in `input_ids` to `is_max_context`."""
        return dict(enumerate(self.is_max_context.tolist(), self.doc_offset))

    def tokens(self, vocabulary: Vocabulary) -> list[str]:
        """Returns the pieces."""
        return [vocabulary.tokens[id] for id in self.input_ids]


def convert_examples_to_features(
    examples: Iterable[SquadExample],
    tokenizer: BertTokenizer,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
    is_training: bool = False,
) -> Iterator[InputFeatures]:
    """Yields the windows of each example.

    A paragraph that does not fit is shown in windows, each `doc_stride` pieces
    after the last. A paragraph without pieces has none.

    Source: run_squad.py:309-547 of the original.

    Args:
      examples: As many as one likes; memory holds a few thousand.
      tokenizer: Cuts text into pieces.
      max_seq_length: The most pieces in a window, special ones included.
      doc_stride: How far one window begins after the other.
      max_query_length: Longer questions lose what is behind that piece.
      is_training: Whether the examples have answers.

    Raises:
      UserError: If the lengths leave no room for the paragraph.
    """
    least = max_query_length + _NUM_SPECIAL_TOKENS + 1
    if max_query_length < 1 or doc_stride < 1 or max_seq_length < least:
        raise UserError(
            "--max_query_length and --doc_stride must be at least 1 and "
            f"--max_seq_length greater by {least - max_query_length} than "
            f"--max_query_length. Received: {max_query_length}, {doc_stride}, "
            f"{max_seq_length}."
        )
    windows = _Windows(tokenizer, max_seq_length, doc_stride, max_query_length)
    return windows.convert(examples, is_training)


class _Pieces:
    """The pieces of texts, each text cut once.

    Args:
      tokenizer: Cuts them.
      texts: Any number, many of them equal.
    """

    def __init__(self, tokenizer: BertTokenizer, texts: Iterable[str]) -> None:
        self._rows = {
            text: row for row, text in enumerate(dict.fromkeys(texts))
        }
        ids = tokenizer.tokenize(list(self._rows))
        self._values = ids.flat_values.numpy()
        self._splits = ids.row_splits.numpy()

    def __getitem__(self, text: str) -> np.ndarray:
        """Returns the ids of a text: <int32>[n]."""
        row = self._rows[text]
        return self._values[self._splits[row] : self._splits[row + 1]]


class _Document:
    """A paragraph's pieces and windows.

    Attributes:
      ids: <int32>[n].
      word_indices: The word of each piece, <int32>[n].
      first_pieces: The first piece of each word, and n, <int>[words + 1].

    Args:
      words: The paragraph's words.
      pieces: Their pieces.
    """

    def __init__(self, words: Sequence[str], pieces: _Pieces) -> None:
        rows = [pieces[word] for word in words]
        lengths = [len(row) for row in rows]
        self.ids = np.concatenate([*rows, np.zeros([0], np.int32)])
        self.word_indices = np.repeat(
            np.arange(len(rows), dtype=np.int32), lengths
        )
        self.first_pieces = np.cumsum([0, *lengths])

    def spans(self, max_length: int, doc_stride: int) -> list[tuple[int, int]]:
        """Returns the windows: first piece and number of pieces."""
        spans = []
        start = 0
        while start < len(self.ids):
            length = min(len(self.ids) - start, max_length)
            spans.append((start, length))
            if start + length == len(self.ids):
                break
            start += min(length, doc_stride)
        return spans

    def find(self, example: SquadExample, answer: np.ndarray) -> range:
        """Returns the pieces of the answer.

        A word holds more than the answer at times: of "(1895-1943)." only
        1895. So the pieces that are the answer's own are looked for.
        """
        start = int(self.first_pieces[example.start_position])
        stop = int(self.first_pieces[example.end_position + 1])
        last = stop - len(answer)
        for first in range(start, last + 1 if len(answer) else start):
            if np.array_equal(self.ids[first : first + len(answer)], answer):
                return range(first, first + len(answer))
        return range(start, stop)


@dataclasses.dataclass(frozen=True)
class _Windows:
    tokenizer: BertTokenizer
    max_seq_length: int
    doc_stride: int
    max_query_length: int

    def convert(
        self, examples: Iterable[SquadExample], is_training: bool
    ) -> Iterator[InputFeatures]:
        unique_ids = itertools.count(FIRST_UNIQUE_ID)
        numbered = enumerate(examples)
        while chunk := list(itertools.islice(numbered, _EXAMPLES_AT_ONCE)):
            pieces = _Pieces(
                self.tokenizer, _texts(example for _, example in chunk)
            )
            words = document = None
            for index, example in chunk:
                # Questions about one paragraph share its words.
                if example.doc_tokens is not words:
                    words = example.doc_tokens
                    document = _Document(words, pieces)
                yield from self._convert_one(
                    index, example, document, pieces, is_training, unique_ids
                )

    def _convert_one(
        self,
        index: int,
        example: SquadExample,
        document: _Document,
        pieces: _Pieces,
        is_training: bool,
        unique_ids: Iterator[int],
    ) -> Iterator[InputFeatures]:
        query = pieces[example.question_text]
        is_truncated = len(query) > self.max_query_length
        query = query[: self.max_query_length]
        vocabulary = self.tokenizer.vocabulary
        cls, sep = [vocabulary.cls_id], [vocabulary.sep_id]
        prefix = np.concatenate([cls, query, sep]).astype(np.int32)
        spans = document.spans(
            self.max_seq_length - len(query) - _NUM_SPECIAL_TOKENS,
            self.doc_stride,
        )
        best_spans = _find_max_context(spans, len(document.ids))
        answer = None
        if is_training and not example.is_impossible:
            answer = document.find(example, pieces[example.orig_answer_text])
        for number, (start, length) in enumerate(spans):
            span = slice(start, start + length)
            position = (None, None)
            if is_training:
                position = _place(answer, span, len(prefix))
            yield InputFeatures(
                next(unique_ids),
                index,
                number,
                np.concatenate([prefix, document.ids[span], sep], dtype="i4"),
                len(prefix),
                document.word_indices[span],
                best_spans[span] == number,
                is_truncated,
                *position,
                example.is_impossible,
            )


def _texts(examples: Iterable[SquadExample]) -> Iterator[str]:
    """Yields all that will be cut into pieces."""
    words = None
    for example in examples:
        yield example.question_text
        yield example.orig_answer_text or ""
        if example.doc_tokens is not words:
            words = example.doc_tokens
            yield from words


def _find_max_context(
    spans: Sequence[tuple[int, int]], num_pieces: int
) -> np.ndarray:
    """Returns which window shows the most around each piece: <int>[n].

    That is the one where the smaller of its contexts, left and right, is
    greatest; of equals the first.

    Source: _check_is_max_context (run_squad.py:513-547 of the original).
    """
    best = np.zeros([num_pieces], np.int64)
    best_scores = np.full([num_pieces], -1.0)
    # Window by window: all of them times all pieces are too many for memory.
    for number, (start, length) in enumerate(spans):
        shown = slice(start, start + length)
        left = np.arange(length)
        scores = np.minimum(left, left[::-1]) + 0.01 * length
        best[shown][scores > best_scores[shown]] = number
        np.maximum(best_scores[shown], scores, out=best_scores[shown])
    return best


def _place(
    answer: range | None, span: slice, doc_offset: int
) -> tuple[int, int]:
    """Returns the answer's first and last piece in a window, or (0, 0)."""
    if answer is None or answer.start < span.start or answer.stop > span.stop:
        return 0, 0
    shift = doc_offset - span.start
    return answer.start + shift, answer.stop - 1 + shift

"""SQuAD windows: questions with paragraphs, cut to the model's length.

Shapes:
  T: length of a window or a batch.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.tasks.packed_rows import PackedRows
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.text.tokenizer import BertTokenizer

START_POSITIONS = "start_positions"
END_POSITIONS = "end_positions"
# A token includes the invisible characters after it, such as U+200B between
# Thai words. These are cut, so that no answer ends with them.
_INVISIBLE = "[\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
TRAILING = f"([^{_INVISIBLE[1:]}){_INVISIBLE}+$"
# Examples per call of the tokenizer, which is slow for single texts.
_EXAMPLES_AT_ONCE = 2048
# One [CLS], one [SEP] after the question and one [SEP] after the paragraph.
_NUM_SPECIAL_TOKENS = 3


@dataclasses.dataclass(frozen=True, eq=False)
class InputFeatures:
    """[CLS] question [SEP] window of the paragraph [SEP], without padding.

    Attributes:
      example_index: The index of the window's example.
      input_ids: <int32>[T].
      doc_offset: The position of the paragraph's first token in `input_ids`.
      word_indices: For each paragraph token, its word's index, <int32>[tokens].
      is_max_context: For each paragraph token, whether no other window has more
        context for the token, <bool>[tokens].
      is_query_truncated: Whether the question was too long.
      start_position: The answer's first token, as a position in `input_ids`; 0
        ([CLS]) if the window lacks the answer; None outside training.
      end_position: The last token's position; 0 or None like `start_position`.
      offsets: The start and end of each paragraph token in the paragraph, in
        characters, <int32>[tokens, 2], without trailing invisible characters;
        None in training.
    """

    example_index: int
    input_ids: np.ndarray
    doc_offset: int
    word_indices: np.ndarray
    is_max_context: np.ndarray
    is_query_truncated: bool
    start_position: int | None = None
    end_position: int | None = None
    offsets: np.ndarray | None = None


def convert_examples_to_features(
    examples: Iterable[SquadExample],
    tokenizer: BertTokenizer,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
    is_training: bool = False,
) -> Iterator[InputFeatures]:
    """Yields the windows of each example; `SquadTask` describes the lengths.

    A paragraph that does not fit is cut into windows that start `doc_stride`
    tokens apart. A paragraph without tokens has no window. Only a few thousand
    `examples` are in memory at once. In training, examples must have answers.

    Source: run_squad.py:309-547 of the original.

    Raises:
      UserError: If `max_seq_length` leaves no room for the paragraph.
    """
    min_length = max_query_length + _NUM_SPECIAL_TOKENS + 1
    if max_query_length < 1 or doc_stride < 1 or max_seq_length < min_length:
        raise UserError(
            "--max_query_length and --doc_stride must be at least 1 and "
            f"--max_seq_length greater by {min_length - max_query_length} than "
            f"--max_query_length. Received: {max_query_length}, {doc_stride}, "
            f"{max_seq_length}."
        )
    vocabulary = tokenizer.vocabulary
    cls, sep = [vocabulary.cls_id], [vocabulary.sep_id]
    numbered = enumerate(examples)
    while chunk := list(itertools.islice(numbered, _EXAMPLES_AT_ONCE)):
        texts = (
            text
            for _, x in chunk
            for text in (
                x.question_text,
                x.orig_answer_text or "",
                *x.doc_tokens,
            )
        )
        has_unspaced = any(x.answer_start is not None for _, x in chunk)
        tokens = _Tokens(tokenizer, texts, has_unspaced or not is_training)
        words = document = None
        for index, example in chunk:
            # Convert a paragraph only once, even if several questions share it.
            if example.doc_tokens is not words:
                words = example.doc_tokens
                document = _Document(example, tokens)
            query = tokens.ids(example.question_text)
            is_truncated = len(query) > max_query_length
            prefix = np.concatenate([cls, query[:max_query_length], sep])
            spans = document.spans(
                max_seq_length - len(prefix) - len(sep), doc_stride
            )
            best_spans = _find_max_context(spans, len(document.ids))
            answer = None
            if is_training and not example.is_impossible:
                answer = document.find(
                    example, tokens.ids(example.orig_answer_text)
                )
            for number, (start, length) in enumerate(spans):
                span = slice(start, start + length)
                position = (None, None)
                if is_training:
                    position = _place(answer, span, len(prefix))
                yield InputFeatures(
                    index,
                    np.concatenate(
                        [prefix, document.ids[span], sep], dtype=np.int32
                    ),
                    len(prefix),
                    document.word_indices[span],
                    best_spans[span] == number,
                    is_truncated,
                    *position,
                    None if is_training else document.offsets[span],
                )


class _Tokens:
    """The tokens of texts, each distinct text tokenized once."""

    def __init__(
        self,
        tokenizer: BertTokenizer,
        texts: Iterable[str],
        with_offsets: bool,
    ) -> None:
        unique = list(dict.fromkeys(texts))
        self._rows = {text: row for row, text in enumerate(unique)}
        if with_offsets:
            ids, *offsets = tokenizer.tokenize_with_offsets(unique)
            self._offsets = np.stack(
                [_to_characters(unique, x) for x in offsets], axis=1
            )
        else:
            ids = tokenizer.tokenize(unique)
        self._ids = ids.flat_values.numpy()
        self._splits = ids.row_splits.numpy()

    def ids(self, text: str) -> np.ndarray:
        """Returns the ids of a text: <int32>[n]."""
        return self._ids[self._slice(text)]

    def offsets(self, text: str) -> np.ndarray:
        """Returns the tokens' starts and ends, in characters: <int32>[n, 2]."""
        offsets = self._offsets[self._slice(text)]
        for row in offsets if re.search(_INVISIBLE, text) else ():
            row[1] = row[0] + len(re.sub(TRAILING, r"\1", text[slice(*row)]))
        return offsets

    def _slice(self, text: str) -> slice:
        row = self._rows[text]
        return slice(self._splits[row], self._splits[row + 1])


def _to_characters(texts: Sequence[str], places: tf.RaggedTensor) -> np.ndarray:
    """Converts ragged offsets [n, None], in bytes, to characters <int32>[n]."""
    encoded = [text.encode() for text in texts]
    is_first = np.frombuffer(b"".join(encoded), np.uint8) & 0xC0 != 0x80
    num_before = np.concatenate([[0], np.cumsum(is_first, dtype=np.int32)])
    text_starts = np.cumsum([0, *map(len, encoded)])
    text_start = text_starts[places.value_rowids()]
    return (
        num_before[text_start + places.flat_values] - num_before[text_start]
    ).astype(np.int32)


class _Document:
    """A paragraph's tokens and windows.

    Attributes:
      ids: <int32>[n].
      word_indices: The index of each token's word, <int32>[n].
      first_tokens: <int>[words + 1], the index of each word's first token; the
        last entry is n.
    """

    def __init__(self, example: SquadExample, tokens: _Tokens) -> None:
        self._tokens = tokens
        self._words = example.doc_tokens
        self._starts = example.doc_token_starts
        rows = [tokens.ids(word) for word in self._words]
        lengths = [len(row) for row in rows]
        self.ids = np.concatenate([*rows, np.zeros([0], np.int32)])
        self.word_indices = np.repeat(
            np.arange(len(rows), dtype=np.int32), lengths
        )
        self.first_tokens = np.cumsum([0, *lengths])

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """Starts and ends of the tokens, in characters: <int32>[n, 2]."""
        rows = [
            start + self._tokens.offsets(word)
            for word, start in zip(self._words, self._starts, strict=True)
        ]
        return np.concatenate([*rows, np.zeros([0, 2], np.int32)])

    def spans(self, max_length: int, doc_stride: int) -> list[tuple[int, int]]:
        """Returns each window's first token and number of tokens.

        10 tokens with `max_length` 4 and stride 3 give (0, 4), (3, 4), (6, 4).
        """
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
        """Returns the range of the answer's tokens.

        Searches the answer's words for the tokens `answer`, because a word such
        as "(1895-1943)" may contain more than the answer 1895. In unspaced
        text, the range has all tokens that overlap the answer.
        """
        if example.answer_start is not None:
            first = example.answer_start
            last = first + len(example.orig_answer_text) - 1
            starts, ends = self.offsets.T
            found = range(
                int(np.searchsorted(ends, first, "right")),
                int(np.searchsorted(starts, last, "right")),
            )
            if found:
                return found
        start = int(self.first_tokens[example.start_position])
        stop = int(self.first_tokens[example.end_position + 1])
        last = stop - len(answer)
        for first in range(start, last + 1 if len(answer) else start):
            if np.array_equal(self.ids[first : first + len(answer)], answer):
                return range(first, first + len(answer))
        return range(start, stop)


def _find_max_context(
    spans: Sequence[tuple[int, int]], num_tokens: int
) -> np.ndarray:
    """Returns the window with the most context for each token: <int>[n].

    A token's score in a window is its distance from the nearer end, plus 0.01
    times the window's length. On a tie the first window wins. If the windows
    have tokens 0-3 and 2-5, token 2 scores 1.04 and 0.04 in them, token 3
    scores 0.04 and 1.04.

    Source: _check_is_max_context (run_squad.py:513-547 of the original).
    """
    best = np.zeros([num_tokens], np.int64)
    best_scores = np.full([num_tokens], -1.0)
    # Loop over windows, as an array [windows, tokens] would not fit in memory.
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
    """Returns the answer's first and last token in a window, or (0, 0)."""
    if answer is None or answer.start < span.start or answer.stop > span.stop:
        return 0, 0
    shift = doc_offset - span.start
    return answer.start + shift, answer.stop - 1 + shift


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SquadFeatures(PackedRows):
    """Packed windows; the first segment is [CLS] question [SEP].

    For prediction, `windows` has the windows. For training it is empty, and
    `targets` has the answer's first and last token in each window.
    """

    windows: Sequence[InputFeatures]


def pack_windows(
    windows: Iterable[InputFeatures], pad_id: int, is_training: bool
) -> SquadFeatures:
    """Packs windows into flat arrays; counts the truncated questions."""
    ids, first_lengths, positions, examples, kept = [], [], [], [], []
    truncated = set()
    for window in windows:
        ids.append(window.input_ids)
        first_lengths.append(window.doc_offset)
        examples.append(window.example_index)
        if window.is_query_truncated:
            truncated.add(window.example_index)
        if is_training:
            positions.append((window.start_position, window.end_position))
        else:
            kept.append(window)
    targets = {}
    if is_training:
        starts, ends = np.array(positions, np.int32).reshape([-1, 2]).T
        targets = {START_POSITIONS: starts, END_POSITIONS: ends}
    return SquadFeatures(
        input_ids=np.concatenate([np.zeros([0], np.int32), *ids]),
        row_splits=np.cumsum([0, *map(len, ids)]),
        first_lengths=np.array(first_lengths, np.int32),
        pad_id=pad_id,
        examples=np.array(examples, np.int64),
        targets=targets,
        num_truncated=len(truncated),
        windows=kept,
    )

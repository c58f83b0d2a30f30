"""From tagged sentences to the model's inputs, and from its outputs to tags.

A word is tokenized by itself, and its first piece stands for it (section 5.3
of the paper): that one has the label, the others none.

Shapes:
  W: number of words of all examples.
  N: number of windows.
  B: batch size.
  T: length of a batch.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Literal

import numpy as np

from bert_tf.errors import UserError
from bert_tf.tasks import padded_rows
from bert_tf.tasks.tagging.examples import ALONE
from bert_tf.tasks.tagging.examples import OUTSIDE
from bert_tf.tasks.tagging.examples import TaggingExample
from bert_tf.text.tokenizer import BertTokenizer

LABEL_IDS = "label_ids"
LABEL_WEIGHTS = "label_weights"

# The tokenizer is fast for many texts at a time, and this bounds memory.
_WORDS_PER_CALL = 16384
_NONE = -1


@dataclasses.dataclass(frozen=True)
class TaggingFeatures:
    """Windows of pieces, [CLS] ... [SEP], of unequal lengths.

    Attributes:
      input_ids: <int32>[sum of lengths], one window after the other.
      label_ids: <int32>[sum of lengths], -1 where there is no label; None
        without labels.
      row_splits: <int64>[N + 1], where in them the windows begin and end.
      word_rows: <int32>[W], the window in which a word has the most context,
        -1 if it is in none.
      word_positions: <int32>[W], where in that window its first piece is.
      example_splits: <int64>[number of examples + 1], where in the words the
        examples begin and end.
      pad_id: The id of [PAD].
      num_words_without_piece: How many words are nothing but characters that
        the tokenizer drops, as control characters. They are tagged O.
      num_truncated_words: How many words no window reaches. They are tagged O.
    """

    input_ids: np.ndarray
    label_ids: np.ndarray | None
    row_splits: np.ndarray
    word_rows: np.ndarray
    word_positions: np.ndarray
    example_splits: np.ndarray
    pad_id: int
    num_words_without_piece: int
    num_truncated_words: int

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    @property
    def lengths(self) -> np.ndarray:
        """<int64>[N], pieces of each window with [CLS] and [SEP]."""
        return np.diff(self.row_splits)

    def batch(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns the model's inputs, and the labels, for some windows.

        Args:
          indices: <int64>[B], which windows.
          length: T, at least that of the longest of them.

        Returns:
          `input_ids`, `input_mask` and `segment_ids` <int32>[B, T], and, where
          there are labels, `label_ids` <int32>[B, T] and `label_weights`
          <float32>[B, T], which are 0 where there is none.

        Raises:
          ValueError: If one of the windows is longer.
        """
        rows = padded_rows.choose(self.row_splits, indices, length)
        batch = rows.inputs(self.input_ids, self.pad_id)
        if self.label_ids is not None:
            labels = rows.place(self.label_ids, _NONE)
            batch[LABEL_IDS] = np.maximum(labels, 0)
            batch[LABEL_WEIGHTS] = (labels != _NONE).astype(np.float32)
        return batch


@dataclasses.dataclass(frozen=True)
class _Words:
    """The pieces of all words: word w has `pieces[splits[w]:splits[w + 1]]`."""

    pieces: np.ndarray
    splits: np.ndarray


def convert_examples_to_features(
    examples: Sequence[TaggingExample],
    tokenizer: BertTokenizer,
    max_seq_length: int,
    labels: Sequence[str] | None = None,
    context: Literal["document", "sentence"] = "document",
    doc_stride: int | None = 128,
) -> TaggingFeatures:
    """Tokenizes words and puts them into windows.

    The windows go over the whole document, or over each sentence by itself.
    Each begins with a whole word. A word that is in several is labelled, and
    later read, in the one where it has the most context, which is the rule of
    _check_is_max_context (run_squad.py:383-417 of the original).

    Args:
      examples: The sentences, those of a document after each other.
      tokenizer: The tokenizer.
      max_seq_length: The most pieces of a window, with [CLS] and [SEP].
      labels: The names of the labels in the order of their ids; None leaves
        the examples' tags unread. A tag that is none of them has no label.
      context: What a window may reach over.
      doc_stride: How many pieces further each window begins, at most; None
        for one window only, so that words behind it are lost.

    Raises:
      UserError: If `max_seq_length` leaves no room for a piece, `doc_stride`
        would leave pieces out, or `labels` are asked for where there are no
        tags.
    """
    room = max_seq_length - 2
    _check_lengths(max_seq_length, doc_stride)
    words = _tokenize(examples, tokenizer)
    lengths = np.diff(words.splits)
    word_rows = np.full(len(lengths), _NONE, np.int32)
    word_positions = np.zeros(len(lengths), np.int32)
    example_splits = _splits([len(example.words) for example in examples])
    spans: list[tuple[int, int]] = []
    for first, end in _units(examples, example_splits, context):
        # Their number and their first pieces; a word may have no piece.
        numbers = first + np.flatnonzero(lengths[first:end])
        if not numbers.size:
            continue
        starts = words.splits[numbers]
        unit_spans = _windows(starts, words.splits[end], room, doc_stride)
        rows = _most_context(starts, unit_spans)
        begins = np.array([begin for begin, _ in unit_spans])[rows]
        word_rows[numbers] = np.where(rows < 0, rows, rows + len(spans))
        word_positions[numbers] = starts - begins + 1
        spans.extend(unit_spans)
    ids, row_splits = _gather_windows(words.pieces, spans, tokenizer)
    label_ids = None
    found = word_rows != _NONE
    if labels is not None:
        label_ids = np.full(len(ids), _NONE, np.int32)
        places = row_splits[word_rows[found]] + word_positions[found]
        label_ids[places] = _convert_tags(examples, labels)[found]
    return TaggingFeatures(
        ids,
        label_ids,
        row_splits,
        word_rows,
        word_positions,
        example_splits,
        tokenizer.vocabulary.pad_id,
        int(np.sum(lengths == 0)),
        int(np.sum(~found & (lengths > 0))),
    )


def decode_tags(
    features: TaggingFeatures,
    predictions: Sequence[np.ndarray],
    labels: Sequence[str],
) -> list[tuple[str, ...]]:
    """Returns the predicted tags of each example, one for each word.

    Args:
      features: What was predicted for.
      predictions: N arrays <int>[at least the window's length], the ids of the
        labels predicted for each position of each window.
      labels: The names of the labels.
    """
    tags = []
    for row, position in zip(
        features.word_rows.tolist(),
        features.word_positions.tolist(),
        strict=True,
    ):
        predicted = row != _NONE
        tags.append(
            labels[predictions[row][position]] if predicted else OUTSIDE
        )
    return [
        tuple(tags[start:end])
        for start, end in itertools.pairwise(features.example_splits.tolist())
    ]


def _check_lengths(max_seq_length: int, doc_stride: int | None) -> None:
    if max_seq_length < 3:
        raise UserError(
            f"`max_seq_length` must be at least 3. Received: {max_seq_length}."
        )
    if doc_stride is not None and not 1 <= doc_stride <= max_seq_length - 2:
        raise UserError(
            "`doc_stride` must lie between 1 and `max_seq_length` - 2, or "
            f"pieces between windows are lost. Received: {doc_stride} with "
            f"max_seq_length={max_seq_length}."
        )


def _splits(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _tokenize(
    examples: Sequence[TaggingExample], tokenizer: BertTokenizer
) -> _Words:
    """Tokenizes each word by itself, and each once."""
    numbers: dict[str, int] = {}
    order = [
        numbers.setdefault(word, len(numbers))
        for example in examples
        for word in example.words
    ]
    known = list(numbers)
    pieces = []
    for start in range(0, len(known), _WORDS_PER_CALL):
        ids = tokenizer.tokenize(known[start : start + _WORDS_PER_CALL])
        values = ids.flat_values.numpy()
        splits = ids.row_splits.numpy().tolist()
        pieces.extend(values[a:b] for a, b in itertools.pairwise(splits))
    ordered = [pieces[number] for number in order]
    return _Words(
        np.concatenate([np.zeros([0], np.int32), *ordered]),
        _splits([len(x) for x in ordered]),
    )


def _units(examples, example_splits, context) -> Iterator[tuple[int, int]]:
    """Yields the words, from first to end, that may share a window."""
    if context == "sentence":
        yield from itertools.pairwise(example_splits.tolist())
        return

    def document_of(number):
        document = examples[number].document
        return (document, number if document == ALONE else ALONE)

    documents = itertools.groupby(range(len(examples)), key=document_of)
    for _, group in documents:
        members = list(group)
        yield (
            int(example_splits[members[0]]),
            int(example_splits[members[-1] + 1]),
        )


def _windows(
    starts: np.ndarray, end: int, room: int, stride: int | None
) -> list[tuple[int, int]]:
    """Returns where windows over a unit's pieces begin and end.

    Args:
      starts: <int64>[words], where the first piece of each word is.
      end: Where the unit ends.
      room: The most pieces of a window.
      stride: The most pieces between two beginnings, or None for one window.
    """
    spans = []
    word = 0
    while word < len(starts):
        begin = int(starts[word])
        spans.append((begin, min(begin + room, end)))
        if stride is None or spans[-1][1] == end:
            break
        following = np.searchsorted(starts, begin + stride, side="right") - 1
        # One word may have more pieces than the stride.
        word = max(int(following), word + 1)
    return spans


def _most_context(
    starts: np.ndarray, spans: Sequence[tuple[int, int]]
) -> np.ndarray:
    """Returns <int64>[words], each word's best window, or -1."""
    best = np.full(len(starts), -1.0)
    rows = np.full(len(starts), _NONE)
    for row, (begin, end) in enumerate(spans):
        inside = slice(*np.searchsorted(starts, [begin, end]))
        left = starts[inside] - begin
        right = end - 1 - starts[inside]
        score = np.minimum(left, right) + 0.01 * (end - begin)
        rows[inside] = np.where(score > best[inside], row, rows[inside])
        best[inside] = np.maximum(best[inside], score)
    return rows


def _gather_windows(
    pieces: np.ndarray,
    spans: Sequence[tuple[int, int]],
    tokenizer: BertTokenizer,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns [CLS] ... [SEP] of each window, and where each begins."""
    first = np.array([tokenizer.vocabulary.cls_id], np.int32)
    last = np.array([tokenizer.vocabulary.sep_id], np.int32)
    parts = [np.zeros([0], np.int32)]
    for begin, end in spans:
        parts += [first, pieces[begin:end], last]
    lengths = [end - begin + 2 for begin, end in spans]
    return np.concatenate(parts), _splits(lengths)


def _convert_tags(
    examples: Sequence[TaggingExample], labels: Sequence[str]
) -> np.ndarray:
    """Returns <int32>[W], the label ids of all words, -1 for other tags."""
    ids = {label: number for number, label in enumerate(labels)}
    for example in examples:
        if example.tags is None:
            raise UserError(
                "Expected a tag for each word. Received: a sentence without "
                f"tags, {' '.join(example.words)[:50]!r}."
            )
    return np.array(
        [ids.get(tag, _NONE) for x in examples for tag in x.tags], np.int32
    )

"""Tagging features: windows of tokens with labels, and decoding of tags.

Each word is tokenized independently, and its first token represents it
(section 5.3 of the paper): this token has the label, the others have none.

Shapes:
  W: number of words of all examples.
  N: number of windows.
  B: batch size.
  T: length of a batch.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Literal

import numpy as np

from bert_tf.errors import UserError
from bert_tf.tasks import packed_rows
from bert_tf.tasks.tagging.examples import ALONE
from bert_tf.tasks.tagging.examples import OUTSIDE
from bert_tf.tasks.tagging.examples import TaggingExample
from bert_tf.text.tokenizer import BertTokenizer

LABEL_IDS = "label_ids"
LABEL_WEIGHTS = "label_weights"

# The tokenizer is fast for many texts at once; this bounds memory.
_WORDS_PER_CALL = 16384
_NONE = -1


@dataclasses.dataclass(frozen=True)
class TaggingFeatures:
    """Windows [CLS] tokens [SEP] of unequal lengths, without padding.

    Attributes:
      input_ids: <int32>[sum of lengths], the windows concatenated.
      label_ids: <int32>[sum of lengths], -1 where there is no label; None
        without labels.
      row_splits: <int64>[N + 1], the bounds of the windows.
      word_rows: <int32>[W], the window in which a word has the most context,
        -1 if it is in none.
      word_positions: <int32>[W], the word's first token in this window.
      example_splits: <int64>[number of examples + 1], the bounds of the
        examples' words.
      pad_id: The id of [PAD].
      num_words_without_token: The number of words that consist of characters
        that the tokenizer drops, as control characters. They are tagged O.
      num_truncated_words: The number of words behind the last window. They are
        tagged O.
    """

    input_ids: np.ndarray
    label_ids: np.ndarray | None
    row_splits: np.ndarray
    word_rows: np.ndarray
    word_positions: np.ndarray
    example_splits: np.ndarray
    pad_id: int
    num_words_without_token: int
    num_truncated_words: int

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    @property
    def lengths(self) -> np.ndarray:
        """<int64>[N], tokens of each window with [CLS] and [SEP]."""
        return np.diff(self.row_splits)

    def batch(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns the model's inputs, and the labels, for some windows.

        Args:
          indices: <int64>[B], the windows.
          length: T, at least the length of the longest window.

        Returns:
          `input_ids`, `input_mask` and `segment_ids` <int32>[B, T] and, with
          labels, `label_ids` <int32>[B, T] and `label_weights` <float32>[B, T],
          which are 0 at tokens without a label.

        Raises:
          ValueError: If a window is longer than `length`.
        """
        rows = packed_rows.choose_rows(self.row_splits, indices, length)
        batch = rows.inputs(self.input_ids, self.pad_id)
        if self.label_ids is not None:
            labels = rows.place(self.label_ids, _NONE)
            batch[LABEL_IDS] = np.maximum(labels, 0)
            batch[LABEL_WEIGHTS] = (labels != _NONE).astype(np.float32)
        return batch


@dataclasses.dataclass(frozen=True)
class _Words:
    """The tokens of all words: word w has `ids[splits[w]:splits[w + 1]]`."""

    ids: np.ndarray
    splits: np.ndarray


def convert_examples_to_features(
    examples: Sequence[TaggingExample],
    tokenizer: BertTokenizer,
    max_seq_length: int,
    labels: Sequence[str] | None = None,
    context: Literal["document", "sentence"] = "document",
    doc_stride: int | None = 128,
) -> TaggingFeatures:
    """Tokenizes words and cuts them into windows.

    Windows cover a whole document, or each sentence separately, and begin with
    a whole word. A word in several windows is labeled and predicted in the
    window where it has the most context, by the rule of _check_is_max_context
    (run_squad.py:383-417 of the original).

    Args:
      examples: The sentences; those of a document are consecutive.
      tokenizer: The tokenizer.
      max_seq_length: The maximum number of tokens in a window, with [CLS] and
        [SEP].
      labels: The names of the labels in the order of their ids; None ignores
        the examples' tags. Other tags have no label.
      context: The unit that a window may span.
      doc_stride: The maximum distance between the starts of windows, in
        tokens; None for a single window, which drops the words behind it.

    Raises:
      UserError: If `max_seq_length` leaves no room for a token, `doc_stride`
        skips tokens, or there are `labels` but no tags.
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
        # The words with tokens, and their first tokens.
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
    ids, row_splits = _gather_windows(words.ids, spans, tokenizer)
    label_ids = None
    is_covered = word_rows != _NONE
    if labels is not None:
        label_ids = np.full(len(ids), _NONE, np.int32)
        places = row_splits[word_rows[is_covered]] + word_positions[is_covered]
        label_ids[places] = _convert_tags(examples, labels)[is_covered]
    return TaggingFeatures(
        ids,
        label_ids,
        row_splits,
        word_rows,
        word_positions,
        example_splits,
        tokenizer.vocabulary.pad_id,
        int(np.sum(lengths == 0)),
        int(np.sum(~is_covered & (lengths > 0))),
    )


def decode_tags(
    features: TaggingFeatures,
    predictions: Sequence[np.ndarray],
    labels: Sequence[str],
) -> list[tuple[str, ...]]:
    """Returns the predicted tags of each example, one per word.

    Args:
      features: The features.
      predictions: N arrays <int>[at least the window's length], the predicted
        label ids at each position of each window.
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


def collect_labels(examples: Iterable[TaggingExample]) -> list[str]:
    """Returns the labels of examples: O, then B- and I- of each type.

    Each type has both labels, and types are sorted by name, so the list
    depends only on the types.

    Raises:
      UserError: If there is no entity.
    """
    types = sorted(
        {tag[2:] for x in examples for tag in x.tags or () if tag != OUTSIDE}
    )
    if not types:
        raise UserError(
            "Expected entities to learn, in tags such as B-PER. Received: no "
            "tag but O."
        )
    return [OUTSIDE, *(f"{x}-{name}" for name in types for x in "BI")]


def count_unknown_types(
    examples: Iterable[TaggingExample], labels: Sequence[str]
) -> dict[str, int]:
    """Counts the entities whose type has no label, by type.

    They cannot be predicted and count as missed.
    """
    known = set(labels)
    return dict(
        collections.Counter(
            tag[2:]
            for example in examples
            for tag in example.tags or ()
            if tag.startswith("B-") and tag not in known
        )
    )


def _check_lengths(max_seq_length: int, doc_stride: int | None) -> None:
    if max_seq_length < 3:
        raise UserError(
            f"`max_seq_length` must be at least 3. Received: {max_seq_length}."
        )
    if doc_stride is not None and not 1 <= doc_stride <= max_seq_length - 2:
        raise UserError(
            "`doc_stride` must be between 1 and `max_seq_length` - 2 so that "
            f"no tokens are skipped. Received: {doc_stride} with "
            f"max_seq_length={max_seq_length}."
        )


def _splits(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _tokenize(
    examples: Sequence[TaggingExample], tokenizer: BertTokenizer
) -> _Words:
    """Tokenizes each distinct word once."""
    numbers: dict[str, int] = {}
    order = [
        numbers.setdefault(word, len(numbers))
        for example in examples
        for word in example.words
    ]
    distinct = list(numbers)
    word_ids = []
    for start in range(0, len(distinct), _WORDS_PER_CALL):
        ids = tokenizer.tokenize(distinct[start : start + _WORDS_PER_CALL])
        values = ids.flat_values.numpy()
        splits = ids.row_splits.numpy().tolist()
        word_ids.extend(values[a:b] for a, b in itertools.pairwise(splits))
    ordered = [word_ids[number] for number in order]
    return _Words(
        np.concatenate([np.zeros([0], np.int32), *ordered]),
        _splits([len(x) for x in ordered]),
    )


def _units(examples, example_splits, context) -> Iterator[tuple[int, int]]:
    """Yields the ranges of words, first and end, that may share a window."""
    if context == "sentence":
        yield from itertools.pairwise(example_splits.tolist())
        return

    def document_key(number):
        document = examples[number].document
        return (document, number if document == ALONE else ALONE)

    documents = itertools.groupby(range(len(examples)), key=document_key)
    for _, group in documents:
        members = list(group)
        yield (
            int(example_splits[members[0]]),
            int(example_splits[members[-1] + 1]),
        )


def _windows(
    starts: np.ndarray, end: int, room: int, stride: int | None
) -> list[tuple[int, int]]:
    """Returns the bounds of windows over a unit's tokens.

    Args:
      starts: <int64>[words], the first token of each word.
      end: The end of the unit.
      room: The maximum number of tokens in a window.
      stride: The maximum distance between starts, or None for one window.
    """
    spans = []
    word = 0
    while word < len(starts):
        begin = int(starts[word])
        spans.append((begin, min(begin + room, end)))
        if stride is None or spans[-1][1] == end:
            break
        following = np.searchsorted(starts, begin + stride, side="right") - 1
        # A word may have more tokens than the stride.
        word = max(int(following), word + 1)
    return spans


def _most_context(
    starts: np.ndarray, spans: Sequence[tuple[int, int]]
) -> np.ndarray:
    """Returns the window with the most context for each word, or -1."""
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
    token_ids: np.ndarray,
    spans: Sequence[tuple[int, int]],
    tokenizer: BertTokenizer,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns [CLS] tokens [SEP] of all windows, and the windows' bounds."""
    first = np.array([tokenizer.vocabulary.cls_id], np.int32)
    last = np.array([tokenizer.vocabulary.sep_id], np.int32)
    parts = [np.zeros([0], np.int32)]
    for begin, end in spans:
        parts += [first, token_ids[begin:end], last]
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

"""Tests for windows of texts and of words, against plain loops."""

import itertools
import random

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.text import windows as text_windows
from bert_tf.text import word_windows


def _spans(length, room, stride):
    """Returns the windows by the loop of run_squad.py:360-371."""
    spans = []
    start = 0
    while True:
        size = min(length - start, room)
        spans.append((start, size))
        if start + size == length:
            return spans
        start += min(size, stride)


def _expect(a, b, max_length, stride):
    """Yields the segments of each window of one text or pair."""
    if not b:
        spans = _spans(len(a), max_length - 2, stride)
        return [(a[start : start + size], []) for start, size in spans]
    room = max_length - 3
    half = (room + 1) // 2
    if len(b) >= len(a):
        a = a[: max(room - len(b), half)] if len(a) + len(b) > room else a
        spans = _spans(len(b), room - len(a), stride)
        return [(a, b[start : start + size]) for start, size in spans]
    if len(a) + len(b) > room:
        b = b[: room - half]
    spans = _spans(len(a), room - len(b), stride)
    return [(a[start : start + size], b) for start, size in spans]


class CutTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        max_length=(7, 8, 13), stride=(1, 3, 4, 20), has_pairs=(False, True)
    )
    def test_windows_of_random_lengths_equal_a_reference(
        self, max_length, stride, has_pairs
    ):
        rng = np.random.default_rng(max_length * stride)
        texts_a, texts_b = (
            [rng.integers(1, 99, n).tolist() for n in rng.integers(0, 30, 60)]
            for _ in range(2)
        )
        if not has_pairs:
            texts_b = [[]] * 60
        # Exported models call `cut` in a graph, so one case does.
        cut = text_windows.cut if stride > 1 else tf.function(text_windows.cut)
        tokens = [
            tf.ragged.constant(texts, tf.int32)
            for texts in (texts_a, texts_b)[: 1 + has_pairs]
        ]
        windows = cut(tokens, max_length, stride)
        expected = [
            _expect(a, b, max_length, stride)
            for a, b in zip(texts_a, texts_b, strict=True)
        ]
        counts = [len(rows) for rows in expected]
        self.assertGreater(max(counts), 2)
        self.assertAllEqual(
            windows.texts, np.repeat(np.arange(len(counts)), counts)
        )
        flat = [row for rows in expected for row in rows]
        self.assertLen(windows.segments, len(tokens))
        ids = np.concatenate([one.flat_values for one in tokens])
        for number, (starts, lengths) in enumerate(windows.segments):
            self.assertEqual(
                [
                    ids[start : start + length].tolist()
                    for start, length in zip(starts, lengths, strict=True)
                ],
                [row[number] for row in flat],
            )
        lost = 0
        for rows, a, b in zip(expected, texts_a, texts_b, strict=True):
            shorter, part = (a, 0) if len(b) >= len(a) else (b, 1)
            lost += len(rows[0][part]) < len(shorter)
        self.assertEqual(np.sum(windows.lost > 0), lost)
        self.assertEqual(lost > 0, has_pairs)

    def test_empty_batch_has_no_window(self):
        none = tf.RaggedTensor.from_row_lengths(
            tf.zeros([0], tf.int32), tf.zeros([0], tf.int64)
        )
        windows = text_windows.cut([none, none], 8, 2)
        self.assertAllEqual(windows.texts, np.zeros([0]))
        self.assertEqual(windows.segments[1][0].shape, [0])


def _random_lengths(rng):
    """Returns the number of tokens of each word of a text."""
    return rng.choices([0, 1, 1, 1, 2, 3, 7, 25], k=rng.choice([0, 1, 9, 60]))


def _word_spans(starts, end, room, stride):
    """Returns the bounds of the windows of a text, by a loop."""
    spans = []
    word = 0
    while word < len(starts):
        begin = starts[word]
        spans.append((begin, min(begin + room, end)))
        if stride is None or spans[-1][1] == end:
            break
        following = np.searchsorted(starts, begin + stride, side="right") - 1
        # A word may have more tokens than the stride, so advance at least one.
        word = max(following, word + 1)
    return spans


def _most_context(start, spans):
    """Returns the window with the most context, by a loop, or -1."""
    best, chosen = -1.0, -1
    for number, (begin, end) in enumerate(spans):
        score = min(start - begin, end - 1 - start) + 0.01 * (end - begin)
        if begin <= start < end and score > best:
            best, chosen = score, number
    return chosen


class WordWindowsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        *itertools.product((1, 5, 13), (None, 1, 2)), (5, 5), (13, 8), (30, 15)
    )
    def test_cuts_the_windows_of_the_features(self, room, stride):
        stride = stride and min(stride, room)
        cut = tf.function(
            lambda values, lengths, texts, count: word_windows.cut(
                tf.RaggedTensor.from_row_lengths(values, lengths),
                texts,
                count,
                room,
                stride,
            )._asdict(),
            input_signature=[
                tf.TensorSpec([None], tf.int32),
                *[tf.TensorSpec([None], tf.int64)] * 2,
                tf.TensorSpec([], tf.int64),
            ],
        )
        rng = random.Random(room)
        for _ in range(10):
            texts = [_random_lengths(rng) for _ in range(4)]
            lengths = np.array(sum(texts, []), np.int64)
            windows = cut(
                np.arange(lengths.sum(), dtype=np.int32),
                lengths,
                np.repeat(range(4), [len(text) for text in texts]),
                4,
            )
            spans, rows, places, first = [], [], [], 0
            for text in texts:
                starts = first + np.cumsum([0, *text])
                first = starts[-1]
                own = _word_spans(
                    starts[:-1][np.array(text, int) > 0], first, room, stride
                )
                for start, length in zip(starts, text, strict=False):
                    row = _most_context(start, own) if length else -1
                    rows.append(row if row < 0 else len(spans) + row)
                    places.append(-1 if row < 0 else start - own[row][0])
                spans += own
            shown = windows["tokens"].to_list()
            self.assertEqual(
                shown[: len(spans)], [list(range(*span)) for span in spans]
            )
            # An empty window follows for each text without tokens.
            empty = [[] for text in texts if not sum(text)]
            self.assertEqual(shown[len(spans) :], empty)
            self.assertAllEqual(windows["rows"], rows)
            self.assertAllEqual(windows["places"], places)


if __name__ == "__main__":
    tf.test.main()

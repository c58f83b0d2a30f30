"""Tests for bert_tf.text.word_windows."""

import itertools
import random

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.text import word_windows


def _random_lengths(rng):
    """Returns the number of tokens of each word of a text."""
    return rng.choices([0, 1, 1, 1, 2, 3, 7, 25], k=rng.choice([0, 1, 9, 60]))


def _spans(starts, end, room, stride):
    """Returns the bounds of the windows of a text, by a loop."""
    spans = []
    word = 0
    while word < len(starts):
        begin = starts[word]
        spans.append((begin, min(begin + room, end)))
        if stride is None or spans[-1][1] == end:
            break
        following = np.searchsorted(starts, begin + stride, side="right") - 1
        # A word may have more tokens than the stride.
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
            lambda values, lengths, texts, count: (
                word_windows.cut(
                    tf.RaggedTensor.from_row_lengths(values, lengths),
                    texts,
                    count,
                    room,
                    stride,
                ).__dict__
            ),
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
                own = _spans(
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
            # Followed by an empty window for each text without tokens.
            empty = [[] for text in texts if not sum(text)]
            self.assertEqual(shown[len(spans) :], empty)
            self.assertAllEqual(windows["rows"], rows)
            self.assertAllEqual(windows["places"], places)


if __name__ == "__main__":
    tf.test.main()

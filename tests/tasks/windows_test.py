"""Tests for windows of packed texts and for bert_tf.text.windows."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.tasks import packed_rows
from bert_tf.tasks.classification import features as classification_features
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.text import windows as text_windows
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary


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
    def test_windows_of_random_lengths(self, max_length, stride, has_pairs):
        rng = np.random.default_rng(max_length * stride)
        texts_a, texts_b = (
            [rng.integers(1, 99, n).tolist() for n in rng.integers(0, 30, 60)]
            for _ in range(2)
        )
        if not has_pairs:
            texts_b = [[]] * 60
        windows = text_windows.cut(
            tf.ragged.constant(texts_a, tf.int32),
            tf.ragged.constant(texts_b, tf.int32) if has_pairs else None,
            max_length,
            stride,
        )
        expected = [
            _expect(a, b, max_length, stride)
            for a, b in zip(texts_a, texts_b, strict=True)
        ]
        self.assertAllEqual(windows.counts, [len(rows) for rows in expected])
        self.assertGreater(windows.counts.max(), 2)
        flat = [row for rows in expected for row in rows]
        # In parts, of which the last is not full.
        parts = [
            windows.tokens(start, start + 32)
            for start in range(0, len(flat), 32)
        ]
        tokens_a = [row for part in parts for row in part[0].to_list()]
        self.assertEqual(tokens_a, [a for a, _ in flat])
        if has_pairs:
            tokens_b = [row for part in parts for row in part[1].to_list()]
            self.assertEqual(tokens_b, [b for _, b in flat])
        lost = 0
        for rows, a, b in zip(expected, texts_a, texts_b, strict=True):
            shorter, part = (a, 0) if len(b) >= len(a) else (b, 1)
            lost += len(rows[0][part]) < len(shorter)
        self.assertEqual(windows.num_truncated, lost)
        self.assertEqual(lost > 0, has_pairs)


class PackWindowsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.tokenizer = BertTokenizer(
            Vocabulary(
                ["[UNK]", "[SEP]", "a", "[CLS]", "[MASK]", "[PAD]", "b", "c"]
            )
        )

    def test_windows_among_short_texts(self):
        packed, splits = packed_rows.pack_windows(
            ["c", "a b c b a", "", "b"],
            None,
            self.tokenizer,
            max_seq_length=5,
            doc_stride=2,
        )
        self.assertAllEqual(splits, [0, 1, 3, 4, 5])
        self.assertAllEqual(packed.lengths, [3, 5, 5, 2, 3])
        self.assertEqual(packed.num_truncated, 0)
        self.assertAllEqual(
            packed.batch(np.array([2, 0, 1]), 5)["input_ids"],
            [[3, 7, 6, 2, 1], [3, 7, 1, 5, 5], [3, 2, 6, 7, 1]],
        )

    def test_windows_of_pairs(self):
        packed, splits = packed_rows.pack_windows(
            ["a", "c a b b c"],
            ["b c a b", "b"],
            self.tokenizer,
            max_seq_length=7,
            doc_stride=9,
        )
        self.assertAllEqual(splits, [0, 2, 4])
        batch = packed.batch(np.arange(4), 7)
        self.assertAllEqual(
            batch["input_ids"],
            [
                [3, 2, 1, 6, 7, 2, 1],
                [3, 2, 1, 6, 1, 5, 5],
                [3, 7, 2, 6, 1, 6, 1],
                [3, 6, 7, 1, 6, 1, 5],
            ],
        )
        self.assertAllEqual(
            batch["segment_ids"],
            [
                [0, 0, 0, 1, 1, 1, 1],
                [0, 0, 0, 1, 1, 0, 0],
                [0, 0, 0, 0, 0, 1, 1],
                [0, 0, 0, 0, 1, 1, 0],
            ],
        )

    def test_more_windows_than_are_packed_at_once(self):
        count = packed_rows._TEXTS_PER_CALL + 4
        long = " ".join("abc"[i % 3] for i in range(count))
        packed, splits = packed_rows.pack_windows(
            ["a", long, "b"], None, self.tokenizer, 4, 1
        )
        self.assertAllEqual(splits, [0, 1, count, count + 1])
        tokens = self.tokenizer.tokenize(long).numpy()
        batch = packed.batch(np.arange(1, count), 4)["input_ids"]
        self.assertAllEqual(batch[:, 1], tokens[:-1])
        self.assertAllEqual(batch[:, 2], tokens[1:])

    def test_all_windows_have_the_label_of_their_example(self):
        examples = [
            InputExample("1", "a b c b a", None, "y"),
            InputExample("2", "c", None, "x"),
        ]
        features = classification_features.convert_examples_to_features(
            examples, self.tokenizer, 5, ("x", "y"), doc_stride=1
        )
        self.assertLen(features, 4)
        self.assertAllEqual(features.example_splits, [0, 3, 4])
        self.assertAllEqual(features.label_ids, [1, 1, 1, 0])
        self.assertEqual(features.num_windowed, 1)
        self.assertAllEqual(features.lengths, [5, 5, 5, 3])


if __name__ == "__main__":
    tf.test.main()

"""Tests for bert_tf.tasks.packed_rows."""

import numpy as np
import tensorflow as tf

from bert_tf.tasks import packed_rows
from bert_tf.tasks.classification import features as classification_features
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary


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

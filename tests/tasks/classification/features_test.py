"""Tests for tasks.packed_rows and the features of classification."""

import json
import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.tasks import packed_rows
from bert_tf.tasks.classification import task
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support.shared_data import golden

_NAMES = ("input_ids", "input_mask", "segment_ids")


class GoldenTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        with open(golden("classifier/features.json"), encoding="utf-8") as file:
            self.golden = json.load(file)
        self.examples = [
            InputExample(str(i), row["text_a"], row["text_b"], row["label"])
            for i, row in enumerate(self.golden["rows"])
        ]
        self.tokenizer = BertTokenizer.from_vocab_file(
            golden(os.path.join("vocab", self.golden["vocab"])),
            self.golden["do_lower_case"],
        )
        self.features = task.convert_examples_to_features(
            self.examples,
            self.tokenizer,
            self.golden["max_seq_length"],
            self.golden["label_list"],
        )

    def test_all_examples_equal_the_originals(self):
        rows = self.golden["rows"]
        self.assertLen(rows, 50)
        batch = self.features.batch(
            np.arange(50), self.golden["max_seq_length"]
        )
        for name in _NAMES:
            self.assertEqual(batch[name].dtype, np.int32)
            self.assertAllEqual(batch[name], [row[name] for row in rows])
        self.assertAllEqual(
            batch["label_ids"], [row["label_id"] for row in rows]
        )


class FeaturesTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.tokenizer = BertTokenizer(
            Vocabulary(
                ["[UNK]", "[SEP]", "a", "[CLS]", "[MASK]", "[PAD]", "b", "c"]
            )
        )

    def test_long_texts_become_windows_among_short_ones(self):
        packed = packed_rows.pack_texts(
            ["c", "a b c b a", "", "b"],
            None,
            self.tokenizer,
            max_seq_length=5,
            doc_stride=2,
        )
        self.assertAllEqual(packed.examples, [0, 1, 1, 2, 3])
        self.assertAllEqual(packed.lengths, [3, 5, 5, 2, 3])
        self.assertEqual(packed.num_truncated, 0)
        self.assertAllEqual(
            packed.batch(np.array([2, 0, 1]), 5)["input_ids"],
            [[3, 7, 6, 2, 1], [3, 7, 1, 5, 5], [3, 2, 6, 7, 1]],
        )

    def test_windows_stay_in_order_across_calls(self):
        count = packed_rows._PER_CALL + 4
        long = " ".join("abc"[i % 3] for i in range(count))
        packed = packed_rows.pack_texts(
            ["a", long, "b"], None, self.tokenizer, 4, 1
        )
        self.assertAllEqual(np.bincount(packed.examples), [1, count - 1, 1])
        tokens = self.tokenizer.tokenize(long).numpy()
        batch = packed.batch(np.arange(1, count), 4)["input_ids"]
        self.assertAllEqual(batch[:, 1], tokens[:-1])
        self.assertAllEqual(batch[:, 2], tokens[1:])

    def test_all_windows_have_the_label_of_their_example(self):
        examples = [
            InputExample("1", "a b c b a", None, "y"),
            InputExample("2", "c", None, "x"),
        ]
        features = task.convert_examples_to_features(
            examples, self.tokenizer, 5, ("x", "y"), doc_stride=1
        )
        self.assertLen(features, 4)
        self.assertAllEqual(features.examples, [0, 0, 0, 1])
        self.assertAllEqual(features.targets["label_ids"], [1, 1, 1, 0])
        self.assertAllEqual(features.lengths, [5, 5, 5, 3])

    @parameterized.parameters(
        ("single_label", ("y", "x"), ["x", "y", "x"], [1, 0, 1], np.int32),
        (
            "multi_label",
            ("z", "x", "y"),
            [("x", "z"), (), ("y",)],
            [[1, 1, 0], [0, 0, 0], [0, 0, 1]],
            np.float32,
        ),
        ("regression", None, [0.5, -2.0, 3.25], [0.5, -2.0, 3.25], np.float32),
    )
    def test_labels_get_ids(self, problem_type, labels, given, expected, dtype):
        examples = [InputExample("", "a", None, label) for label in given]
        features = task.convert_examples_to_features(
            examples, self.tokenizer, 9, labels, problem_type
        )
        self.assertLen(features, 3)
        self.assertEqual(features.targets["label_ids"].dtype, dtype)
        self.assertAllEqual(features.targets["label_ids"], expected)
        self.assertAllEqual(
            features.batch(np.array([2, 0]), 4)["label_ids"],
            [expected[2], expected[0]],
        )


if __name__ == "__main__":
    tf.test.main()

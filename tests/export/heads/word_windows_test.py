"""Tests for export.heads.word_windows."""

import itertools
import random

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.export.heads import word_windows
from bert_tf.tasks.tagging import features as tagging_features
from bert_tf.tasks.tagging.examples import TaggingExample
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary

_VOCABULARY = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])


class _Tokenizer(BertTokenizer):
    """Tokenizes a number n to n different tokens."""

    def tokenize(self, text):
        counts = [int(word) for word in text]
        return tf.ragged.range(100, [100 + count for count in counts])


def _random_example(rng):
    counts = rng.choices([0, 1, 1, 1, 2, 3, 7, 25], k=rng.choice([0, 1, 9, 60]))
    return TaggingExample(tuple(map(str, counts)))


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
        tokenizer = _Tokenizer(_VOCABULARY)
        rng = random.Random(room)
        for _ in range(10):
            examples = [_random_example(rng) for _ in range(4)]
            words = [word for example in examples for word in example.words]
            tokens = tokenizer.tokenize(words)
            windows = cut(
                tokens.flat_values,
                tokens.row_lengths(),
                np.repeat(range(4), [len(x.words) for x in examples]),
                4,
            )
            features = tagging_features.convert_examples_to_features(
                examples, tokenizer, room + 2, doc_stride=stride
            )
            shown = windows["tokens"].to_list()
            expected = [
                features.input_ids[start + 1 : end - 1].tolist()
                for start, end in itertools.pairwise(features.row_splits)
            ]
            self.assertEqual(shown[: len(expected)], expected)
            # Followed by an empty window for each text without tokens.
            empty = [[] for x in examples if set(x.words) <= {"0"}]
            self.assertEqual(shown[len(expected) :], empty)
            self.assertAllEqual(windows["rows"], features.word_rows)
            self.assertAllEqual(
                windows["places"],
                np.where(
                    features.word_rows < 0, -1, features.word_positions - 1
                ),
            )


if __name__ == "__main__":
    tf.test.main()

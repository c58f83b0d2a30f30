"""Tests for export.heads.text_windows."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.export.heads import text_windows
from bert_tf.text import windows as library


def _random_rows(rng, count, longest):
    lengths = rng.integers(0, longest, count)
    lengths[0] = 0
    return tf.RaggedTensor.from_row_lengths(
        rng.integers(5, 90, lengths.sum()).astype(np.int32), lengths
    )


class TextWindowsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        with_pairs=[False, True], doc_stride=[1, 3, 100], length=[5, 8, 30]
    )
    def test_cuts_the_windows_of_the_library(
        self, with_pairs, doc_stride, length
    ):
        rng = np.random.default_rng(doc_stride + length)
        tokens_a = _random_rows(rng, 40, 60)
        tokens_b = _random_rows(rng, 40, 30) if with_pairs else None
        expected = library.cut(tokens_a, tokens_b, length, doc_stride)
        windows = text_windows.cut(tokens_a, tokens_b, length, doc_stride)
        count = expected.counts.sum()
        wanted_a, wanted_b = expected.tokens(0, count)
        self.assertGreater(count, 40)
        self.assertAllEqual(windows.tokens_a, wanted_a)
        if with_pairs:
            self.assertAllEqual(windows.tokens_b, wanted_b)
        else:
            self.assertIsNone(windows.tokens_b)
        self.assertAllEqual(
            windows.texts, np.repeat(np.arange(40), expected.counts)
        )

    def test_empty_batch_has_no_window(self):
        none = tf.RaggedTensor.from_row_lengths(
            tf.zeros([0], tf.int32), tf.zeros([0], tf.int64)
        )
        windows = text_windows.cut(none, none, 8, 2)
        self.assertAllEqual(windows.texts, np.zeros([0]))
        self.assertEqual(windows.tokens_b.nrows(), 0)


if __name__ == "__main__":
    tf.test.main()

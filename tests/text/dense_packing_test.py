"""Tests for export.heads.dense_packing."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.text import dense_packing
from bert_tf.text import packing
from bert_tf.text.vocabulary import Vocabulary
from tests.support import tiny_model

_BUCKETS = (3, 5, 6, 9, 17)


def _random_rows(rng, count, longest):
    lengths = rng.integers(0, longest, count)
    return tf.RaggedTensor.from_row_lengths(
        rng.integers(5, 16, lengths.sum()).astype(np.int32), lengths
    )


class DensePackingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(longest=[1, 3, 8, 30], with_pairs=[False, True])
    def test_packs_as_the_library(self, longest, with_pairs):
        rng = np.random.default_rng(longest)
        vocabulary = Vocabulary(tiny_model.TOKENS)
        tokens_a = _random_rows(rng, 60, longest)
        tokens_b = _random_rows(rng, 60, 20) if with_pairs else None
        whole = packing.pack(tokens_a, tokens_b, _BUCKETS[-1], vocabulary)
        lengths = whole["input_mask"].numpy().sum(-1)
        # All rows, those of one length, and none.
        for chosen in (
            np.arange(60),
            *(np.flatnonzero(lengths == x) for x in np.unique(lengths)),
            np.zeros([0], np.int64),
        ):
            packed = dense_packing.pack(
                tf.gather(tokens_a, chosen),
                tf.gather(tokens_b, chosen) if with_pairs else None,
                _BUCKETS,
                vocabulary,
            )
            length = max([0, *lengths[chosen]])
            bucket = min(bucket for bucket in _BUCKETS if bucket >= length)
            for name, values in packed.items():
                self.assertEqual(values.dtype, tf.int32)
                self.assertAllEqual(
                    values, whole[name].numpy()[chosen][:, :bucket], name
                )

    def test_no_room_for_a_piece_is_an_error(self):
        tokens = _random_rows(np.random.default_rng(0), 3, 4)
        vocabulary = Vocabulary(tiny_model.TOKENS)
        for tokens_b, buckets in ((None, (2,)), (tokens, (2, 4))):
            with self.assertRaisesRegex(UserError, "must be at least [35]"):
                dense_packing.pack(tokens, tokens_b, buckets, vocabulary)


if __name__ == "__main__":
    tf.test.main()

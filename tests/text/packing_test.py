"""Tests for bert_tf.text.packing."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.text import packing
from bert_tf.text.vocabulary import Vocabulary
from tests.support import tiny_model

_VOCABULARY = Vocabulary(["[UNK]", "[SEP]", "x", "[CLS]", "[MASK]", "[PAD]"])
_SEP, _CLS, _PAD = 1, 3, 5
_BUCKETS = (3, 5, 6, 9, 17)


def _ragged(rows):
    return tf.ragged.constant(rows, tf.int32, ragged_rank=1)


def _pack_one(tokens_a, tokens_b, length):
    """Packs a row with the original's loops (run_classifier.py:377-571)."""
    a, b = list(tokens_a), list(tokens_b)
    if b:
        while len(a) + len(b) > length - 3:
            (a if len(a) > len(b) else b).pop()
    else:
        a = a[: length - 2]
    ids = [_CLS, *a, _SEP] + ([*b, _SEP] if b else [])
    segments = [0] * (len(a) + 2) + [1] * (len(b) + 1 if b else 0)
    padding = [0] * (length - len(ids))
    return (
        ids + [_PAD] * len(padding),
        [1] * len(ids) + padding,
        segments + padding,
    )


class PackTest(tf.test.TestCase, parameterized.TestCase):
    def test_single_segments_are_cut_and_padded(self):
        packed = packing.pack(
            _ragged([[10, 11, 12, 13], [14], []]), None, 5, _VOCABULARY
        )
        self.assertAllEqual(
            packed["input_ids"],
            [[3, 10, 11, 12, 1], [3, 14, 1, 5, 5], [3, 1, 5, 5, 5]],
        )
        self.assertAllEqual(
            packed["input_mask"],
            [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]],
        )
        self.assertAllEqual(packed["segment_ids"], np.zeros((3, 5)))

    @parameterized.parameters(3, 4, 5, 6, 7, 8, 13, 30)
    def test_pairs_of_all_lengths_equal_the_original(self, length):
        pairs = [(a, b) for a in range(13) for b in range(13)]
        rows_a = [list(range(100, 100 + a)) for a, _ in pairs]
        rows_b = [list(range(200, 200 + b)) for _, b in pairs]
        packed = packing.pack(
            _ragged(rows_a), _ragged(rows_b), length, _VOCABULARY
        )
        expected = [
            _pack_one(a, b, length) for a, b in zip(rows_a, rows_b, strict=True)
        ]
        for i, name in enumerate(("input_ids", "input_mask", "segment_ids")):
            self.assertEqual(packed[name].dtype, tf.int32)
            self.assertAllEqual(packed[name], [row[i] for row in expected])

    def test_length_is_static_in_a_pipeline(self):
        dataset = tf.data.Dataset.from_tensor_slices([3, 1]).batch(2)
        dataset = dataset.map(
            lambda n: packing.pack(
                tf.ragged.range(n), tf.ragged.range(n + 1), 9, _VOCABULARY
            )
        )
        self.assertEqual(dataset.element_spec["input_ids"].shape[1:], [9])
        (packed,) = dataset
        self.assertAllEqual(
            packed["input_ids"],
            [[3, 0, 1, 2, 1, 0, 1, 2, 1], [3, 0, 1, 0, 1, 1, 5, 5, 5]],
        )

    def test_empty_batch_keeps_its_width(self):
        empty = tf.zeros([0], tf.int32)
        rows = tf.RaggedTensor.from_row_splits(empty, [0])
        packed = packing.pack(rows, rows, 6, _VOCABULARY)
        for value in packed.values():
            self.assertEqual(value.shape, [0, 6])

    @parameterized.parameters((None,), ([[7]],))
    def test_rejects_lengths_without_room(self, row_b):
        tokens_b = row_b and _ragged(row_b)
        with self.assertRaisesRegex(UserError, "at least 3. .*2"):
            packing.pack(_ragged([[7]]), tokens_b, 2, _VOCABULARY)


def _random_rows(rng, count, longest):
    lengths = rng.integers(0, longest, count)
    return tf.RaggedTensor.from_row_lengths(
        rng.integers(5, 16, lengths.sum()).astype(np.int32), lengths
    )


class PackToBucketTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(longest=[1, 3, 8, 30], with_pairs=[False, True])
    def test_equals_pack_cut_to_a_bucket(self, longest, with_pairs):
        rng = np.random.default_rng(longest)
        vocabulary = Vocabulary(tiny_model.TOKENS)
        tokens_a = _random_rows(rng, 60, longest)
        tokens_b = _random_rows(rng, 60, 20) if with_pairs else None
        whole = packing.pack(tokens_a, tokens_b, _BUCKETS[-1], vocabulary)
        tokens = [tokens_a, tokens_b][: 1 + with_pairs]
        lengths = whole["input_mask"].numpy().sum(-1)
        # All rows, all rows of one length, and no rows.
        for chosen in (
            np.arange(60),
            *(np.flatnonzero(lengths == x) for x in np.unique(lengths)),
            np.zeros([0], np.int64),
        ):
            packed = packing.pack_to_bucket(
                [tf.gather(x, chosen) for x in tokens],
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

    @parameterized.product(longest=[1, 8, 30], with_pairs=[False, True])
    def test_rows_without_padding_equal_pack(self, longest, with_pairs):
        rng = np.random.default_rng(longest)
        tokens = [_random_rows(rng, 60, longest), _random_rows(rng, 60, 20)]
        tokens = tokens[: 1 + with_pairs]
        packed = packing.pack(
            tokens[0], tokens[1] if with_pairs else None, 17, _VOCABULARY
        )
        segments, num_tokens = packing.find_segments(tokens)
        layout = packing.lay_out_ragged(segments, num_tokens, 17)
        ids = np.concatenate([*(x.flat_values for x in tokens), [5, 3, 1]])
        mask = packed["input_mask"].numpy()
        self.assertAllEqual(layout.lengths, mask.sum(-1))
        self.assertAllEqual(
            layout.first_lengths, (mask - packed["segment_ids"]).numpy().sum(-1)
        )
        self.assertAllEqual(
            ids[layout.index], packed["input_ids"].numpy()[mask == 1]
        )
        long = packing.pack(
            *tokens, *[None] * (not with_pairs), 99, _VOCABULARY
        )
        full_lengths = long["input_mask"].numpy().sum(-1)
        self.assertAllEqual(layout.is_truncated, full_lengths > 17)


if __name__ == "__main__":
    tf.test.main()

"""Tests for export.heads.substrings."""

import itertools

import tensorflow as tf

from bert_tf.export.heads.substrings import Substrings

_TEXT = "abab aba ab 中b \U0010ffff\U0010ffff b\0 \0\0b"


class SubstringsTest(tf.test.TestCase):
    def test_equal_parts_and_no_others_have_equal_numbers(self):
        places = [n for n, char in enumerate(_TEXT) if char != " "]
        substrings = Substrings(
            tf.constant([ord(_TEXT[n]) for n in places]),
            tf.constant([n == 0 or _TEXT[n - 1] == " " for n in places]),
        )
        spans = [
            (first, last)
            for first, last in itertools.product(range(len(places)), repeat=2)
            if first <= last
        ]
        begins = tf.constant([first for first, _ in spans], tf.int64)
        ends = tf.constant([last + 1 for _, last in spans], tf.int64)
        keys = substrings.key(begins, ends - begins).numpy().tolist()
        texts = [_TEXT[places[a] : places[b] + 1] for a, b in spans]
        self.assertLess(len(set(texts)), len(texts) - 10)
        self.assertLen(set(keys), len(set(texts)))
        self.assertLen(set(zip(keys, texts, strict=True)), len(set(texts)))

    def test_nothing(self):
        substrings = Substrings(tf.zeros([0], tf.int32), tf.zeros([0], tf.bool))
        nothing = tf.zeros([0, 3], tf.int64)
        self.assertEqual(substrings.key(nothing, nothing).shape, [0, 3])
        zero = tf.zeros([1], tf.int64)
        self.assertAllEqual(substrings.key(zero, zero + 7), zero)


if __name__ == "__main__":
    tf.test.main()

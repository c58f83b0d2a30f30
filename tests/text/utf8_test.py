"""Tests for export.heads.utf8."""

import tensorflow as tf

from bert_tf.text import utf8


class Utf8Test(tf.test.TestCase):
    def test_every_character(self):
        codes = [x for x in range(0x110000) if not 0xD800 <= x < 0xE000]
        lengths = [*range(1, 1400), len(codes) - 1400 * 1399 // 2, 0]
        letters = tf.RaggedTensor.from_row_lengths(codes, lengths)
        rows = iter(map(chr, codes))
        expected = [
            "".join(next(rows) for _ in range(length)) for length in lengths
        ]
        strings = tf.function(utf8.encode)(letters).numpy()
        self.assertEqual([x.decode() for x in strings], expected)

    def test_nothing(self):
        for lengths in ([], [0], [0, 0]):
            letters = tf.RaggedTensor.from_row_lengths(
                tf.zeros([0], tf.int32), tf.constant(lengths, tf.int32)
            )
            strings = tf.function(utf8.encode)(letters)
            self.assertEqual(strings.numpy().tolist(), [b""] * len(lengths))


if __name__ == "__main__":
    tf.test.main()

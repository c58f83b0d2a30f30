"""Tests for export.heads.word_splitting."""

import random

import tensorflow as tf

from bert_tf.text import word_splitting
from bert_tf.text import words as words_lib

_PARTS = (
    *"aBzé.…,@#_-'\"()[]1½²٣ßІכ東中ח،€$^·。「🙂 \t\n",
    *"\x00\x1c\x85\xa0\u0301\u200d\u3000\ufeff\ufffd\uffff\ud7ff\U0010ffff",
    *("U.S.", "A.", "@x", "#1", ".", "."),
)


@tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
def _split(text):
    words = word_splitting.split_words(text)
    return words.texts, words.starts, words.ends


def _split_all(texts):
    """Returns for each text its words, as `tagging_words` has them."""
    columns = (x.to_list() for x in _split(tf.constant(texts, tf.string)))
    return [
        [
            words_lib.Word(text.decode(), start, end)
            for text, start, end in zip(*row, strict=True)
        ]
        for row in zip(*columns, strict=True)
    ]


class WordSplittingTest(tf.test.TestCase):
    def _check(self, texts):
        for text, words in zip(texts, _split_all(texts), strict=True):
            self.assertEqual(words, words_lib.split_words(text), text)

    def test_random_texts(self):
        rng = random.Random(5)
        self._check(
            [
                "".join(rng.choices(_PARTS, k=rng.randint(0, 14)))
                for _ in range(20000)
            ]
        )

    def test_characters_of_all_kinds(self):
        codes = [*range(0x3100), *range(0xF800, 0x10000)]
        codes += random.Random(5).sample(range(0x10000, 0x110000), 9000)
        self._check([f"@{c} {c}.b. a{c}a{c}" for c in map(chr, codes)])

    def test_bytes_that_are_not_utf8(self):
        rng = random.Random(5)
        parts = (
            b"\x80 \xe4 \xb8 \xad \xff \xc3 \xa9 \xed\xa0\x80 \xf0\x9f . a @"
        )
        parts = [*parts.split(), b" "]
        texts = [
            b"".join(rng.choices(parts, k=rng.randint(0, 9)))
            for _ in range(5000)
        ]
        for text, words in zip(texts, _split_all(texts), strict=True):
            decoded = text.decode("utf-8", "ignore")
            self.assertEqual(words, words_lib.split_words(decoded), text)

    def test_nothing(self):
        self.assertEqual(_split_all([]), [])
        self.assertEqual(_split_all(["", " \n", ""]), [[], [], []])


if __name__ == "__main__":
    tf.test.main()

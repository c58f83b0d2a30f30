"""Tests for bert_tf.text.words."""

import random

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.text import words as words_lib

_PARTS = (
    *"aBzé.…,@#_-'\"()[]1½²٣ßІכ東中ח،€$^·。「🙂 \t\n",
    *"\x00\x1c\x85\xa0\u0301\u200d\u3000\ufeff\ufffd\uffff\ud7ff\U0010ffff",
    *("U.S.", "A.", "@x", "#1", ".", "."),
)


class SplitWordsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("", ""),
        (" \t\n", ""),
        ("Rome, Oslo.", "Rome|,|Oslo|."),
        ('He said: "No (never)!"', 'He|said|:|"|No|(|never|)|!|"'),
        ("the U.S. and George W. Bush.", "the|U.S.|and|George|W.|Bush|."),
        ("Coca-Cola is 3.5% of it...", "Coca-Cola|is|3.5|%|of|it|.|.|."),
        ("@paul likes #tags # @", "@paul|likes|#tags|#|@"),
        ("\u201cÉire\u201d\u2014na", "\u201c|Éire\u201d\u2014na"),
        ("我在Oslo住。", "我|在|Oslo|住|。"),
        ("-- a$ \u00a0b", "-|-|a|$|b"),
    )
    def test_offsets_point_to_words(self, text, expected):
        words = words_lib.split_words(text)
        self.assertEqual("|".join(word.text for word in words), expected)
        for word in words:
            self.assertEqual(text[word.start : word.end], word.text)


@tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
def _split(text):
    words = words_lib.split_words_in_graph(text)
    return words.texts, words.starts, words.ends


def _split_all(texts):
    """Returns the words of each text, like `split_words`."""
    columns = (x.to_list() for x in _split(tf.constant(texts, tf.string)))
    return [
        [
            words_lib.Word(text.decode(), start, end)
            for text, start, end in zip(*row, strict=True)
        ]
        for row in zip(*columns, strict=True)
    ]


class SplitWordsInGraphTest(tf.test.TestCase):
    def _check(self, texts):
        for text, words in zip(texts, _split_all(texts), strict=True):
            self.assertEqual(words, words_lib.split_words(text), text)

    def test_random_texts_split_as_in_python(self):
        rng = random.Random(5)
        self._check(
            [
                "".join(rng.choices(_PARTS, k=rng.randint(0, 14)))
                for _ in range(4000)
            ]
        )

    @pytest.mark.slow
    def test_characters_of_all_kinds_split_as_in_python(self):
        codes = [*range(0x3100), *range(0xF800, 0x10000)]
        codes += random.Random(5).sample(range(0x10000, 0x110000), 9000)
        self._check([f"@{c} {c}.b. a{c}a{c}" for c in map(chr, codes)])

    def test_ignores_bytes_that_are_not_utf8(self):
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

    def test_empty_texts_have_no_words(self):
        self.assertEqual(_split_all([]), [])
        self.assertEqual(_split_all(["", " \n", ""]), [[], [], []])


if __name__ == "__main__":
    tf.test.main()

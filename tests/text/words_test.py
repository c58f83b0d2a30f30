"""Tests for bert_tf.text.words."""

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.text import words as words_lib


class TaggingWordsTest(tf.test.TestCase, parameterized.TestCase):
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
    def test_words_and_offsets(self, text, expected):
        words = words_lib.split_words(text)
        self.assertEqual("|".join(word.text for word in words), expected)
        for word in words:
            self.assertEqual(text[word.start : word.end], word.text)
        encoded = text.encode()
        offsets = [(word.start, word.end) for word in words]
        for word, (start, end) in zip(
            words, words_lib.to_byte_offsets(text, offsets), strict=True
        ):
            self.assertEqual(encoded[start:end].decode(), word.text)


if __name__ == "__main__":
    tf.test.main()

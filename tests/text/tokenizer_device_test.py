"""Tests for bert_tf.text.tokenizer with the rules of MediaPipe."""

import sys
import unicodedata

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import ASCII_LOWER
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary
from tests.support import device_tokenizer

_LETTERS = "abcxyzABCéÉüßσς\u0301\u00ad\u200b"
_VOCABULARY = Vocabulary(
    [
        *SPECIAL_TOKENS,
        *("the", "cat", "café", "##fé"),
        *_LETTERS,
        *(f"##{letter}" for letter in _LETTERS),
        *".,—中[]mks",
    ]
)


class DeviceTokenizerTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokenizer = BertTokenizer(_VOCABULARY, normalization=ASCII_LOWER)

    def _assert_tokens(self, texts):
        pieces = set(_VOCABULARY.tokens)
        given = self.tokenizer.tokens(self.tokenizer.tokenize(texts))
        for text, tokens in zip(texts, given.to_list(), strict=True):
            self.assertEqual(
                [token.decode() for token in tokens],
                device_tokenizer.tokenize(text, pieces),
                repr(text),
            )

    def test_follows_the_rules(self):
        self._assert_tokens(
            [
                "",
                " The CAT.,CAFÉ café\tabc\r\nxyz ",
                "a\u00adb \u00ad a\u200bb e\u0301 a\u0301",
                "a\u00a0b \u3000 c\vb c\fb \u0085 a\u2028b a\x1cb",
                "中cat中 a—b ΣΣ [MASK] ß",
                "a" * 100 + " " + "b" * 101 + " " + "é" * 50 + " " + "é" * 51,
                "a\0b",
                "\ufffd \ue000 \U000e0001 a\u180eb",
            ]
        )

    def test_every_character(self):
        chars = [
            chr(point)
            for point in range(sys.maxunicode + 1)
            if unicodedata.category(chr(point)) not in ("Cs", "Cn")
        ]
        # Later blocks follow the rules of their first characters.
        chars = [x for x in chars if not 0xAC10 <= ord(x) < 0xD7A0]
        words = device_tokenizer.split_words
        texts = [f"a{char}b" for char in chars]
        given = self.tokenizer.tokens(self.tokenizer.tokenize(texts))
        numbers = given.row_lengths().numpy()
        pieces = set(_VOCABULARY.tokens)
        expected = [
            len(device_tokenizer.tokenize(text, pieces)) for text in texts
        ]
        wrong = np.flatnonzero(numbers != expected)
        self.assertEmpty(
            [(texts[i], words(texts[i]), numbers[i]) for i in wrong[:20]]
        )

    def test_offsets(self):
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(
            "The café\u00a0a É\0cat"
        )
        self.assertAllEqual(
            self.tokenizer.tokens(ids), [b"the", b"[UNK]", "É".encode()]
        )
        self.assertAllEqual(starts, [0, 4, 13])
        self.assertAllEqual(ends, [3, 12, 15])

    def test_special_tokens_stay_whole_if_preserved(self):
        tokenizer = BertTokenizer(
            _VOCABULARY,
            preserve_special_tokens=True,
            normalization=ASCII_LOWER,
        )
        self.assertAllEqual(
            tokenizer.tokens(tokenizer.tokenize("The [MASK]É.\0[SEP]")),
            [b"the", b"[MASK]", "É".encode(), b"."],
        )


if __name__ == "__main__":
    tf.test.main()

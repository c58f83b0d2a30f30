"""Tests for bert_tf.text.tokenizer: options, graphs, rules of MediaPipe."""

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
from tests.support.shared_data import golden

_WORDS = (
    "hello world the un ##aff ##able [ ] mask ##s a b ##b ς α ##α ##σ ##ς "
    ". 中 pad cls"
).split()
_VOCABULARY = Vocabulary(
    [*_WORDS[:5], "[SEP]", "[PAD]", "[MASK]", "[UNK]", "[CLS]", *_WORDS[5:]]
)
_TEXTS = ["Hello, un\u200baffable WORLD!", "", "ΑΑΣ 中", "b" * 201, b"a\xff b"]


def _tokens(tokenizer, text):
    ids, starts, ends = tokenizer.tokenize_with_offsets([text])
    (tokens,) = tokenizer.tokens(ids).to_list()
    slices = [
        text.encode()[start:end].decode()
        for start, end in zip(starts[0].numpy(), ends[0].numpy(), strict=True)
    ]
    return [token.decode() for token in tokens], slices


class SpecialTokensTest(tf.test.TestCase, parameterized.TestCase):
    def test_are_split_like_any_text_by_default(self):
        tokens, slices = _tokens(BertTokenizer(_VOCABULARY), "a[MASK]b")
        self.assertEqual(tokens, ["a", "[", "mask", "]", "b"])
        self.assertEqual(slices, ["a", "[", "MASK", "]", "b"])

    @parameterized.parameters(True, False)
    def test_stay_whole_if_preserved(self, lower_case):
        tokenizer = BertTokenizer(
            _VOCABULARY, lower_case, preserve_special_tokens=True
        )
        for token in SPECIAL_TOKENS:
            tokens, slices = _tokens(tokenizer, f"a{token}{token}b [{token}.")
            self.assertEqual(tokens, ["a", token, token, "b", "[", token, "."])
            self.assertEqual(slices, tokens)
        ids = tokenizer.tokenize("[SEP][CLS][PAD][MASK][UNK]")
        self.assertAllEqual(ids, [5, 9, 6, 7, 8])

    def test_match_their_exact_spelling_only(self):
        tokenizer = BertTokenizer(_VOCABULARY, preserve_special_tokens=True)
        tokens, _ = _tokens(tokenizer, "[mask] [ MASK] MASK MA[MASK]SK")
        self.assertEqual(
            tokens,
            ["[", "mask", "]", "[", "mask", "]", "mask"]
            + ["[UNK]", "[MASK]", "[UNK]"],
        )

    def test_stand_ins_in_text_are_unknown(self):
        tokenizer = BertTokenizer(_VOCABULARY, preserve_special_tokens=True)
        # The reserved ends of all CJK blocks.
        text = "".join(chr(c) for c in range(0x2CEA2, 0x2CEB0)) + "\U0002fa1e"
        tokens, _ = _tokens(tokenizer, text)
        self.assertEqual(tokens, ["[UNK]"] * 15)

    def test_are_words(self):
        tokenizer = BertTokenizer(_VOCABULARY, preserve_special_tokens=True)
        words = tokenizer.split_words("Hello[MASK][UNK]x [PAD]")
        self.assertAllEqual(
            words, [b"hello", b"[MASK]", b"[UNK]", b"x", b"[PAD]"]
        )

    def test_end_the_word_for_a_sigma(self):
        tokenizer = BertTokenizer(_VOCABULARY, preserve_special_tokens=True)
        tokens, slices = _tokens(tokenizer, "ΑΑΣ[MASK]Α")
        self.assertEqual(tokens, ["α", "##α", "##ς", "[MASK]", "α"])
        self.assertEqual(slices, ["Α", "Α", "Σ", "[MASK]", "Α"])

    def test_offsets_behind_a_long_word(self):
        tokenizer = BertTokenizer(_VOCABULARY, preserve_special_tokens=True)
        tokens, slices = _tokens(tokenizer, "é" * 201 + "[MASK] a")
        self.assertEqual(tokens, ["[UNK]", "[MASK]", "a"])
        self.assertEqual(slices, ["é" * 201, "[MASK]", "a"])


class TextOfIdsTest(tf.test.TestCase):
    def test_detokenize_joins_tokens_to_words(self):
        tokenizer = BertTokenizer(_VOCABULARY, preserve_special_tokens=True)
        texts = ["the unaffable world.", "", "a [MASK] ααςσ b"]
        self.assertAllEqual(
            tokenizer.detokenize(tokenizer.tokenize(texts)),
            [b"the unaffable world .", b"", "a [MASK] ααςσ b".encode()],
        )
        # A dense batch, a continuation first.
        self.assertAllEqual(
            tokenizer.detokenize([[4, 0], [3, 4]]), [b"##aff hello", b"unaff"]
        )

    def test_tokens_have_the_shape_of_ids(self):
        tokenizer = BertTokenizer(_VOCABULARY)
        self.assertAllEqual(tokenizer.tokens([0, 4]), [b"hello", b"##aff"])
        self.assertAllEqual(
            tokenizer.tokens([[5], [6]]), [[b"[SEP]"], [b"[PAD]"]]
        )
        ragged = tf.ragged.constant([[0], [], [8, 1]])
        self.assertEqual(
            tokenizer.tokens(ragged).to_list(),
            [[b"hello"], [], [b"[UNK]", b"world"]],
        )

    def test_settings_distinguish_tokenizers(self):
        self.assertEqual(
            BertTokenizer(_VOCABULARY, strip_accents=False).settings(),
            {
                "lower_case": True,
                "strip_accents": False,
                "preserve_special_tokens": False,
                "normalization": "original",
                "vocabulary_hash": _VOCABULARY.hash,
            },
        )
        cased = BertTokenizer(_VOCABULARY, lower_case=False)
        self.assertFalse(cased.settings()["strip_accents"])

    def test_builds_with_a_token_that_no_text_has(self):
        # Line 344 is U+2028, line 13503 is ##U+2028; the ids behind them hold.
        vocabulary = Vocabulary.from_file(
            golden("vocab/bert-base-chinese-vocab.txt")
        )
        tokenizer = BertTokenizer(vocabulary)
        self.assertAllEqual(
            tokenizer.tokenize("中文\u2028一ab\u2028ing"),
            [vocabulary.id(token) for token in ("中", "文", "一", "ab", "ing")],
        )


class GraphTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.tokenizer = BertTokenizer(_VOCABULARY)
        self.expected = self.tokenizer.tokenize_with_offsets(_TEXTS)

    def test_eager_values(self):
        self.assertEqual(
            self.expected[0].to_list(),
            [
                [0, 8, 3, 4, 10, 1, 8],
                [],
                [19, 20, 22, 24],
                [8],
                [15, 16],
            ],
        )

    def test_tf_function_and_pipelines_agree_with_eager(self):
        function = tf.function(
            self.tokenizer.tokenize_with_offsets,
            input_signature=[tf.TensorSpec([None], tf.string)],
        )
        one = tf.function(
            self.tokenizer.tokenize_with_offsets,
            input_signature=[tf.TensorSpec([], tf.string)],
        )
        texts = tf.data.Dataset.from_tensor_slices(_TEXTS)
        ids = texts.batch(2).map(self.tokenizer.tokenize)
        self.assertEqual(
            [row for batch in ids for row in batch.to_list()],
            self.expected[0].to_list(),
        )
        batches = texts.batch(2).map(self.tokenizer.tokenize_with_offsets)
        singles = texts.map(self.tokenizer.tokenize_with_offsets)
        for i in range(3):
            expected = self.expected[i].to_list()
            self.assertEqual(
                function(tf.constant(_TEXTS))[i].to_list(), expected
            )
            self.assertEqual(
                [row for batch in batches for row in batch[i].to_list()],
                expected,
            )
            rows = [single[i].numpy().tolist() for single in singles]
            self.assertEqual(rows, expected)
            rows = [
                one(tf.constant(text))[i].numpy().tolist() for text in _TEXTS
            ]
            self.assertEqual(rows, expected)

    def test_made_inside_a_function(self):
        @tf.function
        def tokenize(text):
            return BertTokenizer(_VOCABULARY).tokenize(text)

        ids = tokenize(tf.constant(_TEXTS))
        self.assertEqual(ids.to_list(), self.expected[0].to_list())


_LETTERS = "abcxyzABCéÉüßσς\u0301\u00ad\u200b"
_DEVICE_VOCABULARY = Vocabulary(
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
        cls.tokenizer = BertTokenizer(
            _DEVICE_VOCABULARY, normalization=ASCII_LOWER
        )

    def _assert_tokens(self, texts):
        pieces = set(_DEVICE_VOCABULARY.tokens)
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
        pieces = set(_DEVICE_VOCABULARY.tokens)
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
            _DEVICE_VOCABULARY,
            preserve_special_tokens=True,
            normalization=ASCII_LOWER,
        )
        self.assertAllEqual(
            tokenizer.tokens(tokenizer.tokenize("The [MASK]É.\0[SEP]")),
            [b"the", b"[MASK]", "É".encode(), b"."],
        )


if __name__ == "__main__":
    tf.test.main()

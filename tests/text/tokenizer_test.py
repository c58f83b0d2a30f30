"""Tests for bert_tf.text.tokenizer, eagerly and in graphs."""

import gzip
import json
import random
import sys
import unicodedata
import unittest

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import ASCII_LOWER
from bert_tf.errors import UserError
from bert_tf.text import normalizer
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.tokenizer import LiteTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary
from tests.support import reference_tokenizer
from tests.support.reference_tokenizer import CJK
from tests.support.reference_tokenizer import match_longest
from tests.support.shared_data import golden

_MAX_BYTES = 100


def _is_delimiter(char):
    if char.isascii():
        return char.isprintable() and not char.isalnum() and char != " "
    if any(first <= ord(char) <= last for first, last in CJK):
        return True
    return unicodedata.category(char)[0] == "P"


def _lower(text):
    return "".join(x.lower() if x.isascii() else x for x in text)


def split_words(text: str) -> list[str]:
    words = [""]
    for char in _lower(text.split("\0", 1)[0]):
        if char in " \t\n\f\r":
            words.append("")
        elif _is_delimiter(char):
            words += [char, ""]
        else:
            words[-1] += char
    return [word for word in words if word]


def tokenize(text: str, tokens: set[str]) -> list[str]:
    found = []
    for word in split_words(text):
        is_too_long = len(word.encode()) > _MAX_BYTES
        found += ["[UNK]"] if is_too_long else match_longest(word, tokens)
    return found


# Parts of fuzzed texts: characters that rules apply to, alone or next to each
# other, and bytes that are not UTF-8.
_ALPHABET = [
    *"aAbzZ09",
    *"éÉñÅßİıǆﬁ½",
    *"\u0301\u0308\u0345\u0327\u200d\u00ad\u0000\u0001\u007f\u0085\ufeff\ufffd",
    *" \t\n\r\u00a0\u3000\u2028\u2029\u200b\u180e",
    *".,'-_$^`·’—:¿\u037e\u2024\u1fef",
    *"ΣσςΑα\u1fb3ʰªªͺ\u1d2c",
    *"中\uf900𠀀각가ᄀ한ヴ",
    *"𝐀𐐀😀\U0001e900\U000e0041",
    *"\u1b4e\u1b7f\U00011f4f\U0001e5ff",  # Punctuation after Unicode 14.
    b"\xff",
    b"\xe2\x82",
    b"\xf0\x9f\x98",
    b"\xed\xa0\x80",
    b"\xc3",
    b"\x80",
]


def _fuzz(count, seed=0):
    """Returns texts of 0 to 24 characters."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        chars = rng.choices(_ALPHABET, k=rng.randrange(25))
        texts.append(
            b"".join(c if isinstance(c, bytes) else c.encode() for c in chars)
        )
    return texts


def _letters(text):
    """Returns a vocabulary of all characters of the text, also as "##"."""
    letters = sorted(
        c
        for c in set(text)
        if c in normalizer.STAND_INS or (c.isprintable() and not c.isspace())
    )
    pieces = letters + [f"##{c}" for c in letters]
    return Vocabulary(["[UNK]", "[SEP]", "[PAD]", *pieces, "[MASK]", "[CLS]"])


def _falls_apart(text):
    """Returns True if a character becomes several, like a Hangul syllable."""
    return any(
        sum(
            unicodedata.category(part) != "Mn"
            for part in unicodedata.normalize("NFD", char)
        )
        > 1
        for char in text
    )


def _to_str(ragged):
    return [[word.decode() for word in row] for row in ragged.to_list()]


class GoldenTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(("uncased", True), ("cased", False))
    def test_equals_the_original_on_every_code_point(self, name, lower_case):
        tokenizer = BertTokenizer.from_vocab_file(
            golden(f"vocab/bert-base-{name}-vocab.txt"), lower_case
        )
        expected = np.load(golden(f"tokenization/codepoints_{name}.npz"))
        chars = [chr(code_point) for code_point in expected["codepoints"]]
        ids = tokenizer.tokenize([f"he{c}llo w{c}" for c in chars])
        self.assertLen(chars, 144765)
        self.assertAllEqual(ids.row_lengths(), expected["lengths"])
        self.assertAllEqual(ids.flat_values, expected["ids"])

    def test_code_points_unknown_to_unicode_14_are_letters(self):
        tokenizer = BertTokenizer.from_vocab_file(
            golden("vocab/bert-base-uncased-vocab.txt")
        )
        known = np.load(golden("tokenization/codepoints_uncased.npz"))
        others = {*range(1, 0xD800), *range(0xE000, 0x110000)}
        others -= set(known["codepoints"].tolist())
        for first, last in normalizer.CJK_RANGES:
            others -= set(range(first, last + 1))
        self.assertLen(others, 967233)
        ids = tokenizer.tokenize([f"he{chr(c)}llo" for c in others])
        # No token contains any of these characters, so each text is [UNK].
        unknown = [tokenizer.vocabulary.unk_id]
        self.assertAllEqual(ids.row_lengths(), np.ones(len(others)))
        self.assertAllEqual(ids.flat_values, unknown * len(others))

    @parameterized.parameters(
        ("uncased", True), ("cased", False), ("multilingual-cased", False)
    )
    def test_equals_the_original_on_every_string(self, name, lower_case):
        tokenizer = BertTokenizer.from_vocab_file(
            golden(f"vocab/bert-base-{name}-vocab.txt"), lower_case
        )
        with gzip.open(golden("tokenization/strings.jsonl.gz")) as file:
            rows = [json.loads(line) for line in file]
        self.assertLen(rows, 4553)
        texts = [row["text"] for row in rows]
        ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
        for row, row_ids in zip(rows, ids.to_list(), strict=True):
            self.assertEqual(row_ids, row[name.replace("-", "_")], row["text"])
        self.assertAllEqual(tokenizer.tokenize(texts), ids)
        self._check_slices(tokenizer, texts, ids, starts, ends)

    def _check_slices(self, tokenizer, texts, ids, starts, ends):
        """Checks that the bytes of each token, normalized, are the token."""
        pieces = _to_str(tokenizer.tokens(ids))
        rows = zip(texts, pieces, starts.to_list(), ends.to_list(), strict=True)
        slices, expected = [], []
        for text, *row in rows:
            for piece, start, end in zip(*row, strict=True):
                slices.append(text.encode()[start:end])
                expected.append(piece.removeprefix("##"))
        words = _to_str(tokenizer.split_words(slices))
        self.assertNotEmpty(words)
        for word, piece, part in zip(words, expected, slices, strict=True):
            self.assertLen(word, 1, part)
            # A part of a word does not show if a sigma ended the whole word.
            whole, piece = word[0].replace("ς", "σ"), piece.replace("ς", "σ")
            if _falls_apart(part.decode()):
                # Several tokens may share the bytes of one character.
                self.assertTrue(piece == "[UNK]" or piece in whole, part)
            elif piece != "[UNK]":
                self.assertEqual(whole, piece)


@unittest.skipIf(
    unicodedata.unidata_version != "14.0.0",
    "The reference knows the Unicode of its Python, the tables Unicode 14.",
)
class ReferenceTest(tf.test.TestCase, parameterized.TestCase):
    """Compares with the rules in plain Python, for all pairs of options."""

    @parameterized.product(lower_case=[True, False], strip=[True, False])
    def test_fuzzed_texts_have_tokens_and_offsets_of_the_reference(
        self, lower_case, strip
    ):
        texts = _fuzz(3000)
        everything = [
            reference_tokenizer.split_words(text, lower_case, strip)
            for text in texts
        ]
        # Half of the characters, so that many words are unknown.
        chars = sorted({c for row in everything for w in row for c in w.text})
        vocabulary = _letters("".join(chars[::2]) + "aάéσς'.中")
        tokenizer = BertTokenizer(vocabulary, lower_case, strip)
        ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
        self.assertAllEqual(tokenizer.tokenize(texts), ids)
        self.assertEqual(
            _to_str(tokenizer.split_words(texts)),
            [[word.text for word in row] for row in everything],
        )
        actual = zip(
            _to_str(tokenizer.tokens(ids)),
            starts.to_list(),
            ends.to_list(),
            strict=True,
        )
        known = {token: i for i, token in enumerate(vocabulary.tokens)}
        num_unknown = 0
        for text, row, found in zip(texts, everything, actual, strict=True):
            pieces, spans = [], []
            for word in row:
                position = 0
                for piece in reference_tokenizer.split_tokens(word.text, known):
                    pieces.append(piece)
                    length = len(piece.removeprefix("##"))
                    if piece == "[UNK]":
                        num_unknown += 1
                        length = len(word.text)
                    first, last = position, position + length - 1
                    spans.append((word.spans[first][0], word.spans[last][1]))
                    position += length
            self.assertEqual(found[0], pieces, text)
            self.assertEqual(list(zip(*found[1:], strict=True)), spans, text)
        self.assertGreater(num_unknown, 1000)

    @parameterized.product(lower_case=[True, False], strip=[True, False])
    def test_splits_every_code_point_as_the_reference(self, lower_case, strip):
        tokenizer = BertTokenizer(_letters("a"), lower_case, strip)
        texts = [f"he{c}LLO w{c}" for c in _code_points()]
        words = _to_str(tokenizer.split_words(texts))
        for text, found in zip(texts, words, strict=True):
            row = reference_tokenizer.split_words(text, lower_case, strip)
            self.assertEqual(found, [word.text for word in row], text)

    @pytest.mark.slow
    def test_sigma_beside_every_code_point_equals_the_reference(self):
        for strip in (True, False):
            tokenizer = BertTokenizer(_letters("a"), True, strip)
            texts = [f"Α{c}Σ {c}Σ ΑΣ{c}Β Σ{c}Σ" for c in _code_points()]
            words = _to_str(tokenizer.split_words(texts))
            for text, found in zip(texts, words, strict=True):
                row = reference_tokenizer.split_words(text, True, strip)
                self.assertEqual(found, [word.text for word in row], text)


def _code_points():
    """Yields characters; samples large blocks with uniform rules."""
    for code_point in range(0x110000):
        char = chr(code_point)
        category = unicodedata.category(char)
        if category == "Cs":
            continue
        is_common = category in ("Cn", "Co") or (
            category == "Lo" and code_point > 0x3100
        )
        is_common &= char not in normalizer.STAND_INS
        if not is_common or code_point % 97 == 0:
            yield char


class RulesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("a",),
        ("a", 37),
        ("λ",),
        ("ℵ",),
        ("𐐨", 1),
        ("\u1b4e",),
        ("\U0001e5ff",),
    )
    def test_words_of_more_than_200_characters_are_unknown(
        self, letter, most=200
    ):
        vocabulary = _letters(f"{letter}x.中")
        tokenizer = BertTokenizer(vocabulary, max_input_chars_per_word=most)
        width = len(letter.encode())
        text = f"x {letter * most}.{letter * (most + 1)} 中{letter * most}中"
        ids, starts, ends = tokenizer.tokenize_with_offsets([text])
        pieces = _to_str(tokenizer.tokens(ids))[0]
        word = [letter] + [f"##{letter}"] * (most - 1)
        self.assertEqual(pieces, ["x", *word, ".", "[UNK]", "中", *word, "中"])
        unknown = pieces.index("[UNK]")
        self.assertEqual(starts[0, unknown], 2 + most * width + 1)
        self.assertEqual(
            ends[0, unknown] - starts[0, unknown], (most + 1) * width
        )
        self.assertEqual(ends[0, -1], len(text.encode()))

    def test_punctuation_that_unicode_14_lacks_is_a_letter(self):
        chars = "".join(normalizer.STAND_INS)
        self.assertLen(set(normalizer.STAND_INS.values()), len(chars))
        pieces = [f"a{chars}", *chars[:2], f"##{chars[-1]}", "##\u0081b", "."]
        vocabulary = Vocabulary([*SPECIAL_TOKENS, *pieces])
        tokenizer = BertTokenizer(vocabulary)
        text = f"A{chars}.{chars[1]}{chars[-1]} a\u0080\x01{chars[1]}b"
        ids, starts, ends = tokenizer.tokenize_with_offsets([text])
        self.assertEqual(
            _to_str(tokenizer.tokens(ids)),
            [[f"a{chars}", ".", chars[1], f"##{chars[-1]}", "[UNK]"]],
        )
        lengths = [1 + len(chars.encode()), 1, 3, 4, 1 + 2 + 1 + 3 + 1]
        self.assertAllEqual(ends[0] - starts[0], lengths)
        self.assertEqual(
            _to_str(tokenizer.split_words([text])),
            [[f"a{chars}", ".", f"{chars[1]}{chars[-1]}", f"a{chars[1]}b"]],
        )

    def test_length_counts_after_normalization(self):
        tokenizer = BertTokenizer(_letters("a각"))
        accents = "a\u0301" * 200
        self.assertLen(tokenizer.tokenize(accents), 200)
        self.assertLen(tokenizer.tokenize(accents + "A"), 1)
        # A Hangul syllable decomposes into two or three letters.
        self.assertLen(tokenizer.tokenize("각" * 66), 198)
        self.assertLen(tokenizer.tokenize("각" * 67), 1)

    def test_shapes_follow_those_of_texts(self):
        tokenizer = BertTokenizer(_letters("ab"))
        a, b = (tokenizer.vocabulary.id(token) for token in "ab")
        self.assertAllEqual(tokenizer.tokenize("a b"), [a, b])
        self.assertAllEqual(tokenizer.tokenize(""), np.zeros(0))
        self.assertEqual(tokenizer.tokenize([]).to_list(), [])
        texts = tf.constant(["", "b a", " ", "a"])
        for part in (tokenizer.tokenize, tokenizer.split_words):
            self.assertAllEqual(part(texts).row_lengths(), [0, 2, 0, 1])
        ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
        self.assertEqual(ids.to_list(), [[], [b, a], [], [a]])
        self.assertEqual(starts.to_list(), [[], [0, 2], [], [0]])
        self.assertEqual(ends.to_list(), [[], [1, 3], [], [1]])
        self.assertEqual(starts.dtype, tf.int32)
        empty = tokenizer.tokenize_with_offsets(tf.constant([], tf.string))
        self.assertEqual([part.to_list() for part in empty], [[]] * 3)
        for text in ([["a"]], 5, [None]):
            with self.assertRaisesRegex(ValueError, "one string or a vector"):
                tokenizer.tokenize(text)

    def test_special_tokens_alone_are_no_vocabulary(self):
        vocabulary = Vocabulary(["[UNK]", "[CLS]", "[SEP]"], "vocab.txt")
        with self.assertRaisesRegex(UserError, "vocab.txt must hold wordp"):
            BertTokenizer(vocabulary)


_LITE_VOCABULARY = Vocabulary(
    [*SPECIAL_TOKENS, *"a α Α Σ σ ς ##a ##α ##Σ ##σ ##ς é É".split()]
)


def _lite_tokens(text, *options):
    tokenizer = LiteTokenizer(BertTokenizer(_LITE_VOCABULARY, *options))
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    return (
        [token.decode() for token in tokenizer.tokens(ids).numpy()],
        starts.numpy().tolist(),
        ends.numpy().tolist(),
    )


class LiteTokenizerTest(tf.test.TestCase):
    def test_every_capital_sigma_is_alike(self):
        tokens, starts, ends = _lite_tokens("ΑΣ Σας")
        self.assertEqual(tokens, ["α", "##σ", "σ", "##α", "##ς"])
        self.assertEqual(starts, [0, 2, 5, 7, 9])
        self.assertEqual(ends, [2, 4, 7, 9, 11])

    def test_words_of_more_than_200_characters_are_split(self):
        tokens, _, _ = _lite_tokens("a" * 201)
        self.assertEqual(tokens, ["a"] + ["##a"] * 200)
        tokens, _, ends = _lite_tokens("a" * 801)
        self.assertEqual(tokens, ["[UNK]"])
        self.assertEqual(ends, [801])

    def test_keeps_the_options_of_the_tokenizer(self):
        self.assertEqual(_lite_tokens("É", True, False)[0], ["é"])
        self.assertEqual(_lite_tokens("É ΑΣ", False)[0], ["É", "Α", "##Σ"])
        tokenizer = BertTokenizer(_LITE_VOCABULARY, True, False)
        self.assertEqual(
            LiteTokenizer(tokenizer).settings(), tokenizer.settings()
        )

    def test_normalizes_by_the_rules_of_mediapipe(self):
        tokenizer = BertTokenizer(_LITE_VOCABULARY, normalization=ASCII_LOWER)
        lite = LiteTokenizer(tokenizer)
        self.assertEqual(lite.settings(), tokenizer.settings())
        texts = ["É é A", "ΑΣ Σ aΣ", "a" * 100, "a" * 101]
        self.assertAllEqual(lite.tokenize(texts), tokenizer.tokenize(texts))
        # With ASCII_LOWER, NUL ends a text; the lite tokenizer drops it.
        self.assertLen(tokenizer.tokenize("a \0 a"), 1)
        self.assertLen(lite.tokenize("a \0 a"), 2)

    def test_rejects_preserved_special_tokens(self):
        tokenizer = BertTokenizer(
            _LITE_VOCABULARY, preserve_special_tokens=True
        )
        with self.assertRaisesRegex(UserError, "special tokens.*--input=ids"):
            LiteTokenizer(tokenizer)


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
        # Unassigned CJK characters may stand in for preserved tokens.
        text = "".join(chr(c) for c in range(0x2CEA2, 0x2CEB0)) + "\U0002fa1e"
        tokens, _ = _tokens(tokenizer, text)
        self.assertEqual(tokens, ["[UNK]"] * 15)

    def test_special_tokens_are_words(self):
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

    def test_offsets_stay_right_behind_a_long_word(self):
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
        # Rows of a dense batch may begin with a continuation.
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
        # Lines 344 and 13503 have U+2028; splitting there would shift ids.
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

    def test_eager_ids_are_as_expected(self):
        self.assertEqual(
            self.expected[0].to_list(),
            [[0, 8, 3, 4, 10, 1, 8], [], [19, 20, 22, 24], [8], [15, 16]],
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

    def test_can_be_made_inside_a_function(self):
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
                tokenize(text, pieces),
                repr(text),
            )

    def test_tokens_equal_those_of_the_reference(self):
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

    def test_every_character_gives_expected_token_count(self):
        chars = [
            chr(point)
            for point in range(sys.maxunicode + 1)
            if unicodedata.category(chr(point)) not in ("Cs", "Cn")
        ]
        # Hangul syllables follow one rule, so the first 16 are enough.
        chars = [x for x in chars if not 0xAC10 <= ord(x) < 0xD7A0]
        words = split_words
        texts = [f"a{char}b" for char in chars]
        given = self.tokenizer.tokens(self.tokenizer.tokenize(texts))
        numbers = given.row_lengths().numpy()
        pieces = set(_DEVICE_VOCABULARY.tokens)
        expected = [len(tokenize(text, pieces)) for text in texts]
        wrong = np.flatnonzero(numbers != expected)
        self.assertEmpty(
            [(texts[i], words(texts[i]), numbers[i]) for i in wrong[:20]]
        )

    def test_offsets_count_bytes_of_the_text(self):
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

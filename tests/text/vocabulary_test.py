"""Tests for bert_tf.text.vocabulary and learn_vocabulary."""

import collections
import hashlib
import os
import random

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.text import learn_vocabulary as vocabulary_learning
from bert_tf.text.vocabulary import Vocabulary
from tests.support.shared_data import golden

_TOKENS = ["a", "[SEP]", "##b", "[CLS]", "[PAD]", "[MASK]", "é", "[UNK]"]
_TEXT = "\n".join(_TOKENS) + "\n"


class VocabularyTest(tf.test.TestCase, parameterized.TestCase):
    def _file(self, contents):
        path = os.path.join(self.create_tempdir().full_path, "vocab.txt")
        with open(path, "wb") as file:
            file.write(
                contents if isinstance(contents, bytes) else contents.encode()
            )
        return path

    def test_ids_are_line_numbers(self):
        vocabulary = Vocabulary.from_file(self._file(_TEXT))
        self.assertEqual(vocabulary.tokens, tuple(_TOKENS))
        self.assertLen(vocabulary, 8)
        self.assertEqual(
            [vocabulary.id(token) for token in _TOKENS], list(range(8))
        )
        self.assertIn("##b", vocabulary)
        self.assertNotIn("b", vocabulary)
        self.assertEqual(
            (
                vocabulary.pad_id,
                vocabulary.unk_id,
                vocabulary.cls_id,
                vocabulary.sep_id,
                vocabulary.mask_id,
            ),
            (4, 7, 3, 1, 5),
        )
        with self.assertRaisesRegex(UserError, r"does not contain .b."):
            vocabulary.id("b")

    def test_hash_is_that_of_the_file_it_writes(self):
        vocabulary = Vocabulary(_TOKENS)
        path = os.path.join(self.create_tempdir().full_path, "new", "vocab.txt")
        vocabulary.write(path)
        with open(path, "rb") as file:
            contents = file.read()
        self.assertEqual(contents, _TEXT.encode())
        self.assertEqual(vocabulary.hash, hashlib.sha256(contents).hexdigest())
        # A file without the last line end is the same vocabulary.
        same = Vocabulary.from_file(self._file(_TEXT.removesuffix("\n")))
        self.assertEqual(same.hash, vocabulary.hash)
        other = Vocabulary([*_TOKENS[1:], _TOKENS[0]])
        self.assertNotEqual(other.hash, vocabulary.hash)

    @parameterized.parameters(
        ("uncased", 30522, 101, "the", 1996),
        ("cased", 28996, 101, "the", 1103),
        ("multilingual-cased", 119547, 101, "the", 10105),
        ("chinese", 21128, 101, "\u2028", 343),
    )
    def test_reads_the_released_vocabularies(self, name, size, cls_id, *token):
        path = golden(f"vocab/bert-base-{name}-vocab.txt")
        vocabulary = Vocabulary.from_file(path)
        self.assertLen(vocabulary, size)
        self.assertEqual(vocabulary.cls_id, cls_id)
        self.assertEqual(vocabulary.id(token[0]), token[1])
        with open(path, "rb") as file:
            self.assertEqual(vocabulary.to_text().encode(), file.read())

    @parameterized.parameters(
        (b"\xef\xbb\xbf" + _TEXT.encode(), "line 1: .*byte order mark"),
        (_TEXT.replace("\n", "\r\n"), r"line 1: ends with \\r\\n"),
        (_TEXT.replace("é", "é "), "line 7: 'é ' has white space"),
        (_TEXT.replace("é", "\u3000é"), "line 7: .*has white space"),
        (_TEXT.replace("é", "## "), "line 7: .*has white space"),
        (_TEXT.replace("é", "a\0b"), "line 7: .*no NUL. Received: 'a.x00b'"),
        (_TEXT.replace("é", "##" + "é" * 129), "line 7: .* of 258 bytes"),
        (_TEXT.replace("é", "ü").encode("latin-1"), "line 7: .* byte 31"),
        (_TEXT.replace("[CLS]\n", ""), r"lacks \[CLS\]"),
        ("a\nb", r"lacks \[UNK\], \[CLS\], \[SEP\]"),
        ("", "is empty"),
    )
    def test_malformed_files_are_refused(self, contents, message):
        with self.assertRaisesRegex(UserError, rf"vocab\.txt.*{message}"):
            Vocabulary.from_file(self._file(contents))

    def test_empty_and_repeated_lines_keep_their_rows(self):
        text = _TEXT.replace("é", "") + "\n \n##b\n"
        vocabulary = Vocabulary.from_file(self._file(text))
        self.assertLen(vocabulary, 11)
        self.assertEqual(vocabulary.id("##b"), 10)
        self.assertNotIn("", vocabulary)
        self.assertEqual(vocabulary.token_ids, (0, 1, 3, 4, 5, 7, 10))
        self.assertEqual(vocabulary.to_text(), text)

    def test_padding_and_masks_may_have_no_token(self):
        text = _TEXT.replace("[PAD]\n", "").replace("[MASK]\n", "")
        vocabulary = Vocabulary.from_file(self._file(text))
        self.assertEqual(vocabulary.pad_id, 0)
        with self.assertRaisesRegex(UserError, "vocab.txt does not contain"):
            _ = vocabulary.mask_id

    def test_rejects_a_missing_file(self):
        with self.assertRaisesRegex(UserError, "no/vocab.txt"):
            Vocabulary.from_file("no/vocab.txt")

    def test_rejects_a_token_with_a_line_end(self):
        with self.assertRaisesRegex(UserError, "line 9: .*line end"):
            Vocabulary([*_TOKENS, "x\ny"])

    def test_size_must_be_that_of_the_model(self):
        vocabulary = Vocabulary.from_file(self._file(_TEXT))
        self.assertEqual(vocabulary.check_size(8), [])
        self.assertRegex(*vocabulary.check_size(9), "vocab.txt has 8 .* 9 rows")
        with self.assertLogs(level="WARNING") as logs:
            vocabulary.warn_of_size(9)
        self.assertRegex(logs.output[0], "vocab.txt has 8 .* 9 rows.*otherwise")
        with self.assertRaisesRegex(UserError, "vocab.txt has 8 lines.* is 7"):
            vocabulary.check_size(7)
        # Empty lines at the end need no rows of embeddings.
        longer = Vocabulary([*_TOKENS, "", ""])
        self.assertEqual(longer.check_size(8), [])


_RESERVED = 5 + 99

# "\u00e9" only inside words, "z" only in front, "\u6211" alone, "\u05e7" rare.
_WORDS = {
    "lower": 40,
    "lowest": 31,
    "low": 70,
    "newer": 33,
    "newest": 36,
    "wide": 25,
    "widest": 24,
    "wid\u00e9": 17,
    "zone": 20,
    "\u6211": 300,
    "\u4f60": 5,
    "\u05e7ow": 1,
}


def _statistics(words=None, vocab_size=200, min_frequency=2):
    items = list((words or _WORDS).items())
    return vocabulary_learning.gather_statistics(
        items, vocab_size, min_frequency
    )


def _learn(words=None, vocab_size=200, coverage=1.0, num_unused=99):
    return vocabulary_learning.learn(
        _statistics(words, vocab_size), vocab_size, num_unused, coverage
    )


def _random_words():
    """Returns made-up words of syllables, with realistic counts."""
    generator = random.Random(5)
    syllables = [a + b for a in "bcdfghklmnprst" for b in "aeiou"]
    words = collections.Counter()
    for rank in range(1, 1501):
        length = generator.randint(1, 5)
        word = "".join(generator.choices(syllables, k=length))
        words[word] += 4500 // rank
    return dict(words)


class LearnTest(tf.test.TestCase, parameterized.TestCase):
    def test_reserved_lines_are_those_of_bert_base_uncased(self):
        for num_unused in (99, 100, 994):
            tokens = vocabulary_learning.reserved_tokens(num_unused)
            self.assertLen(tokens, num_unused + 5)
            self.assertEqual(tokens[0], "[PAD]")
            self.assertEqual(tokens[1:100], [f"[unused{i}]" for i in range(99)])
            self.assertEqual(
                tokens[100:104], ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
            )
            self.assertEqual(
                tokens[104:], [f"[unused{i}]" for i in range(99, num_unused)]
            )

    @parameterized.parameters(180, 300, 450, 700, 1000, 1500, 3000)
    def test_has_the_requested_size(self, vocab_size):
        learned = _learn(_random_words(), vocab_size)
        self.assertLen(learned.tokens, vocab_size)
        self.assertEqual(sum(learned.counts.values()), vocab_size)
        Vocabulary(learned.tokens)  # No token is duplicate or empty.

    @parameterized.parameters(
        ("45366dff3bcf2e82", None, 200),
        # Coverage 0.999 leaves out one of about 1,400 characters.
        ("0881d2f31e5b3acf", None, 200, 0.999),
        ("c5b384b6cdc208b2", _random_words(), 600),
        ("53df6b78f9493087", _random_words(), 1000, 0.99),
        # More characters than the learner alone would cover.
        (
            "23fdff5364ef448b",
            {chr(0x4E00 + i): 2 + i % 7 for i in range(6000)}
            | {"the": 500, "then": 300},
            6500,
        ),
        # The original would strip these line separators from a token.
        ("2bedc1ccb3c15f7c", {"a\u2028": 50, "\u2029": 70, "ab": 3}, 130),
    )
    def test_tokens_are_those_of_earlier_versions(
        self, digest, words, vocab_size, coverage=1.0
    ):
        tokens = "\n".join(_learn(words, vocab_size, coverage).tokens)
        made = hashlib.sha256(tokens.encode()).hexdigest()
        self.assertStartsWith(made, digest)

    def test_little_text_fills_with_its_parts_then_with_unused(self):
        learned = _learn({"abc": 5, "abd": 2}, 130)
        self.assertEqual(
            learned.tokens[_RESERVED:],
            ["a", "##b", "##c", "##d"]
            # Whole words by the learner, then parts of words by count.
            + ["abc", "abd", "ab", "##bc", "##bd"]
            + [f"[unused{99 + i}]" for i in range(17)],
        )

    def test_refuses_a_size_too_small_for_the_characters(self):
        needed = _RESERVED + 26
        words = {"abcdefghijklm"[i:] + "nopqrstuvwxyz"[i:]: 3 for i in range(9)}
        message = "--vocab_size=110 is too small.*--vocab_size=1[0-9]+"
        with self.assertRaisesRegex(UserError, message) as caught:
            _learn(words, 110)
        # The size that the message gives is just enough.
        least = int(str(caught.exception).split("--vocab_size=")[2][:3])
        self.assertGreater(least, needed)
        self.assertLen(_learn(words, least).tokens, least)
        with self.assertRaises(UserError):
            _learn(words, least - 1)

    def test_order_of_words_does_not_matter(self):
        words = _random_words()
        backwards = dict(reversed(words.items()))
        self.assertEqual(_learn(words, 700), _learn(backwards, 700))


class GatherStatisticsTest(tf.test.TestCase):
    def test_counts_characters_by_position(self):
        statistics = _statistics({"aba": 3, "b": 4, "c" * 201: 7, "ca": 1})
        self.assertEqual(statistics.starts, {"a": 3, "b": 4, "c": 1})
        self.assertEqual(statistics.insides, {"a": 4, "b": 3})
        self.assertEqual(statistics.words, [("b", 4), ("aba", 3)])
        self.assertEqual(statistics.num_words, 15)
        self.assertEqual(statistics.num_distinct_words, 4)
        self.assertEqual(statistics.num_too_long, 7)


if __name__ == "__main__":
    tf.test.main()

import collections
import hashlib
import random

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.text import learn_vocabulary as vocabulary_learning
from bert_tf.text.vocabulary import Vocabulary

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


def _random_words(number=1500):
    """Returns made-up words of syllables with counts like those of words."""
    generator = random.Random(5)
    syllables = [a + b for a in "bcdfghklmnprst" for b in "aeiou"]
    words = collections.Counter()
    for rank in range(1, number + 1):
        length = generator.randint(1, 5)
        word = "".join(generator.choices(syllables, k=length))
        words[word] += number * 3 // rank
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
        # Without one of about 1,400 characters.
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
        # Characters that the original would strip.
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

    def test_too_small_for_the_characters(self):
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

    def test_is_deterministic(self):
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

import collections
import random
import unittest.mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.text import word_count
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary

_TEXT = [
    "The caf\u00e9's caf\u00e9, the CAFE... it's (the) \u6211\u7231\u6211!",
    "",
    "tab\tand\u3000space \u0391\u03a3 a\u0301b x\u200by \ufffd [MASK]",
    "the the\u2028the " * 3,
]


class CountWordsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(lower=[True, False], strip=[True, False])
    def test_words_are_the_tokenizers(self, lower, strip):
        tokenizer = BertTokenizer(
            Vocabulary((*SPECIAL_TOKENS, "a")), lower, strip
        )
        expected = collections.Counter(
            tokenizer.split_words(_TEXT).flat_values.numpy().tolist()
        )
        count = word_count.build_word_counter(lower, strip)
        words, counts = (x.numpy().tolist() for x in count(tf.constant(_TEXT)))
        self.assertLen(words, len(expected))
        self.assertEqual(dict(zip(words, counts, strict=True)), expected)


class WordCountsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(1, 7, 100, 1_000_000)
    def test_counts_do_not_depend_on_memory(self, max_words):
        generator = random.Random(3)
        added = [
            (f"w{int(generator.paretovariate(0.5)) % 500}\u00fc", i % 4 + 1)
            for i in range(3000)
        ]
        expected = collections.Counter()
        with word_count.WordCounts(max_words) as counts:
            for start in range(0, len(added), 41):
                part = added[start : start + 41]
                counts.add(
                    [word.encode() for word, _ in part],
                    [count for _, count in part],
                )
                for word, count in part:
                    expected[word] += count
            # Twice, as the words are read for learning and for the report.
            for _ in range(2):
                self.assertEqual(list(counts.items()), sorted(expected.items()))
            folder = counts._folder
        self.assertEqual(folder is None, max_words > 500)
        if folder:
            self.assertFalse(tf.io.gfile.exists(folder.name))

    def test_full_disk(self):
        with word_count.WordCounts(0) as counts:
            with unittest.mock.patch.object(
                word_count, "open", side_effect=OSError(28, "full"), create=True
            ):
                with self.assertRaisesRegex(UserError, "full.*set TMPDIR"):
                    counts.add([b"a"], [1])


if __name__ == "__main__":
    tf.test.main()

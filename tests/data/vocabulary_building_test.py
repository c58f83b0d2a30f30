import collections
import contextlib
import json
import os
import random
import re
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands.learn_vocabulary import LearnVocabularyConfig
from bert_tf.data import corpus
from bert_tf.data import vocabulary_building
from bert_tf.data.vocabulary_building import WordCounts
from bert_tf.errors import UserError
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary
from tests.support import files_case
from tests.support import scripts
from tests.support.shared_data import golden

_TEXT = [
    "The caf\u00e9's caf\u00e9, the CAFE... it's (the) \u6211\u7231\u6211!",
    "",
    "tab\tand\u3000space \u0391\u03a3 a\u0301b x\u200by \ufffd [MASK]",
    "the the\u2028the " * 3,
]


class VocabularyBuildingTest(files_case.FilesCase):
    def setUp(self):
        super().setUp()
        self.output_file = self.path("out", "vocab.txt")

    def learn(self, input_file, **flags):
        flags = {"num_unused": 99, "output_file": self.output_file, **flags}
        vocabulary_building.run(
            LearnVocabularyConfig(input_file=input_file, **flags)
        )
        with open(vocabulary_building.report_path(self.output_file)) as file:
            report = json.load(file)
        return Vocabulary.from_file(self.output_file), report

    def test_report_matches_the_tokenizer(self):
        path = golden("pretraining_data/input.txt")
        vocabulary, report = self.learn(
            path, vocab_size=1500, heldout_fraction=0.25
        )
        self.assertLen(vocabulary, 1500)
        self.assertEqual(report["vocabulary_hash"], vocabulary.hash)
        documents = list(corpus.read_documents([path]))
        heldout = documents[3::4]
        self.assertEqual(report["heldout_documents"], len(heldout))
        self.assertEqual(report["documents"], len(documents) - len(heldout))
        lines = [line for document in heldout for line in document]
        tokenizer = BertTokenizer(vocabulary)
        ids = tokenizer.tokenize(lines).flat_values.numpy()
        words = tokenizer.split_words(lines).flat_values
        self.assertAlmostEqual(report["tokens_per_word"], len(ids) / len(words))
        self.assertAlmostEqual(
            report["unknown_percent"], 100 * (ids == vocabulary.unk_id).mean()
        )
        self.assertBetween(report["tokens_per_word"], 1.5, 2.2)
        self.assertBetween(report["character_coverage"], 0.9999, 1)

    def test_heldout_documents_are_not_used_for_learning(self):
        common = "some words that are there often enough to be learned\n\n" * 30
        text = common + "secretword secretword\n\n" + common
        path = self.write("text.txt", text)
        # Only the middle one of 61 documents, "secretword", is held out.
        vocabulary, report = self.learn(
            path, vocab_size=160, heldout_fraction=1 / 31
        )
        self.assertEqual(report["heldout_documents"], 1)
        self.assertNotIn("secretword", vocabulary)
        vocabulary, report = self.learn(
            path, vocab_size=160, heldout_fraction=0
        )
        self.assertIn("secretword", vocabulary)
        self.assertIn("none is held out", report["measured_on"])

    @pytest.mark.slow
    def test_is_the_same_for_any_number_of_workers_and_hash_seed(self):
        with open(golden("pretraining_data/input.txt"), "rb") as file:
            path = self.write("text.txt.gz", file.read())
        flags = {"vocab_size": 700, "num_unused": 99}
        vocabulary, report = self.learn(path, num_processes=1, **flags)
        # Another process must learn the same with more workers, smaller
        # batches, another hash seed and counts on disk.
        output_file = self.path("again.txt")
        program = (
            "from bert_tf.data import vocabulary_building as building\n"
            "from bert_tf.commands import learn_vocabulary\n"
            "building._BATCH_CHARS = 9_000\n"
            "building.WordCounts.__init__.__defaults__ = (1500,)\n"
            "building.run(learn_vocabulary.LearnVocabularyConfig("
            f"{path!r}, {output_file!r}, num_processes=2, **{flags}))"
        )
        variables = {"PYTHONHASHSEED": "7"}
        scripts.python("-c", program, variables=variables, check=True)
        self.assertEqual(
            Vocabulary.from_file(output_file).tokens, vocabulary.tokens
        )
        with open(vocabulary_building.report_path(output_file)) as file:
            again = json.load(file)
        self.assertEqual(again["flags"].pop("output_file"), output_file)
        report["flags"].pop("output_file")
        self.assertEqual(again, report)

    def test_warns_of_a_size_that_the_text_cannot_fill(self):
        path = self.write("text.txt", "once upon upon a a time time time\n")
        with self.assertLogs(level="WARNING") as logs:
            vocabulary, _ = self.learn(path, vocab_size=300)
        message = "--vocab_size=300 is more than.*, or about --vocab_size=1"
        self.assertRegex("".join(logs.output), message)
        self.assertLen(vocabulary, 300)
        fitting = int(re.findall(r"--vocab_size=(\d+)", logs.output[0])[1])
        with self.assertLogs(level="INFO") as logs:
            self.learn(path, vocab_size=fitting)
        self.assertIn(f"{self.output_file} exists and is re", logs.output[0])
        self.assertNotIn("--vocab_size=", "".join(logs.output))

    def test_bad_input_leaves_no_file(self):
        text = self.write("text.txt", "some words\n\nand more")
        for message, input_file, flags in (
            ("empty", self.write("empty.txt", "\n \n"), {}),
            ("no such file", text + "x", {}),
            ("not UTF-8 at byte 1", self.write("bad.txt", b"a\xff"), {}),
            ("--vocab_size=106 is too small", text, {"vocab_size": 106}),
            ("nothing to learn", text, {"heldout_fraction": 1}),
            ("nothing to learn", self.write("invisible.txt", "\u200b\n"), {}),
        ):
            with self.assertRaisesRegex(UserError, message):
                self.learn(input_file, **flags)
            self.assertFalse(os.path.exists(os.path.dirname(self.output_file)))


class CountWordsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(lower=[True, False], strip=[True, False])
    def test_words_are_the_tokenizers(self, lower, strip):
        tokenizer = BertTokenizer(
            Vocabulary((*SPECIAL_TOKENS, "a")), lower, strip
        )
        expected = collections.Counter(
            tokenizer.split_words(_TEXT).flat_values.numpy().tolist()
        )
        count = vocabulary_building.build_counter(
            LearnVocabularyConfig(
                input_file="",
                output_file="",
                do_lower_case=lower,
                strip_accents=strip,
            )
        )
        words, counts = (x.numpy().tolist() for x in count(tf.constant(_TEXT)))
        self.assertLen(words, len(expected))
        self.assertEqual(dict(zip(words, counts, strict=True)), expected)


class WordCountsTest(tf.test.TestCase, parameterized.TestCase):
    def limit(self, max_words):
        self.enter_context(
            mock.patch.object(
                vocabulary_building, "_MAX_WORDS_IN_MEMORY", max_words
            )
        )

    @parameterized.parameters(1, 7, 100, 1_000_000)
    def test_counts_do_not_depend_on_memory(self, max_words):
        generator = random.Random(3)
        added = [
            (f"w{int(generator.paretovariate(0.5)) % 500}\u00fc", i % 4 + 1)
            for i in range(3000)
        ]
        expected = collections.Counter()
        self.limit(max_words)
        with contextlib.closing(WordCounts()) as counts:
            for start in range(0, len(added), 41):
                part = added[start : start + 41]
                counts.add(
                    [word.encode() for word, _ in part],
                    [count for _, count in part],
                )
                for word, count in part:
                    expected[word] += count
            # Learning and the report each read the words, so read them twice.
            for _ in range(2):
                self.assertEqual(list(counts.items()), sorted(expected.items()))

    def test_full_disk_advises_another_tmpdir(self):
        self.limit(0)
        with contextlib.closing(WordCounts()) as counts:
            counts._table.execute("PRAGMA max_page_count = 2")
            with self.assertRaisesRegex(UserError, "full.*set TMPDIR"):
                counts.add([b"a" * 9999], [1])


if __name__ == "__main__":
    tf.test.main()

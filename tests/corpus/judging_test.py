"""Tests of duplicates, near duplicates, held-out text and sampling."""

from unittest import mock

import numpy as np
import tensorflow as tf

from bert_tf.commands.extract_text import ExtractTextConfig
from bert_tf.corpus import fingerprints
from bert_tf.corpus import judging
from bert_tf.corpus.documents import Document


def _documents(*texts):
    return [
        Document(str(i), tuple(text.split("|"))) for i, text in enumerate(texts)
    ]


def _decide(documents, folder, **flags):
    config = ExtractTextConfig(input_file="a", output_file="b", **flags)
    prints = fingerprints.compute(
        documents, config.near_duplicate_threshold > 0
    )
    decisions = judging.decide(prints, config, folder)
    return (
        [judging.REASONS[x] for x in decisions.documents],
        [judging.REASONS[x] for x in decisions.paragraphs],
    )


class DecideTest(tf.test.TestCase):
    def test_first_of_equal_documents_and_paragraphs_stays(self):
        long = "x" * 200
        documents = _documents(
            f"a|{long}",
            "b|b",
            f"a|{long}",
            f"{long}|c|{long}",
            long,
            f"{long[1:]}|a",
        )
        dropped, paragraphs = _decide(documents, self.get_temp_dir())
        repeated = "duplicate paragraph"
        self.assertEqual(
            dropped, ["", "", "duplicate document", "", "empty document", ""]
        )
        self.assertEqual(
            paragraphs,
            ["", "", "", "", "", "", repeated, "", repeated, repeated, "", ""],
        )

    def test_drops_lines_of_many_documents_and_short_rests(self):
        documents = _documents("m|one", "two|m|m", "three|m", "m|4", "m")
        dropped, paragraphs = _decide(
            documents,
            self.get_temp_dir(),
            repeated_line_documents=3,
            min_document_length=2,
        )
        line = "line of many documents"
        self.assertEqual(
            paragraphs, ["", "", "", line, line, "", line, line, "", line]
        )
        self.assertEqual(
            dropped, ["", "", "", "short document", "empty document"]
        )
        _, paragraphs = _decide(
            documents, self.get_temp_dir(), repeated_line_documents=5
        )
        self.assertEqual(set(paragraphs), {""})

    def test_hash_partitions_find_what_one_finds(self):
        hashes = np.random.default_rng(5).integers(0, 900, 3000, np.uint64)
        expected = np.ones(3000, bool)
        expected[np.unique(hashes, return_index=True)[1]] = False
        everything = np.ones(3000, bool)
        with self.subTest("one"):
            found = judging.repeated_paragraphs(hashes, everything)
            self.assertAllEqual(found, expected)
        judging._PARTITION, before = 256, judging._PARTITION
        self.addCleanup(setattr, judging, "_PARTITION", before)
        found = judging.repeated_paragraphs(hashes, everything)
        self.assertAllEqual(found, expected)


class NearDuplicatesTest(tf.test.TestCase):
    def test_finds_planted_ones_by_their_distance(self):
        generator = np.random.default_rng(1)
        words = [f"w{i}" for i in range(5000)]
        texts = [list(generator.choice(words, 300)) for _ in range(60)]
        # A changed word changes 5 of 296 sequences, so after k changes the
        # similarity is (296 - 5k) / (296 + 5k).
        for copy, changes in ((0, 2), (1, 3), (2, 25)):
            changed = list(texts[copy])
            for place in range(changes):
                changed[10 + place * 10] = "changed"
            texts.append(changed)
        documents = _documents(*map(" ".join, texts))
        prints = fingerprints.compute(documents, with_signatures=True)
        original = judging.similar_documents(
            prints.signatures, 0.8, self.get_temp_dir()
        )
        self.assertAllEqual(original[:60], [-1] * 60)
        self.assertAllEqual(original[60:], [0, 1, -1])
        for copy, similarity in ((60, 286 / 306), (61, 281 / 311)):
            equal = prints.signatures[copy] == prints.signatures[copy - 60]
            self.assertNear(equal.mean(), similarity, 0.09)

    def test_reports_documents_that_are_not_compared(self):
        # One equal band makes 9 documents candidates, too many for 3 rounds.
        signatures = np.arange(9 * 128, dtype=np.uint32).reshape(9, 128)
        signatures[:, :7] = 1
        with (
            mock.patch.object(judging, "_MOST_ROUNDS", 3),
            self.assertLogs(level="WARNING") as logs,
        ):
            original = judging.similar_documents(
                signatures, 0.8, self.get_temp_dir()
            )
        self.assertAllEqual(original, [-1] * 9)
        self.assertIn("6 documents share", logs.output[0])


class SamplingTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        names = (Document(str(i), ("x",)) for i in range(20000))
        self.ids = fingerprints.compute(names, with_signatures=False).ids

    def test_heldout_share_is_stable(self):
        first = judging.is_heldout(self.ids, 0.05)
        self.assertNear(first.mean(), 0.05, 3 * (0.05 * 0.95 / 20000) ** 0.5)
        self.assertAllEqual(judging.is_heldout(self.ids[:99], 0.05), first[:99])
        self.assertTrue((judging.is_heldout(self.ids, 0.1) | ~first).all())

    def test_shares_follow_the_formula(self):
        documents = np.array([15000, 4000, 1000])
        languages = np.repeat([0, 1, 2], documents)
        # Sizes differ, because a language's share counts characters.
        sizes = np.random.default_rng(2).lognormal(6, 1, 20000).astype(int)
        shares = np.bincount(languages, sizes) / sizes.sum()
        for exponent in (0.0, 0.3, 0.7):
            copies = judging.count_copies(self.ids, sizes, languages, exponent)
            expected = shares**exponent / (shares**exponent).sum()
            written = np.bincount(languages, copies * sizes) / sizes.sum()
            rest = (expected / shares % 1)[languages]
            variance = np.bincount(languages, sizes**2 * rest * (1 - rest))
            error = np.sqrt(variance) / sizes.sum()
            self.assertTrue((abs(written - expected) < 3 * error).all())
        sizes = np.full(20000, 100)
        same = judging.count_copies(self.ids, sizes, languages, 1.0)
        self.assertAllEqual(same, np.ones(20000))


if __name__ == "__main__":
    tf.test.main()

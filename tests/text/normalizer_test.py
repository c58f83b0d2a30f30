"""Tests for bert_tf.text.normalizer and the tables it reads."""

import unicodedata
import unittest

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import ASCII_LOWER
from bert_tf.text import normalizer
from tests.support.repository import ROOT
from tools import build_normalizer_tables

_TABLES = ROOT / "bert_tf" / "text" / "tables"
_IS_UNICODE_14 = unicodedata.unidata_version == "14.0.0"


class NormalizerTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("He\tL\u00a0\u2028l\nO", b"he l  l o"),
        ("so\u00adft\u0000\ufffd\u0085", b"soft"),
        ("Ça ½ ﬁ ß ™", "ca ½ ﬁ ß ™".encode()),
        ("a.b—c\u037e", "a.b\n—\nc;".encode()),
        ("中Ａ각", "中ａ\u1100\u1161\u11a8".encode()),
        (b"\xe4\xb8A\xff\xf0\x9f\x98\x80\xc0\xaf\xf0\x9f\x98", "a😀".encode()),
    )
    def test_text_is_normalized_with_offsets(self, text, expected):
        uncased = normalizer.Normalizer(lower_case=True, strip_accents=True)
        self.assertAllEqual(uncased.normalize([text]), [expected])
        normalized, sources = uncased.normalize_with_offsets([text])
        self.assertAllEqual(normalized, [expected])
        self.assertAllEqual(sources.row_lengths(), [len(expected) + 1])
        size = len(text if isinstance(text, bytes) else text.encode())
        self.assertEqual(sources.flat_values[-1], size)
        self.assertTrue(np.all(np.diff(sources.flat_values) >= 0))

    @parameterized.parameters(
        ("He\tL\f\r\nO", b"he l   o"),
        ("ÇA Í ½ ß ™ so\u00adft\ufffd", "Ça Í ½ ß ™ so\u00adft\ufffd".encode()),
        ("a\u00a0b\u0085\v\u2028", b"a\0b\0\0\0"),
        ("a.b—c", "a.b\n—\nc".encode()),
        ("中Ａ각\u0007\u200b", "中Ａ각\u0007\u200b".encode()),
        ("ΟΔΟΣ", "ΟΔΟΣ".encode()),
    )
    def test_normalizes_as_on_the_device(self, text, expected):
        theirs = normalizer.Normalizer(True, False, ASCII_LOWER)
        self.assertAllEqual(theirs.normalize([text]), [expected])
        normalized, sources = theirs.normalize_with_offsets([text])
        self.assertAllEqual(normalized, [expected])
        self.assertEqual(sources.flat_values[-1], len(text.encode()))

    def test_texts_end_at_a_nul_on_the_device(self):
        texts = ["ab\0c\nd", "\0", "", b"a\xff\0\xff"]
        theirs = normalizer.Normalizer(True, False, ASCII_LOWER)
        self.assertAllEqual(theirs.cut(texts), [b"ab", b"", b"", b"a\xff"])
        ours = normalizer.Normalizer(True, False)
        self.assertAllEqual(ours.cut(tf.constant(texts))[0], b"ab\0c\nd")

    @parameterized.parameters((False, False), (True, True))
    def test_on_the_device_ascii_is_lower_case(self, lower_case, strip_accents):
        with self.assertRaisesRegex(ValueError, "ascii_lower lower-cases"):
            normalizer.Normalizer(lower_case, strip_accents, ASCII_LOWER)

    def test_sources_are_the_first_bytes_of_characters(self):
        uncased = normalizer.Normalizer(lower_case=True, strip_accents=True)
        _, sources = uncased.normalize_with_offsets(["xÉ\u0301—Σ", ""])
        self.assertEqual(
            sources.to_list(), [[0, 1, 5, 5, 5, 5, 5, 8, 8, 10], [0]]
        )

    def test_rules_rewrite_what_they_match_in_order(self):
        texts = tf.constant(["ab", "b", "", "aab", "a", "cc"])
        letters = normalizer.Rule(".*b", [("a+b", "xb"), ("xb", b"\0y")])
        doubles = normalizer.Rule(".*cc.*", [("cc", "dd")])
        changed = normalizer.apply_rules(texts, [letters, doubles])
        self.assertAllEqual(changed, [b"\0y", b"b", b"", b"\0y", b"a", b"dd"])
        none = normalizer.Rule("e", [("a", "x")])
        self.assertAllEqual(normalizer.apply_rules(texts, [none]), texts)
        self.assertAllEqual(normalizer.apply_rules(texts, []), texts)
        empty = tf.constant([], tf.string)
        self.assertAllEqual(normalizer.apply_rules(empty, [none]), empty)


class TablesTest(tf.test.TestCase, parameterized.TestCase):
    def test_tables_are_complete_and_small(self):
        tables = sorted(path.name for path in _TABLES.iterdir())
        names = [
            normalizer.table_name(lower_case, strip_accents)
            for lower_case in (False, True)
            for strip_accents in (False, True)
        ]
        names.append(normalizer.table_name(True, False, ASCII_LOWER))
        self.assertEqual(tables, sorted([*names, "sigma_context.json.xz"]))
        for path in _TABLES.iterdir():
            self.assertLess(path.stat().st_size, 500_000)

    @unittest.skipUnless(_IS_UNICODE_14, "The tables are of Unicode 14.")
    @pytest.mark.slow
    def test_equal_the_generated_tables(self):
        self.assertEqual(
            normalizer.read_table("sigma_context.json.xz"),
            build_normalizer_tables.build_sigma_context(),
        )
        self.assertEqual(
            normalizer.read_table("cased_keep_accents.xz"),
            build_normalizer_tables.build_model(False, False),
        )
        self.assertEqual(
            normalizer.read_table("ascii_lower.xz"),
            build_normalizer_tables.build_model(True, False, ASCII_LOWER),
        )


if __name__ == "__main__":
    tf.test.main()

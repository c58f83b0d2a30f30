"""Tests for export.heads.answer_texts."""

import itertools
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.export.heads import answer_texts
from bert_tf.export.heads.answer_texts import Paragraphs
from bert_tf.export.heads.answer_texts import Substrings
from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad import features as squad_features
from bert_tf.tasks.squad import predictions as squad_predictions
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary

_PIECES = (
    *"abcs中国人.-(",
    *("##a", "##b", "##c", "##s", "##ab", "aba", "the", "sub", "' "),
)
_CONTEXTS = (
    "",
    " \t\u202f\n",
    " The\t(abab-ab)  \u202fabc's aba.\r\n\nthe the ",
    "中国人中国 人中人。 abab中",
    "\u00e1b a\u0301b ab\u00a0ab ABAB \u0130s",  # Lengths that change.
    "ab\u200bab \u200b\u200d \x00 ab",  # Words without tokens.
    "xyz ab xyz-ab",  # Unknown words.
    "[UNK]ab [MASK] xyz [UNK] xyz[UNK]ab [SEP]",
    # Punctuation of a newer Unicode than that of the tokenizer.
    "ab\u1b4eab ab\u1b4exyz",
    "ab\uffff \0ab\0 \ufdd0",  # What some operators replace, or end at.
    "\U0001f642\U0001f642 a\U0001f642a a",
)

_TEXT = "abab aba ab 中b \U0010ffff\U0010ffff b\0 \0\0b"


def _spans(num_pieces):
    return [
        (first, last)
        for first in range(num_pieces)
        for last in range(first, min(first + 7, num_pieces))
    ]


class SpanTextsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        lower_case=(True, False),
        preserve_special_tokens=(True, False),
        searched_at_once=(4, 1 << 20),
    )
    def test_finds_the_texts_of_all_spans_like_python(
        self, lower_case, preserve_special_tokens, searched_at_once
    ):
        tokenizer = BertTokenizer(
            Vocabulary([*SPECIAL_TOKENS, *map(str.strip, _PIECES)]),
            lower_case,
            preserve_special_tokens=preserve_special_tokens,
        )
        paragraphs = Paragraphs.read(tf.constant(_CONTEXTS), tokenizer)
        examples = [squad_examples.make_example("", "a", x) for x in _CONTEXTS]
        windows = squad_features.convert_examples_to_features(
            examples, tokenizer, 999, 9, 1
        )
        words = [word for one in examples for word in one.doc_tokens]
        reference = squad_predictions.SpanTexts(tokenizer, words)

        expected, questions, spans = [], [], []
        splits = paragraphs.piece_splits.numpy()
        for window in windows:
            number, offset = window.example_index, window.doc_offset
            of_window = _spans(len(window.word_indices))
            for first, last in of_window:
                span = reference.find(
                    examples[number], window, first + offset, last + offset
                )
                expected.append((number, *span))
            questions += [number] * len(of_window)
            spans += [splits[number] + np.array(x) for x in of_window]
        questions = tf.constant(questions, tf.int64)

        with mock.patch.object(
            answer_texts, "_SEARCHED_AT_ONCE", searched_at_once
        ):
            texts = answer_texts.SpanTexts(paragraphs, tokenizer)
            begins, ends = texts.find(*tf.constant(np.array(spans).T, tf.int32))
        text, start, end = paragraphs.slice(questions, begins, ends)
        found = [
            (number, x.decode(), first, last)
            for number, x, first, last in zip(
                *(x.numpy() for x in (questions, text, start, end)),
                strict=True,
            )
        ]
        self.assertGreater(len(expected), 200)
        self.assertEqual(found, expected)
        keys = texts.key(begins, ends).numpy().tolist()
        pairs = set(zip(keys, text.numpy(), strict=True))
        self.assertLen(pairs, len(set(keys)))
        self.assertLen(pairs, len(set(text.numpy())))


class SubstringsTest(tf.test.TestCase):
    def test_hashes_are_equal_only_for_equal_substrings(self):
        places = [n for n, char in enumerate(_TEXT) if char != " "]
        substrings = Substrings(
            tf.constant([ord(_TEXT[n]) for n in places]),
            tf.constant([n == 0 or _TEXT[n - 1] == " " for n in places]),
        )
        spans = [
            (first, last)
            for first, last in itertools.product(range(len(places)), repeat=2)
            if first <= last
        ]
        begins = tf.constant([first for first, _ in spans], tf.int64)
        ends = tf.constant([last + 1 for _, last in spans], tf.int64)
        keys = substrings.key(begins, ends - begins).numpy().tolist()
        texts = [_TEXT[places[a] : places[b] + 1] for a, b in spans]
        self.assertLess(len(set(texts)), len(texts) - 10)
        self.assertLen(set(keys), len(set(texts)))
        self.assertLen(set(zip(keys, texts, strict=True)), len(set(texts)))

    def test_empty_text(self):
        substrings = Substrings(tf.zeros([0], tf.int32), tf.zeros([0], tf.bool))
        nothing = tf.zeros([0, 3], tf.int64)
        self.assertEqual(substrings.key(nothing, nothing).shape, [0, 3])
        zero = tf.zeros([1], tf.int64)
        self.assertAllEqual(substrings.key(zero, zero + 7), zero)


if __name__ == "__main__":
    tf.test.main()

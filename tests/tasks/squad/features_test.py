"""Tests for bert_tf.tasks.squad.features; the goldens have their own."""

import dataclasses
import tracemalloc

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad import features as squad_features
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary

_TOKENS = ("what", "is", "it", "?", "a", "b", "c", "d", "e", "##x", "(", ")")


def _tokenizer():
    return BertTokenizer(Vocabulary([*SPECIAL_TOKENS, *_TOKENS]))


def _example(context, question="what is it?", **values):
    example = squad_examples.make_example("q", question, context)
    return dataclasses.replace(example, **values)


def _tokens(features):
    tokenizer = _tokenizer()
    names = tokenizer.vocabulary.tokens
    return [" ".join(names[x] for x in one.input_ids) for one in features]


class SquadFeaturesTest(tf.test.TestCase, parameterized.TestCase):
    def _convert(self, *examples, is_training=False, **options):
        options = {
            "max_seq_length": 9,
            "doc_stride": 2,
            "max_query_length": 2,
        } | options
        return list(
            squad_features.convert_examples_to_features(
                examples, _tokenizer(), is_training=is_training, **options
            )
        )

    def test_longer_window_counts_as_more_context(self):
        # 400 tokens in windows of 300 and 150. Token 275 has 24 more behind it
        # in the first and 25 before it in the second, but 0.01 for each token
        # of a window makes the scores 27 and 26.5.
        features = self._convert(
            _example("a " * 400), max_seq_length=305, doc_stride=250
        )
        self.assertEqual(
            [one.is_max_context.tolist() for one in features],
            [[True] * 276 + [False] * 24, [False] * 26 + [True] * 124],
        )

    def test_long_paragraph_takes_little_memory(self):
        example = _example("a " * 8000)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        features = self._convert(example, doc_stride=4)
        _, peak = tracemalloc.get_traced_memory()
        self.assertLen(features, 2000)
        # A single table of windows and tokens would already have this size.
        self.assertLess(peak, 2000 * 8000 * 8)

    @parameterized.parameters("d", "\u0301")
    def test_answer_without_its_own_tokens_is_the_whole_word(self, answer):
        example = _example(
            "a (b\u0301) ex",
            orig_answer_text=answer,
            start_position=1,
            end_position=1,
        )
        features = self._convert(example, is_training=True)
        self.assertEqual(
            [(one.start_position, one.end_position) for one in features],
            [(5, 7), (0, 0)],
        )

    def test_paragraph_without_tokens_has_no_window(self):
        features = self._convert(
            _example(" \n"), _example("\u200b a"), _example("\u200b")
        )
        self.assertEqual(_tokens(features), ["[CLS] what is [SEP] a [SEP]"])
        self.assertEqual(features[0].example_index, 1)
        self.assertAllEqual(features[0].word_indices, [1])
        self.assertTrue(features[0].is_query_truncated)
        packed = squad_features.pack_windows(features, 0, is_training=False)
        self.assertEqual(packed.num_truncated, 1)

    @parameterized.parameters(
        {"max_seq_length": 5}, {"doc_stride": 0}, {"max_query_length": 0}
    )
    def test_rejects_lengths_without_room(self, **options):
        with self.assertRaisesRegex(UserError, "--max_seq_length greater by 4"):
            self._convert(_example("a"), **options)
        self.assertLen(self._convert(_example("a"), max_seq_length=6), 1)


if __name__ == "__main__":
    tf.test.main()

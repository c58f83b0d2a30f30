"""Tests for bert_tf.tasks.squad.features; the goldens have their own."""

import dataclasses
import tracemalloc

import numpy as np
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
    dataset = [
        {
            "paragraphs": [
                {
                    "context": context,
                    "qas": [{"id": "q", "question": question, "answers": []}],
                }
            ]
        }
    ]
    (example,) = squad_examples.build_examples(dataset, False).examples
    return dataclasses.replace(example, **values)


def _tokens(features):
    tokenizer = _tokenizer()
    return [" ".join(one.tokens(tokenizer.vocabulary)) for one in features]


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

    def test_windows(self):
        features = self._convert(_example("a (b) ex cd"))
        # "cd" is not in the vocabulary. Two tokens of the question remain.
        self.assertEqual(
            _tokens(features),
            [
                "[CLS] what is [SEP] a ( b ) [SEP]",
                "[CLS] what is [SEP] b ) e ##x [SEP]",
                "[CLS] what is [SEP] e ##x [UNK] [SEP]",
            ],
        )
        self.assertTrue(all(one.is_query_truncated for one in features))
        self.assertEqual([one.doc_span_index for one in features], [0, 1, 2])
        self.assertEqual(
            [one.token_to_orig_map for one in features],
            [
                {4: 0, 5: 1, 6: 1, 7: 1},
                {4: 1, 5: 1, 6: 2, 7: 2},
                {4: 2, 5: 2, 6: 3},
            ],
        )
        # "b" has one token to its right in the first window and none to its
        # left in the second.
        self.assertEqual(
            [one.token_is_max_context for one in features],
            [
                {4: True, 5: True, 6: True, 7: False},
                {4: False, 5: True, 6: True, 7: False},
                {4: False, 5: True, 6: True},
            ],
        )
        self.assertAllEqual(features[2].segment_ids, [0, 0, 0, 0, 1, 1, 1, 1])

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

    def test_memory_of_a_long_paragraph(self):
        example = _example("a " * 8000)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        features = self._convert(example, doc_stride=4)
        _, peak = tracemalloc.get_traced_memory()
        self.assertLen(features, 2000)
        # The size of one table of windows and tokens.
        self.assertLess(peak, 2000 * 8000 * 8)

    def test_answers(self):
        example = _example(
            "a (b) ex cd",
            orig_answer_text="b",
            start_position=1,
            end_position=1,
        )
        features = self._convert(example, is_training=True)
        # The brackets do not belong to the answer, and a window without the
        # answer points at [CLS].
        self.assertEqual(
            [(one.start_position, one.end_position) for one in features],
            [(6, 6), (4, 4), (0, 0)],
        )
        example = dataclasses.replace(
            example, orig_answer_text="ex cd", start_position=2, end_position=3
        )
        features = self._convert(example, is_training=True)
        self.assertEqual(
            [(one.start_position, one.end_position) for one in features],
            [(0, 0), (0, 0), (4, 6)],
        )

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

    def test_impossible(self):
        example = _example(
            "a b",
            orig_answer_text="",
            start_position=-1,
            end_position=-1,
            is_impossible=True,
        )
        (feature,) = self._convert(example, is_training=True)
        self.assertEqual((feature.start_position, feature.end_position), (0, 0))
        self.assertTrue(feature.is_impossible)

    def test_paragraph_without_tokens_has_no_window(self):
        features = self._convert(
            _example(" \n"), _example("\u200b a"), _example("\u200b")
        )
        self.assertEqual(_tokens(features), ["[CLS] what is [SEP] a [SEP]"])
        self.assertEqual(features[0].example_index, 1)
        self.assertEqual(features[0].unique_id, 1000000000)
        self.assertEqual(features[0].token_to_orig_map, {4: 1})

    def test_examples_are_read_lazily(self):
        examples = [
            _example(" ".join("abcde"[: 1 + index % 5]))
            for index in range(5000)
        ]
        # Read one by one, as from a file.
        features = squad_features.convert_examples_to_features(
            iter(examples), _tokenizer(), 7, 1, 2
        )
        first = next(features)
        features = [first, *features]
        self.assertEqual(
            [one.unique_id for one in features],
            list(range(1000000000, 1000000000 + len(features))),
        )
        # 1, 2, 3, 4, 5 tokens in windows of 2: 1, 1, 2, 3, 4 windows.
        self.assertEqual(
            [one.example_index for one in features],
            [
                index
                for index in range(5000)
                for _ in range((1, 1, 2, 3, 4)[index % 5])
            ],
        )
        self.assertEqual(
            _tokens(features[-4:]),
            [
                f"[CLS] what is [SEP] {two} [SEP]"
                for two in ("a b", "b c", "c d", "d e")
            ],
        )

    @parameterized.parameters(
        {"max_seq_length": 5},
        {"doc_stride": 0},
        {"max_query_length": 0},
    )
    def test_rejects_lengths_without_room(self, **options):
        with self.assertRaisesRegex(UserError, "--max_seq_length greater by 4"):
            self._convert(_example("a"), **options)
        self.assertLen(self._convert(_example("a"), max_seq_length=6), 1)


_OPTIONS = {"max_seq_length": 9, "doc_stride": 2, "max_query_length": 3}


def _examples(is_training=False):
    """Returns questions with one window, none and several."""
    dataset = [
        {
            "paragraphs": [
                {
                    "context": context,
                    "qas": [
                        {
                            "id": context,
                            "question": question,
                            "answers": [{"text": answer, "answer_start": at}],
                        }
                    ],
                }
            ]
        }
        for context, question, answer, at in (
            ("a bx", "it?", "bx", 2),
            ("a b cx d e", "what is it?", "cx", 4),
        )
    ]
    examples = squad_examples.build_examples(dataset, is_training).examples
    if is_training:
        return examples
    empty = squad_examples.make_example("none", "is it?", " \t ")
    return examples[0], empty, examples[1]


def _windows(examples, is_training=False):
    return list(
        squad_features.convert_examples_to_features(
            examples, _tokenizer(), is_training=is_training, **_OPTIONS
        )
    )


class SquadWindowsTest(tf.test.TestCase):
    def test_packs_windows_to_predict(self):
        windows = _windows(_examples())
        self.assertEqual([one.example_index for one in windows], [0, 2, 2, 2])
        packed = squad_features.pack_windows(windows, 0, is_training=False)
        self.assertLen(packed, 4)
        self.assertAllEqual(packed.lengths, [8, 9, 9, 8])
        self.assertEqual(packed.num_truncated_queries, 1)
        self.assertEqual(packed.windows, windows)
        batch = packed.batch(np.array([1]), 9)
        self.assertNotIn(squad_features.START_POSITIONS, batch)

    def test_training_batches(self):
        packed = squad_features.pack_windows(
            _windows(_examples(True), True), 13, is_training=True
        )
        batch = packed.batch(np.array([2, 0, 1]), 10)
        self.assertEqual(
            {name: x.dtype for name, x in batch.items()},
            dict.fromkeys(batch, np.int32),
        )
        to_id = _tokenizer().vocabulary.id
        tokens = [
            "[CLS] what is it [SEP] c ##x d [SEP]",
            "[CLS] it ? [SEP] a b ##x [SEP]",
            "[CLS] what is it [SEP] a b c [SEP]",
        ]
        expected = [[to_id(one) for one in row.split()] for row in tokens]
        self.assertAllEqual(
            batch["input_ids"],
            [row + (10 - len(row)) * [13] for row in expected],
        )
        lengths = [9, 8, 9]
        self.assertAllEqual(
            batch["input_mask"], [n * [1] + (10 - n) * [0] for n in lengths]
        )
        self.assertAllEqual(
            batch["segment_ids"],
            [
                5 * [0] + 4 * [1] + [0],
                4 * [0] + 4 * [1] + 2 * [0],
                5 * [0] + 4 * [1] + [0],
            ],
        )
        # The last window has only a part of the answer.
        self.assertAllEqual(batch["start_positions"], [5, 5, 0])
        self.assertAllEqual(batch["end_positions"], [6, 6, 0])

    def test_rejects_short_batches(self):
        packed = squad_features.pack_windows(_windows(_examples()), 0, False)
        with self.assertRaisesRegex(ValueError, "longest row, 9.*: 8"):
            packed.batch(np.array([0, 1]), 8)

    def test_no_windows(self):
        packed = squad_features.pack_windows([], 0, is_training=False)
        self.assertEmpty(packed)
        self.assertEmpty(packed.windows)


if __name__ == "__main__":
    tf.test.main()

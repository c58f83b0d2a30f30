"""Tests for bert_tf.tasks.squad.windows; the goldens have their own."""

import dataclasses

import numpy as np
import tensorflow as tf

from bert_tf.tasks.squad import examples as squad_examples
from bert_tf.tasks.squad import features as squad_features
from bert_tf.tasks.squad import windows as squad_windows
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.vocabulary import Vocabulary

_PIECES = ("what", "is", "it", "?", "a", "b", "c", "d", "e", "##x")
_OPTIONS = {"max_seq_length": 9, "doc_stride": 2, "max_query_length": 3}


def _tokenizer():
    return BertTokenizer(Vocabulary([*SPECIAL_TOKENS, *_PIECES]))


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
    def test_windows_are_the_same_after_packing(self):
        windows = _windows(_examples())
        self.assertEqual([one.example_index for one in windows], [0, 2, 2, 2])
        packed = squad_windows.pack_windows(windows, 0, is_training=False)
        self.assertLen(packed, 4)
        self.assertAllEqual(packed.lengths, [8, 9, 9, 8])
        self.assertEqual(packed.num_truncated_queries, 1)
        again = list(packed.windows())
        self.assertLen(again, len(windows))
        for one, other in zip(windows, again, strict=True):
            for field in dataclasses.fields(one):
                self.assertAllEqual(
                    getattr(one, field.name), getattr(other, field.name)
                )
        batch = packed.batch(np.array([1]), 9)
        self.assertNotIn(squad_windows.START_POSITIONS, batch)

    def test_batches_to_train_on(self):
        packed = squad_windows.pack_windows(
            _windows(_examples(True), True), 13, is_training=True
        )
        batch = packed.batch(np.array([2, 0, 1]), 10)
        self.assertEqual(
            {name: x.dtype for name, x in batch.items()},
            dict.fromkeys(batch, np.int32),
        )
        to_id = _tokenizer().vocabulary.id
        pieces = [
            "[CLS] what is it [SEP] c ##x d [SEP]",
            "[CLS] it ? [SEP] a b ##x [SEP]",
            "[CLS] what is it [SEP] a b c [SEP]",
        ]
        expected = [[to_id(one) for one in row.split()] for row in pieces]
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
        # The last window has but a part of the answer.
        self.assertAllEqual(batch["start_positions"], [5, 5, 0])
        self.assertAllEqual(batch["end_positions"], [6, 6, 0])

    def test_too_short_a_batch(self):
        packed = squad_windows.pack_windows(_windows(_examples()), 0, False)
        with self.assertRaisesRegex(ValueError, "longest row, 9.*: 8"):
            packed.batch(np.array([0, 1]), 8)

    def test_no_window(self):
        packed = squad_windows.pack_windows([], 0, is_training=False)
        self.assertEmpty(packed)
        self.assertEmpty(list(packed.windows()))


if __name__ == "__main__":
    tf.test.main()

"""Tests for bert_tf.tasks.multiple_choice.features."""

import numpy as np
import tensorflow as tf

from bert_tf.tasks.multiple_choice import features as multiple_choice_features
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceExample
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import tiny_model


def _example(context, choices, label=None):
    names = tuple(map(str, range(len(choices))))
    return MultipleChoiceExample("", context, tuple(choices), names, label)


class MultipleChoiceFeaturesTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.tokenizer = BertTokenizer(Vocabulary(tiny_model.TOKENS))

    def _convert(self, examples, max_seq_length=12):
        return multiple_choice_features.convert_examples_to_features(
            examples, self.tokenizer, max_seq_length
        )

    def _ids(self, text):
        return [tiny_model.TOKENS.index(piece) for piece in text.split()]

    def test_each_choice_follows_the_context(self):
        features = self._convert(
            [
                _example("The cat sat.", ["the mat", "on dogs .", "dog"], 2),
                _example("The dog", ["sat", "the cat sat"], 0),
            ]
        )
        self.assertLen(features, 2)
        self.assertAllEqual(features.lengths, [11, 8])
        batch = features.batch(np.array([1, 0]), 11)
        texts = [
            "[CLS] the dog [SEP] sat [SEP]",
            "[CLS] the dog [SEP] the cat sat [SEP]",
            None,
            "[CLS] the cat sat . [SEP] the mat [SEP]",
            "[CLS] the cat sat . [SEP] on dog ##s . [SEP]",
            "[CLS] the cat sat . [SEP] dog [SEP]",
        ]
        for number, text in enumerate(texts):
            ids = self._ids(text) if text else []
            second = ids.index(3) + 1 if text else 0
            rows = {
                "input_ids": ids,
                "input_mask": [1] * len(ids),
                "segment_ids": [0] * second + [1] * (len(ids) - second),
            }
            for name, row in rows.items():
                self.assertEqual(batch[name].dtype, np.int32)
                self.assertEqual(batch[name].shape, (2, 3, 11))
                self.assertAllEqual(
                    batch[name][number // 3, number % 3],
                    row + [0] * (11 - len(row)),
                    f"{name} of {text}",
                )
        self.assertAllEqual(batch["label_ids"], [0, 2])

    def test_all_batches_have_the_same_number_of_choices(self):
        features = self._convert(
            [_example("The cat", ["the"] * n) for n in (2, 5, 3)]
        )
        for indices in ([0], [2, 0], [0, 1]):
            batch = features.batch(np.array(indices), 8)
            self.assertEqual(batch["input_ids"].shape, (len(indices), 5, 8))
            self.assertNotIn("label_ids", batch)

    def test_padding_uses_the_pad_id(self):
        tokens = ["[UNK]", *tiny_model.TOKENS[2:], "[PAD]"]
        features = multiple_choice_features.convert_examples_to_features(
            [_example("the", ["cat", "dog"]), _example("the", ["cat"] * 3)],
            BertTokenizer(Vocabulary(tokens)),
            12,
        )
        batch = features.batch(np.array([0, 1]), 6)
        self.assertAllEqual(
            batch["input_ids"] == len(tokens) - 1, batch["input_mask"] == 0
        )
        self.assertEqual(batch["input_mask"][0, 2].sum(), 0)

    def test_choices_without_a_context_stand_alone(self):
        features = self._convert(
            [
                _example(None, ["the cat sat", "mat"]),
                _example(None, ["a", "on"]),
            ]
        )
        self.assertAllEqual(features.lengths, [5, 3])
        batch = features.batch(np.array([0]), 5)
        self.assertAllEqual(
            batch["input_ids"][0],
            [
                self._ids("[CLS] the cat sat [SEP]"),
                self._ids("[CLS] mat [SEP]") + [0, 0],
            ],
        )
        self.assertEqual(batch["segment_ids"].sum(), 0)

    def test_truncated_choices_are_counted(self):
        examples = [
            _example("the cat sat on the mat", ["the dog", "on the dog .", "."])
        ]
        features = self._convert(examples, 10)
        self.assertEqual(features.texts.num_truncated, 2)
        self.assertAllEqual(features.lengths, [10])
        self.assertAllEqual(
            features.batch(np.array([0]), 10)["input_ids"][0, 1],
            self._ids("[CLS] the cat sat on [SEP] on the dog [SEP]"),
        )

    def test_no_examples(self):
        features = self._convert([])
        self.assertEmpty(features)
        self.assertEmpty(features.lengths)


if __name__ == "__main__":
    tf.test.main()

"""Tests for bert_tf.distillation.task: rows with and without labels."""

import dataclasses

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.distillation.task import MixedFeatures
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.multiple_choice.examples import Columns
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.text.tokenizer import BertTokenizer
from bert_tf.text.vocabulary import Vocabulary
from tests.support import tiny_model


class MixedFeaturesTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.tokenizer = BertTokenizer(Vocabulary(tiny_model.TOKENS))

    def _mix(self, labeled, unlabeled):
        self.labeled, self.unlabeled = labeled, unlabeled
        return MixedFeatures(labeled, unlabeled)

    def _classification(self):
        task = ClassificationTask(
            name="custom", labels=("a", "b"), metric_names=("accuracy",)
        )
        examples = [
            task.example_from_row(x) for x in ("cat", "the cat sat", "東 dog")
        ]
        unlabeled = [
            task.example_from_row(x) for x in ("mat . the dog sat", "sat")
        ]
        with_labels = [
            dataclasses.replace(one, label=label)
            for one, label in zip(examples, "bab", strict=True)
        ]
        return self._mix(
            task.featurize(with_labels, self.tokenizer, True),
            task.featurize_unlabeled(unlabeled, self.tokenizer),
        )

    @parameterized.parameters(
        ([0, 4, 2, 3, 1],), ([3, 4],), ([1],), ([4, 0, 4],)
    )
    def test_rows_of_both_kinds(self, indices):
        mixed = self._classification()
        self.assertLen(mixed, 5)
        self.assertAllEqual(mixed.lengths, [3, 5, 4, 7, 3])
        batch = mixed.batch(np.array(indices), 7)
        self.assertAllEqual(batch["is_labeled"], np.less(indices, 3))
        self.assertEqual(batch["is_labeled"].dtype, np.float32)
        self.assertEqual(batch["label_ids"].dtype, np.int32)
        for row, index in enumerate(indices):
            is_labeled = index < 3
            source = self.labeled if is_labeled else self.unlabeled
            alone = source.batch(
                np.array([index if is_labeled else index - 3]), 7
            )
            if not is_labeled:
                self.assertNotIn("label_ids", alone)
            for name, values in batch.items():
                if name != "is_labeled":
                    expected = alone.get(name, np.zeros([1], np.int32))
                    self.assertAllEqual(values[row], expected[0])

    def test_examples_with_more_choices(self):
        task = MultipleChoiceTask(name="custom", columns=Columns(("choices",)))
        rows = [{"choices": ["cat", "dog"]}, {"choices": ["cat", "dog", "mat"]}]
        few, many = (task.example_from_row(row) for row in rows)
        for labeled, unlabeled in ((few, many), (many, few)):
            labeled = dataclasses.replace(labeled, label=1)
            mixed = self._mix(
                task.featurize([labeled], self.tokenizer, True),
                task.featurize_unlabeled([unlabeled], self.tokenizer),
            )
            batch = mixed.batch(np.arange(2), 5)
            self.assertEqual(batch["input_ids"].shape, (2, 3, 5))
            order = (0, 1) if labeled.choices == few.choices else (1, 0)
            self.assertAllEqual(
                batch["input_mask"][list(order), :, 0], [[1, 1, 0], [1, 1, 1]]
            )
            self.assertAllEqual(batch["label_ids"], [1, 0])

    def test_first_tokens_of_words_count(self):
        task = TaggingTask(
            name="custom", labels=("O", "B-X"), max_seq_length=12
        )
        labeled = task.example_from_row(["cat", "mats"])
        labeled = dataclasses.replace(labeled, tags=("O", "B-X"))
        mixed = self._mix(
            task.featurize([labeled], self.tokenizer, True),
            task.featurize_unlabeled(
                [task.example_from_row(["sitting", "mats", "on"])],
                self.tokenizer,
            ),
        )
        batch = mixed.batch(np.arange(2), 8)
        weights = [[0, 1, 1, 0, 0, 0, 0, 0], [0, 1, 1, 0, 1, 0, 0, 0]]
        self.assertAllEqual(task.soft_target_weights(batch), weights)

    def test_questions(self):
        task = SquadTask(max_seq_length=12, doc_stride=2, max_query_length=3)
        question = {"question": "cat sat", "context": "the dog sat on the mat"}
        unlabeled = task.featurize_unlabeled(
            [task.example_from_row(question)], self.tokenizer
        )
        self.assertGreaterEqual(len(unlabeled), 1)
        self.assertEqual(
            set(unlabeled.batch(np.arange(1), 12)),
            {"input_ids", "input_mask", "segment_ids"},
        )


if __name__ == "__main__":
    tf.test.main()

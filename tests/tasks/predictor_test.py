"""Tests for bert_tf.tasks.predictor."""

from unittest import mock

import numpy as np
import tensorflow as tf
from scipy import special

from bert_tf.inference import load
from bert_tf.tasks import predictor
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.text import packing
from tests.support import tiny_model

_TEXTS = ("The cat sat.", "dog", "on the mat, the dogs", "cats sat on dogs .")


def _task(**values):
    return ClassificationTask(
        name="custom",
        max_seq_length=10,
        labels=("no", "maybe", "yes"),
        metric_names=("accuracy",),
        **values,
    )


class PredictorTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        path = tiny_model.write_task(self.create_tempdir().full_path, _task())
        self._model = load.load_model(path)
        self._tokenizer = load.load_tokenizer(path)

    def _predictor(self, task, *arguments):
        return predictor.Predictor(
            self._model, task, self._tokenizer, *arguments
        )

    def _expected(self):
        """Returns the probabilities of each text alone."""
        rows = []
        for text in _TEXTS:
            tokens = self._tokenizer.tokenize([text])
            packed = packing.pack(tokens, None, 10, self._tokenizer.vocabulary)
            rows.append(special.softmax(self._model(packed)["logits"][0]))
        return rows

    def test_predictions_and_objects(self):
        task = _task()
        examples = [task.parse(text) for text in _TEXTS]
        expected = self._expected()
        self.assertGreater(np.ptp(expected, axis=0).min(), 1e-3)
        for arguments in ((), (2,), (3, 1), (2, 2)):
            made = self._predictor(task, *arguments)
            predictions = made.predict(examples)
            self.assertAllClose(
                [prediction.values for prediction in predictions],
                expected,
                atol=1e-5,
            )
            objects = made.describe(examples)
            for row, values in zip(objects, expected, strict=True):
                self.assertEqual(
                    row["label"], task.labels[int(np.argmax(values))]
                )
                self.assertAllClose(
                    list(row["probabilities"].values()), values, atol=1e-5
                )

    def test_windows_of_an_example_count_as_one(self):
        task = _task(doc_stride=2)
        texts = [" ".join(_TEXTS), "dog", "the cat"]
        examples = [task.parse(text) for text in texts]
        told = []
        rows = self._predictor(task, 2).describe(examples, told.append)
        self.assertLen(rows, 3)
        self.assertEqual(sum(told), 3)
        self.assertGreater(min(told), 0)

    def test_first_examples_choose_the_lengths(self):
        task = _task()
        made = self._predictor(task, 4, 2)
        made.predict([task.parse("dog")])
        # Longer ones have the other of the two.
        for texts in (_TEXTS, ["dog"]):
            self.assertLen(
                made.predict([task.parse(t) for t in texts]), len(texts)
            )

    def test_no_examples(self):
        self.assertEqual(self._predictor(_task()).predict([]), [])


class ChunksTest(tf.test.TestCase):
    def test_what_belongs_together_is_not_parted(self):
        task = mock.Mock()
        task.must_share_chunk = lambda first, second: first[0] == second[0]
        task.num_rows.return_value = 1
        examples = ["a1", "a2", "a3", "b1", "c1", "c2", "d1"]
        self.assertEqual(
            list(predictor.chunks(task, examples, 2)),
            [["a1", "a2", "a3"], ["b1", "c1", "c2"], ["d1"]],
        )
        self.assertEqual(
            list(predictor.chunks(task, ["a1", "b1", "c1"], 2)),
            [["a1", "b1"], ["c1"]],
        )
        self.assertEqual(list(predictor.chunks(task, [], 2)), [])

    def test_examples_of_many_rows_are_fewer_at_a_time(self):
        task = SquadTask(doc_stride=3)
        # 1, 2, 1, 5 and 1 windows.
        examples = [
            task.parse(("cat", " ".join(["dog"] * count)))
            for count in (1, 4, 2, 12, 1)
        ]
        self.assertEqual(
            list(predictor.chunks(task, examples, 3)),
            [examples[:2], examples[2:4], examples[4:]],
        )


if __name__ == "__main__":
    tf.test.main()

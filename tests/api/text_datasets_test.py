"""Tests of data sets of texts in `fit`, `evaluate` and `predict`."""

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.support import fit_case


class TextDatasetsTest(
    fit_case.FitCase, tf.test.TestCase, parameterized.TestCase
):
    @pytest.mark.slow
    def test_data_sets_of_strings(self):
        model = self.new(compiled={"optimizer": "sgd", "metrics": "accuracy"})
        data = tf.data.Dataset.from_tensor_slices(
            (fit_case.TEXTS, fit_case.LABELS)
        )
        expected = model.evaluate(
            fit_case.TEXTS, fit_case.LABELS, verbose=0, return_dict=True
        )
        indexed = tf.data.Dataset.from_tensor_slices(
            (fit_case.TEXTS, fit_case.IDS)
        ).batch(5)
        for one in (data, indexed):
            scores = model.evaluate(one, verbose=0, return_dict=True)
            self.assertAllClose(scores, expected, rtol=1e-5)
        features = model.preprocessor(fit_case.TEXTS)
        for one in (data, data.map(lambda x, y: x).batch(3)):
            self.assertAllClose(
                model.predict(one, verbose=0)["logits"],
                model(features)["logits"],
                atol=1e-5,
            )
        pairs = tf.data.Dataset.from_tensor_slices(
            ((fit_case.TEXTS, fit_case.TEXTS), fit_case.LABELS)
        )
        (x, _), *_ = model.preprocessor.training_data(pairs)[0]
        self.assertEqual(x["input_ids"].shape, (5, 12))
        self.assertAllGreater(tf.reduce_sum(x["segment_ids"], -1), 0)
        wrong = tf.data.Dataset.from_tensor_slices((fit_case.TEXTS, ["x"] * 5))
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "labels among bad, good"
        ):
            model.evaluate(wrong, verbose=0)

    @parameterized.parameters(
        (tf.ragged.constant([["a"], [], ["c", "a"]]),),
        (tf.constant([["a", ""], ["", ""], ["c", "a"]]),),
        (tf.constant([[1.0, 0, 0], [0, 0, 0], [1, 0, 1]]),),
    )
    @pytest.mark.slow
    def test_several_labels(self, y):
        texts = fit_case.TEXTS[:3]
        compiled = {"optimizer": "sgd", "metrics": ["accuracy"]}
        labels = ["a", "b", "c"]
        model = self.new(compiled=compiled, labels=labels)
        expected = model.evaluate(
            texts, [["a"], [], ["c", "a"]], verbose=0, return_dict=True
        )
        model = self.new(compiled=compiled, labels=labels)
        data = tf.data.Dataset.from_tensor_slices((texts, y))
        for one in (data, data.ragged_batch(2)):
            scores = model.evaluate(one, verbose=0, return_dict=True)
            self.assertAllClose(scores, expected)
        self.assertTrue(model.preprocessor.is_multi_label)

    @pytest.mark.slow
    def test_scores_and_pairs(self):
        model = self.new(compiled={"optimizer": "sgd"}, num_labels=1)
        pairs = (["the cat", "mat"], ["dogs", "the dog sat on"])
        y = [0.5, -2.0]
        expected = model.evaluate(pairs, y, verbose=0)
        named = dict(zip(("text", "text_pair"), pairs, strict=True))
        for x in (pairs, named):
            data = tf.data.Dataset.from_tensor_slices((x, y))
            for one in (data, data.batch(2)):
                self.assertAllClose(model.evaluate(one, verbose=0), expected)


if __name__ == "__main__":
    tf.test.main()

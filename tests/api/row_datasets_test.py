"""Tests of data sets of raw rows of tasks other than classification."""

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from tests.support import fit_case

_TAGS = [["O", "X", "O", "X"], ["O"]]
_COLUMNS = {
    "context": [row["context"] for row in fit_case.CHOICES],
    "choices": tf.ragged.constant([x["choices"] for x in fit_case.CHOICES]),
}
_slices = tf.data.Dataset.from_tensor_slices


def _tagged():
    """Returns words and indices of tags, in tensors."""
    return tf.data.Dataset.from_generator(
        lambda: zip(fit_case.SENTENCES, [[0, 1, 0, 1], [0]], strict=True),
        output_signature=(
            tf.TensorSpec([None], tf.string),
            tf.TensorSpec([None], tf.int32),
        ),
    )


class RowDatasetsTest(
    fit_case.FitCase, tf.test.TestCase, parameterized.TestCase
):
    def _check(self, model, x, y, *datasets):
        """Compares scores and predictions with those of lists."""
        expected = model.evaluate(x, y, verbose=0, return_dict=True)
        answers = model.predict(x, verbose=0)
        for dataset in datasets:
            for one in (dataset, dataset.ragged_batch(2)):
                scores = model.evaluate(one, verbose=0, return_dict=True)
                self.assertAllClose(scores, expected)
                self.assertEqual(model.predict(one, verbose=0), answers)

    def new(self, kind, **options):
        compiled = {"optimizer": "sgd", "metrics": ["accuracy"]}
        return super().new(kind, compiled, **options)

    @pytest.mark.slow
    def test_questions(self):
        model = self.new("question_answering")
        data = _slices((fit_case.QUESTIONS, fit_case.ANSWERS))
        self._check(model, fit_case.QUESTIONS, fit_case.ANSWERS, data)
        weights = tf.constant([2.0, 3.0])
        weighted = model.evaluate(
            fit_case.QUESTIONS,
            fit_case.ANSWERS,
            sample_weight=weights,
            verbose=0,
        )
        data = _slices((fit_case.QUESTIONS, fit_case.ANSWERS, weights))
        self.assertAllClose(model.evaluate(data, verbose=0), weighted)
        # Of three questions the second has two windows or more.
        inputs = model.preprocessor.training_data(data.batch(1))[0]
        (_, _, first), (features, labels, second) = inputs
        self.assertEqual(first.numpy().tolist(), [2.0])
        self.assertGreater(len(features["input_ids"]), 1)
        self.assertEqual(set(second.numpy()), {3.0})
        self.assertEqual(set(labels), {"start_positions", "end_positions"})
        history = model.fit(data.shuffle(2), epochs=2, verbose=0).history
        self.assertLen(history["loss"], 2)

    @pytest.mark.slow
    def test_words(self):
        model = self.new("tagging", labels=["O", "X"])
        ragged = _slices(
            (tf.ragged.constant(fit_case.SENTENCES), tf.ragged.constant(_TAGS))
        )
        self._check(model, fit_case.SENTENCES, _TAGS, ragged, _tagged())
        padded = model.evaluate(_tagged().padded_batch(2), verbose=0)
        expected = model.evaluate(fit_case.SENTENCES, _TAGS, verbose=0)
        self.assertAllClose(padded, expected)
        texts = _slices(["the cat", "dogs"])
        self.assertEqual(
            model.predict(texts, verbose=0),
            model.predict(["the cat", "dogs"], verbose=0),
        )

    @pytest.mark.slow
    def test_choices(self):
        model = self.new("multiple_choice")
        data = _slices((_COLUMNS, [1, 2]))
        self._check(model, fit_case.CHOICES, [1, 2], data)
        with self.assertRaisesRegex(UserError, "repeat"):
            model.predict(data.repeat(), verbose=0)
        wrong = _slices((_COLUMNS, [1, 7]))
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "Row 1 .* from 0 to 2"
        ):
            model.evaluate(wrong, verbose=0)


if __name__ == "__main__":
    tf.test.main()

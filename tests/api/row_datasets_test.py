"""Tests of data sets, generators, `PyDataset`s and batches of raw rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
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
        expected = fit_case.scores(model, x, y)
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


_TEXTS = fit_case.TEXTS
_LABELS = fit_case.LABELS
_STREAM_TAGS = [["X", "O", "X", "O"], ["O"]]
# Rows and labels, by kind.
_BATCHES = {
    "classification": (_TEXTS, _LABELS),
    "question_answering": (fit_case.QUESTIONS, fit_case.ANSWERS),
    "tagging": (fit_case.SENTENCES, _STREAM_TAGS),
    "multiple_choice": (fit_case.CHOICES, [1, 2]),
    "masked_lm": (_TEXTS,),
}
_OPTIONS = {
    "question_answering": {"max_seq_length": 10},
    "tagging": {"labels": ["O", "X"]},
}


class _Batches(keras.utils.PyDataset):
    """Batches of raw rows."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return _TEXTS, _LABELS


class BatchesTest(fit_case.FitCase, tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*_BATCHES)
    def test_every_kind_of_model_reads_them(self, kind):
        batch = _BATCHES[kind]
        model = self.new(
            kind, compiled={"optimizer": "sgd"}, **_OPTIONS.get(kind, {})
        )
        expected = model.evaluate(*batch, verbose=0)
        data = model.preprocessor(*batch)
        data = data if isinstance(data, tuple) else (data,)
        self.assertAllClose(
            model.evaluate((data for _ in range(1)), steps=1, verbose=0),
            expected,
        )
        self.assertAllClose(model.test_on_batch(*batch), expected)
        before = [one.numpy() for one in model.trainable_weights]
        loss = model.train_on_batch(*batch, return_dict=True)["loss"]
        self.assertTrue(np.isfinite(loss))
        changes = [
            np.abs(now.numpy() - old).max()
            for now, old in zip(model.trainable_weights, before, strict=True)
        ]
        self.assertGreater(max(changes), 0)

    def test_predictions(self):
        model = self.new()
        expected = model.predict(_TEXTS, verbose=0)
        self.assertEqual(model.predict_on_batch(_TEXTS), expected)
        logits = model(_TEXTS)["logits"]
        self.assertAllClose(
            tf.nn.softmax(logits)[:, 1],
            [row["probabilities"]["good"] for row in expected],
        )
        self.assertAllEqual(model(np.array(_TEXTS))["logits"], logits)

    @pytest.mark.slow
    def test_batches_after_fit_have_a_constant_rate(self):
        model = self.new()
        model.fit(_TEXTS, _LABELS, verbose=0)
        self.assertEqual(float(model.optimizer.learning_rate), 0)
        for step in (1, 2):
            model.train_on_batch(_TEXTS, _LABELS)
            self.assertEqual(int(model.optimizer.iterations), step)
        self.assertAllClose(model.optimizer.learning_rate, 5e-5)

    def test_mistakes_are_one_sentence(self):
        model = self.new(compiled={"optimizer": "sgd"})
        for stream in (_Batches(), (batch for batch in _Batches())):
            for call in (model.fit, model.evaluate, model.predict):
                with self.assertRaisesRegex(UserError, "tf.data.Dataset of"):
                    call(stream, verbose=0)
        features = (model.preprocessor(_TEXTS, _LABELS) for _ in range(1))
        model.fit(features, verbose=0)
        with self.assertRaisesRegex(UserError, "Received: symbolic texts"):
            model(keras.Input((), dtype="string"))
        bare = bert_tf.BertForClassification(model.bert_config, num_labels=2)
        with self.assertRaisesRegex(UserError, "load_model returned reads raw"):
            bare(_TEXTS)


class TextDatasetsTest(
    fit_case.FitCase, tf.test.TestCase, parameterized.TestCase
):
    @pytest.mark.slow
    def test_data_sets_of_strings(self):
        model = self.new(compiled={"optimizer": "sgd", "metrics": "accuracy"})
        data = _slices((fit_case.TEXTS, fit_case.LABELS))
        expected = fit_case.scores(model, fit_case.TEXTS, fit_case.LABELS)
        indexed = _slices((fit_case.TEXTS, fit_case.IDS)).batch(5)
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
        pairs = _slices(((fit_case.TEXTS, fit_case.TEXTS), fit_case.LABELS))
        (x, _), *_ = model.preprocessor.training_data(pairs)[0]
        self.assertEqual(x["input_ids"].shape, (5, 12))
        self.assertAllGreater(tf.reduce_sum(x["segment_ids"], -1), 0)
        wrong = _slices((fit_case.TEXTS, ["x"] * 5))
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "Row 0 .*'bad'.*'x'"
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
        expected = fit_case.scores(model, texts, [["a"], [], ["c", "a"]])
        model = self.new(compiled=compiled, labels=labels)
        data = _slices((texts, y))
        for one in (data, data.ragged_batch(2)):
            scores = model.evaluate(one, verbose=0, return_dict=True)
            self.assertAllClose(scores, expected)
        self.assertTrue(model.preprocessor.is_multi_label)


if __name__ == "__main__":
    tf.test.main()

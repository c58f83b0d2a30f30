"""Tests for bert_tf.api.class_weights, and of them in `fit`."""

import dataclasses
import tempfile

import keras
import numpy as np
import tensorflow as tf

import bert_tf
from bert_tf.api import class_weights
from tests.support import tiny_model

_TEXTS = ["the cat sat on the mat", "dogs sat", "the dog", "cat", "a mat ."]
_SENTENCES = [["the", "cat", "sat", "mats"], ["dogs"]]
_NO_DROPOUT = dataclasses.replace(
    tiny_model.ONE_LAYER,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def _losses(logits, labels):
    logits = np.float64(logits)
    chosen = np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return np.log(np.exp(logits).sum(-1)) - chosen


class ClassWeightsTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.path = tiny_model.write(tempfile.mkdtemp(), config=_NO_DROPOUT)

    def _new(self, kind, labels):
        keras.utils.set_random_seed(7)
        model = bert_tf.load_model(
            self.path, kind, labels=labels, head_dropout_prob=0.0
        )
        model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
        return model

    def test_product_with_the_weights_of_rows(self):
        product = class_weights.multiply(
            {2: 3.0, 0: 0.5}, np.array([[0, 1, -1], [2, 2, 4]]), [1, 2]
        )
        self.assertAllEqual(product, [[0.5, 1, 0], [6, 6, 2]])
        self.assertEqual(product.dtype, np.float32)
        alone = class_weights.multiply({1: 3.0}, np.array([0, 1, 9]), None)
        self.assertAllEqual(alone, [1, 3, 1])

    def test_classification(self):
        model = self._new("classification", ["bad", "good"])
        y = np.array([1, 0, 0, 1, 0])
        rows = np.array([1, 2, 0, 4, 0.5])
        loss = model.fit(
            _TEXTS,
            y,
            class_weight={"good": 3.0},
            sample_weight=rows,
            verbose=0,
        ).history["loss"]
        losses = _losses(model(model.preprocessor(_TEXTS))["logits"], y)
        expected = np.mean(losses * rows * np.where(y, 3, 1))
        self.assertAllClose(loss, [expected], rtol=1e-5)

    def test_tagging(self):
        model = self._new("tagging", ["O", "X"])
        tags = [["O", "X", "O", "X"], ["O"]]
        features, y = model.preprocessor(_SENTENCES, tags)
        losses = _losses(model(features)["logits"], np.maximum(y, 0))
        for rows in (None, np.array([1.0, 2.0])):
            weights = (y != -1) * np.where(y == 1, 3, 1)
            if rows is not None:
                weights = weights * rows[:, None]
            loss = model.fit(
                _SENTENCES,
                tags,
                class_weight={"X": 3.0},
                sample_weight=rows,
                verbose=0,
            ).history["loss"]
            expected = np.sum(losses * weights) / np.sum(y != -1)
            self.assertAllClose(loss, [expected], rtol=1e-5)
            model.compile(
                keras.optimizers.SGD(0.0),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                run_eagerly=True,
            )


if __name__ == "__main__":
    tf.test.main()

"""Tests of `compile` of loaded models: losses, metrics and outputs."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.errors import UserError
from tests.support import fit_case
from tests.support import tiny_model

_RATE = 1e-2


class CompileTest(fit_case.FitCase, tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (fit_case.CROSS_ENTROPY, ["accuracy"], fit_case.IDS),
        (fit_case.CROSS_ENTROPY, ["accuracy"], {"logits": fit_case.IDS}),
        (fit_case.CROSS_ENTROPY, "accuracy", fit_case.LABELS),
        (
            {"logits": fit_case.CROSS_ENTROPY},
            {"logits": ["accuracy"]},
            fit_case.IDS,
        ),
        (
            {"logits": fit_case.CROSS_ENTROPY},
            {"logits": "accuracy"},
            {"logits": fit_case.IDS},
        ),
    )
    @pytest.mark.slow
    def test_all_forms_train_as_a_functional_model(self, loss, metrics, y):
        model = self.new(
            compiled=fit_case.compiled(
                optimizer=keras.optimizers.AdamW(_RATE),
                loss=loss,
                metrics=metrics,
            )
        )
        features, ids = model.preprocessor(fit_case.TEXTS, fit_case.LABELS)
        y = {n: np.array(x) for n, x in y.items()} if type(y) is dict else y
        y = np.array(y) if y is fit_case.IDS else y
        keras.utils.set_random_seed(7)
        history = model.fit(
            features,
            y,
            batch_size=2,
            verbose=0,
            validation_data=(features, ids),
        )
        self.assertEqual(
            set(history.history),
            {"loss", "accuracy", "val_loss", "val_accuracy"},
        )
        self.assertAllClose(
            history.history, self._train_functional_model(), atol=1e-6
        )

    @classmethod
    @functools.cache
    def _train_functional_model(cls):
        """Returns the history of the same training with Keras alone."""
        inner = cls.new()
        features, ids = inner.preprocessor(fit_case.TEXTS, fit_case.LABELS)
        inputs = {
            name: keras.Input([8], dtype="int32", name=name)
            for name in features
        }
        plain = keras.Model(inputs, inner(inputs)["logits"])
        plain.compile(
            keras.optimizers.AdamW(_RATE),
            fit_case.CROSS_ENTROPY,
            metrics=["accuracy"],
            run_eagerly=True,
        )
        keras.utils.set_random_seed(7)
        return plain.fit(
            features,
            ids,
            batch_size=2,
            verbose=0,
            validation_data=(features, ids),
        ).history

    def test_losses_and_metrics_of_several_outputs(self):
        model = self.new(
            "question_answering",
            fit_case.compiled(),
        )
        features, y = model.preprocessor(fit_case.QUESTIONS, fit_case.ANSWERS)
        scores = fit_case.scores(model, features, y)
        logits = model(features)
        total = 0.0
        for end in ("start", "end"):
            losses = fit_case.softmax_losses(
                logits[f"{end}_logits"], y[f"{end}_positions"]
            )
            total += losses.mean()
            right = np.argmax(logits[f"{end}_logits"], -1)
            self.assertAllClose(
                scores[f"{end}_logits_accuracy"],
                np.mean(right == y[f"{end}_positions"]),
            )
        self.assertAllClose(scores["loss"], total, rtol=1e-5)

    def test_tokens_without_a_label_do_not_count(self):
        model = self.new(
            "tagging",
            fit_case.compiled(),
            labels=["O", "X"],
        )
        tags = [["O", "X", "O", 1], ["O"]]
        features, y = model.preprocessor(fit_case.SENTENCES, tags)
        self.assertEqual(y.tolist()[1], [-1, 0] + [-1] * 6)
        scores = fit_case.scores(model, features, y)
        is_label = y != -1
        self.assertEqual(is_label.sum(), 5)
        logits = model(features)["logits"].numpy()[is_label]
        losses = fit_case.softmax_losses(logits, y[is_label])
        self.assertAllClose(scores["loss"], losses.mean(), rtol=1e-5)
        self.assertAllClose(
            scores["accuracy"], np.mean(logits.argmax(-1) == y[is_label])
        )

    def test_one_hot_labels_are_single_labels(self):
        model = self.new(
            compiled=fit_case.compiled(
                loss=keras.losses.CategoricalCrossentropy(from_logits=True)
            )
        )
        features, ids = model.preprocessor(fit_case.TEXTS, fit_case.LABELS)
        scores = fit_case.scores(model, features, np.eye(2)[ids])
        self.assertAllClose(
            fit_case.scores(model, fit_case.TEXTS, fit_case.LABELS),
            scores,
        )
        losses = fit_case.softmax_losses(model(features)["logits"], ids)
        self.assertAllClose(scores["loss"], losses.mean(), rtol=1e-5)
        self.assertEqual(model.preprocessor.task.problem_type, "single_label")
        # Files of before have no such argument.
        config = model.get_config()
        self.assertFalse(config.pop("return_encoder_outputs"))
        again = type(model).from_config(config)
        self.assertEqual(set(again(features)), {"logits"})

    @parameterized.parameters(
        "sparse_categorical_crossentropy",
        "SparseCategoricalCrossentropy",
        keras.losses.sparse_categorical_crossentropy,
        ({"logits": "sparse_categorical_crossentropy"},),
    )
    def test_named_losses_are_those_of_logits(self, loss):
        model = self.new(
            compiled=fit_case.compiled(
                loss=loss, metrics=["sparse_categorical_crossentropy"]
            )
        )
        features, ids = model.preprocessor(fit_case.TEXTS, fit_case.LABELS)
        scores = fit_case.scores(model, features, fit_case.IDS)
        logits = model(features)["logits"]
        expected = fit_case.softmax_losses(logits, ids).mean()
        self.assertAllClose(
            scores,
            {"loss": expected, "sparse_categorical_crossentropy": expected},
            rtol=1e-5,
        )

    def test_named_losses_of_several_labels(self):
        model = self.new(
            labels=["a", "b", "c"],
            compiled=fit_case.compiled(
                loss="binary_crossentropy",
                metrics=["accuracy", "binary_accuracy"],
            ),
        )
        y = [["a"], [], ["a", "c"], ["b"], []]
        scores = fit_case.scores(model, fit_case.TEXTS, y)
        features, targets = model.preprocessor(fit_case.TEXTS, y)
        logits = model(features)["logits"].numpy()
        losses = np.log1p(np.exp(logits)) - targets * logits
        accuracy = np.mean((logits > 0) == targets)
        self.assertAllClose(
            scores,
            {
                "loss": losses.mean(),
                "accuracy": accuracy,
                "binary_accuracy": accuracy,
            },
            rtol=1e-5,
        )

    def test_losses_of_probabilities_warn(self):
        with self.assertLogs(level="WARNING") as logs:
            self.new(
                compiled={"loss": keras.losses.SparseCategoricalCrossentropy()}
            )
        self.assertIn(
            "SparseCategoricalCrossentropy(from_logits=True)", logs.output[0]
        )

    def test_wrong_names_and_missing_losses(self):
        with self.assertRaisesRegex(UserError, "outputs are logits.*'label'"):
            self.new(compiled={"loss": {"label": fit_case.CROSS_ENTROPY}})
        own = bert_tf.BertForClassification(tiny_model.ONE_LAYER, num_labels=2)
        own.compile("sgd", run_eagerly=True)
        with self.assertRaisesRegex(UserError, "Expected a loss: compile"):
            own.fit({"input_ids": np.array([[2, 3]])}, np.array([0]), verbose=0)


if __name__ == "__main__":
    tf.test.main()

"""Tests of `compile`: losses, metrics, and the masks of masked LMs."""

import contextlib
import functools
import os
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.python.framework import config as tf_config

import bert_tf
from bert_tf.api import default_training
from bert_tf.errors import UserError
from bert_tf.text.vocabulary import Vocabulary
from bert_tf.training import losses
from tests.support import fit_case
from tests.support import logical_devices
from tests.support import tiny_model

logical_devices.make()

_TEXTS = ["the cat sat on the mat", "dogs sat", "the dog", "cat", "a mat ."]
_CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
_RATE = 1e-2


class DrawTest(tf.test.TestCase):
    def _draw(self, ids, seed=0, step=0):
        ids = np.int32(ids)
        features = {"input_ids": ids, "input_mask": np.int32(ids > 0)}
        masked, labels = default_training.draw_masks(
            features, Vocabulary(tiny_model.TOKENS), seed, step
        )
        return masked["input_ids"], masked["masked_lm_positions"], labels

    def test_follows_the_rule_of_the_original(self):
        rng = np.random.default_rng(1)
        rows = np.pad(rng.integers(5, 16, [3000, 39]), [(0, 0), (1, 0)])
        rows[:, 0] = 2
        ids, positions, labels = (x.numpy() for x in self._draw(rows))
        self.assertEqual(labels.shape, (3000, 6))
        self.assertAllEqual(np.take_along_axis(rows, positions, 1), labels)
        chosen = np.take_along_axis(ids, positions, 1)
        is_mask = chosen == tiny_model.TOKENS.index("[MASK]")
        self.assertAllClose(np.mean(is_mask), 0.8 + 0.1 / 16, 0, 0.01)
        self.assertAllClose(np.mean(chosen == labels), 0.1 + 0.1 / 16, 0, 0.01)

    def test_masks_depend_on_the_row_the_seed_and_the_step(self):
        row = [2, *range(5, 16), *range(5, 16), 3]
        short = [2, 8, 3] + [0] * 21
        _, both, labels = self._draw([short, row])
        self.assertEqual(labels[0, 1:].numpy().tolist(), [-1] * 3)
        self.assertEqual(labels[0, 0], 8)
        _, alone, _ = self._draw([row + [0] * 4])
        self.assertAllEqual(alone[0], both[1])
        others = {tuple(both[1].numpy())}
        for seed, step in ((1, 0), (0, 1), (-1, 0), (0, 10**12)):
            others.add(tuple(self._draw([row], seed, step)[1][0].numpy()))
        self.assertLen(others, 5)


class MaskedLMTestCase(fit_case.FitCase, tf.test.TestCase):
    # Without dropout, a change of the loss can only come from new masks.
    config = tiny_model.NO_DROPOUT

    @classmethod
    def new(cls, kind="masked_lm", compiled=None, **options):
        return super().new(kind, compiled, **options)


class FitMaskedLMTest(MaskedLMTestCase):
    @pytest.mark.slow
    def test_texts_train_as_their_features(self):
        tf.config.run_functions_eagerly(True)
        self.addCleanup(tf.config.run_functions_eagerly, False)
        model, other = self.new(), self.new("pretraining")
        features = model.preprocessor(_TEXTS)
        options = {"batch_size": 3, "verbose": 0}
        data = tf.data.Dataset.from_tensor_slices(_TEXTS)
        history = model.fit(_TEXTS, validation_data=data, **options).history
        expected = other.fit(
            features, validation_data=list(_TEXTS), **options
        ).history
        self.assertEqual(
            set(history), {"loss", "accuracy", "val_loss", "val_accuracy"}
        )
        self.assertAllClose(history, expected, rtol=1e-6)
        before = self.new()
        for mine, theirs, old in zip(
            model.weights, other.weights, before.weights, strict=True
        ):
            self.assertAllEqual(mine, theirs)
            if mine.path.endswith(("predictions/output_bias", "query/kernel")):
                self.assertNotAllEqual(mine, old)
            if "seq_relationship" in mine.path:
                self.assertAllEqual(mine, old)
        folder = self.create_tempdir().full_path
        keras_file = os.path.join(folder, "model.keras")
        model.save(keras_file)
        bert_tf.save_model(model, os.path.join(folder, "model"))
        again = bert_tf.load_model(keras_file)
        stored = bert_tf.load_model(os.path.join(folder, "model"))
        scores = model.evaluate(_TEXTS, verbose=0)
        for one in (again, stored):
            self.assertAllClose(one.evaluate(_TEXTS, verbose=0), scores)

    def test_loss_and_accuracy_are_those_of_pretraining(self):
        model = self.new(compiled={"optimizer": "sgd", "metrics": ["accuracy"]})
        results = []
        for seed in (3, 4):
            model.preprocessor.mask_seed = seed
            scores = model.evaluate(_TEXTS, verbose=0, return_dict=True)
            features, labels = model.preprocessor.draw_masks(
                model.preprocessor(_TEXTS), None
            )
            weights = np.float32(labels != -1)
            sums = losses.prediction_sums(
                "masked_lm",
                model(features)["masked_lm_logits"],
                tf.maximum(labels, 0),
                tf.constant(weights),
            )
            objective = losses.PretrainingObjective(use_next_sentence=False)
            expected = objective.normalize(
                sums, tf.constant([weights.sum(), 0])
            )
            self.assertAllClose(scores["loss"], expected["loss"])
            self.assertAllClose(
                scores["accuracy"], expected["masked_lm_accuracy"]
            )
            results.append(scores["loss"])
            # Masks that the caller has drawn must give equal scores.
            mine = fit_case.scores(model, features, labels)
            self.assertAllClose(mine, scores)
        self.assertNotAlmostEqual(*results)
        half = model.evaluate(
            features,
            labels,
            sample_weight=np.full(5, 0.5),
            verbose=0,
            return_dict=True,
        )
        self.assertAllClose(half["loss"], results[1] / 2, rtol=1e-5)

    def test_each_step_has_masks_of_its_own(self):
        model = self.new(compiled={"optimizer": keras.optimizers.SGD(0.0)})
        history = model.fit(_TEXTS, epochs=3, verbose=0).history["loss"]
        self.assertLen(set(history), 3)

    def test_losses_of_the_user_equal_the_default(self):
        expected = self.new(compiled={"optimizer": "sgd"}).evaluate(
            _TEXTS, verbose=0
        )
        options = {"optimizer": "sgd", "loss": _CROSS_ENTROPY}
        alone = self.new(
            "pretraining",
            {**options, "metrics": ["accuracy"]},
            heads=["masked_lm"],
        )
        loss, _ = alone.evaluate(_TEXTS, verbose=0)
        self.assertAllClose(loss, expected, rtol=1e-5)
        named = options | {"loss": {"masked_lm_logits": _CROSS_ENTROPY}}
        loss = self.new(compiled=named).evaluate(_TEXTS, verbose=0)
        self.assertAllClose(loss, expected, rtol=1e-5)
        with self.assertRaisesRegex(UserError, "masked-LM head alone"):
            self.new(compiled=options).fit(_TEXTS, verbose=0)

    @pytest.mark.slow
    def test_two_replicas_train_as_one(self):
        # Equal rows have equal losses, so a replica's mean is the batch's.
        texts = [_TEXTS[0]] * 4
        options = {"metrics": ["accuracy"]}
        results = []
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        for scope in (contextlib.nullcontext(), strategy.scope()):
            with scope:
                model = self.new()
                model.compile(keras.optimizers.SGD(0.1), **options)
            history = model.fit(texts, batch_size=4, epochs=2, verbose=0)
            results.append(history.history)
        self.assertAllClose(*results, rtol=1e-4)

    def test_refuses_labels_weights_and_missing_heads(self):
        for kind, arguments, message in (
            ("masked_lm", {"y": [0] * 5}, "without labels.*'masked_lm'"),
            ("masked_lm", {"sample_weight": [1.0] * 5}, "beside sample_weight"),
            ("masked_lm", {"class_weight": {0: 1.0}}, "head of a task"),
            ("encoder", {}, "head of a task.*'encoder'"),
        ):
            with self.assertRaisesRegex(UserError, message):
                self.new(kind).fit(_TEXTS, **arguments)


class CompileTest(MaskedLMTestCase):
    @mock.patch.object(tf_config, "is_op_determinism_enabled", lambda: False)
    def test_xla_is_off_unless_asked_for(self):
        model = self.new("pretraining")
        # Keras resolves "auto" to True on a machine with a GPU.
        with mock.patch.object(
            model, "_resolve_auto_jit_compile", return_value=True
        ):
            model.compile("sgd", jit_compile="auto")
            self.assertTrue(model.jit_compile)
            model.compile("sgd")
            self.assertFalse(model.jit_compile)
        model.compile("sgd", jit_compile=True)
        self.assertTrue(model.jit_compile)
        stored = model.get_compile_config()
        other = self.new("pretraining")
        other.compile_from_config(stored)
        self.assertTrue(other.jit_compile)


class LossesTest(fit_case.FitCase, tf.test.TestCase, parameterized.TestCase):
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

    def test_losses_of_several_outputs_are_summed(self):
        model = self.new("question_answering", fit_case.compiled())
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
        model = self.new("tagging", fit_case.compiled(), labels=["O", "X"])
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
            fit_case.scores(model, fit_case.TEXTS, fit_case.LABELS), scores
        )
        losses = fit_case.softmax_losses(model(features)["logits"], ids)
        self.assertAllClose(scores["loss"], losses.mean(), rtol=1e-5)
        self.assertEqual(model.preprocessor.task.problem_type, "single_label")
        # Files of earlier versions lack this argument and must still load.
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

    def test_named_losses_of_several_labels_match_numpy(self):
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

    def test_refuses_missing_losses(self):
        own = bert_tf.BertForClassification(tiny_model.ONE_LAYER, num_labels=2)
        own.compile("sgd", run_eagerly=True)
        with self.assertRaisesRegex(UserError, "Expected a loss: compile"):
            own.fit({"input_ids": np.array([[2, 3]])}, np.array([0]), verbose=0)


if __name__ == "__main__":
    tf.test.main()

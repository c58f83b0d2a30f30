"""Tests of `fit` of loaded models, and of its `class_weight`."""

import os
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.api import default_training
from bert_tf.distribute import packed_weights
from bert_tf.errors import UserError
from tests.support import fit_case
from tests.support import tiny_model


class FitTest(fit_case.FitCase, tf.test.TestCase, parameterized.TestCase):
    def _fit(self, *data, callbacks=None, epochs=2, **options):
        model = self.new()
        history = model.fit(
            *data,
            batch_size=2,
            epochs=epochs,
            verbose=0,
            callbacks=callbacks,
            **options,
        )
        return model, history.history

    @pytest.mark.slow
    def test_texts_train_as_their_features(self):
        data = self.new().preprocessor(fit_case.TEXTS, fit_case.LABELS)
        model, history = self._fit(
            fit_case.TEXTS, fit_case.LABELS, validation_data=data
        )
        other, expected = self._fit(
            *data, validation_data=(fit_case.TEXTS, np.array(fit_case.IDS))
        )
        self.assertEqual(history, expected)
        self.assertEqual(
            set(history), {"loss", "accuracy", "val_loss", "val_accuracy"}
        )
        for mine, theirs in zip(model.weights, other.weights, strict=True):
            self.assertAllEqual(mine, theirs)
        schedule = model.optimizer._learning_rate
        self.assertEqual(schedule.num_train_steps, 6)
        # A further call is a run of its own: the rate has not ended at 0.
        model.fit(fit_case.TEXTS, fit_case.LABELS, batch_size=5, verbose=0)
        self.assertEqual(model.optimizer._learning_rate.num_train_steps, 1)

    @pytest.mark.slow
    def test_callbacks(self):
        folder = self.create_tempdir().full_path
        checkpoint = os.path.join(folder, "best.weights.h5")

        class Stop(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == 1:
                    raise KeyboardInterrupt

        def callbacks(*more):
            return [
                keras.callbacks.BackupAndRestore(
                    os.path.join(folder, "backup"), delete_checkpoint=False
                ),
                keras.callbacks.EarlyStopping("val_accuracy", patience=5),
                keras.callbacks.ModelCheckpoint(
                    checkpoint,
                    "val_accuracy",
                    save_best_only=True,
                    save_weights_only=True,
                ),
                keras.callbacks.TensorBoard(os.path.join(folder, "logs")),
                *more,
            ]

        data = {
            "validation_data": (fit_case.TEXTS, fit_case.LABELS),
            "shuffle": False,
        }
        expected, _ = self._fit(fit_case.TEXTS, fit_case.LABELS, shuffle=False)
        with self.assertRaises(KeyboardInterrupt):
            self._fit(
                fit_case.TEXTS,
                fit_case.LABELS,
                callbacks=callbacks(Stop()),
                **data,
            )
        model, history = self._fit(
            fit_case.TEXTS, fit_case.LABELS, callbacks=callbacks(), **data
        )
        self.assertLen(history["val_accuracy"], 1)
        self.assertEqual(int(model.optimizer.iterations), 6)
        for mine, theirs in zip(model.weights, expected.weights, strict=True):
            self.assertAllEqual(mine, theirs)
        self.assertTrue(os.path.exists(checkpoint))
        self.assertIn("logs", os.listdir(folder))

    @pytest.mark.slow
    def test_models_are_compiled_under_their_own_strategy(self):
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
        with strategy.scope():
            model = self.new()
        model.fit(fit_case.TEXTS, fit_case.LABELS, verbose=0)
        self.assertIs(model.distribute_strategy, strategy)
        model = self.new()
        with strategy.scope():
            with self.assertRaisesRegex(UserError, "load it within"):
                model.fit(fit_case.TEXTS, fit_case.LABELS, verbose=0)

    @pytest.mark.slow
    def test_callbacks_that_set_the_learning_rate(self):
        model = self.new()
        callbacks = [
            keras.callbacks.LearningRateScheduler(lambda epoch: 0.25),
            keras.callbacks.ReduceLROnPlateau("loss", 0.5, 1, min_delta=99),
        ]
        history = model.fit(
            fit_case.TEXTS,
            fit_case.LABELS,
            epochs=2,
            verbose=0,
            callbacks=callbacks,
        )
        self.assertAllClose(history.history["learning_rate"], [0.25, 0.25])
        self.assertEqual(float(model.optimizer.learning_rate), 0.125)
        model.fit(fit_case.TEXTS, fit_case.LABELS, verbose=0)
        self.assertEqual(float(model.optimizer.learning_rate), 0.0)

    @parameterized.parameters(True, False)
    def test_packed_weights_are_refused(self, is_eager):
        model = self.new()
        model.compile(run_eagerly=is_eager)
        assumed = {packed_weights.VARIABLE: "1"}
        with mock.patch.dict(os.environ, assumed):
            for train in (
                lambda: model.fit(fit_case.TEXTS, fit_case.LABELS, verbose=0),
                lambda: model.train_on_batch(fit_case.TEXTS, fit_case.LABELS),
                lambda: model.evaluate(fit_case.TEXTS, fit_case.LABELS),
            ):
                with self.assertRaisesRegex(
                    UserError, f"{packed_weights.VARIABLE}=1; unset it"
                ):
                    train()

    def test_no_rows(self):
        model = self.new(compiled={"optimizer": "sgd"})
        with self.assertRaisesRegex(UserError, "at least one row.*: none"):
            model.fit([], [], verbose=0)

    def test_max_seq_length(self):
        preprocessor = self.new(max_seq_length=5).preprocessor
        self.assertEqual(preprocessor.max_seq_length, 5)
        ids = preprocessor(["the cat sat on the mat"])["input_ids"]
        self.assertAllEqual(ids, [[2, 5, 6, 8, 3]])
        with self.assertRaisesRegex(UserError, "from 3 to 12.*: 13"):
            self.new(max_seq_length=13)


class ClassWeightsTest(fit_case.FitCase, tf.test.TestCase):
    config = tiny_model.NO_DROPOUT

    def test_classification(self):
        compiled = {"optimizer": keras.optimizers.SGD(0.0)}
        model = self.new(compiled=compiled, head_dropout_prob=0.0)
        y = np.array(fit_case.IDS)
        loss = model.fit(
            fit_case.TEXTS,
            y,
            class_weight={"good": 3.0},
            verbose=0,
        ).history["loss"]
        losses = fit_case.softmax_losses(
            model(model.preprocessor(fit_case.TEXTS))["logits"], y
        )
        expected = np.mean(losses * np.where(y, 3, 1))
        self.assertAllClose(loss, [expected], rtol=1e-5)

    def test_tagging(self):
        model = self.new("tagging", labels=["O", "X"])
        with self.assertRaisesRegex(UserError, "give sample_weight"):
            model.fit(
                fit_case.SENTENCES,
                [["O", "X", "O", "X"], ["O"]],
                class_weight={"X": 3.0},
            )


class FitArgumentsTest(
    fit_case.FitCase, tf.test.TestCase, parameterized.TestCase
):
    @parameterized.parameters(
        ({"epochs": "2"}, "epochs to be a whole number.*: epochs='2'"),
        ({"epochs": 0}, "epochs to be .* at least 1.*: epochs=0"),
        ({"epochs": None}, "epochs=None"),
        ({"epochs": 1.5}, "epochs=1.5"),
        ({"batch_size": 0}, "batch_size to be a whole number.*: batch_size=0"),
        ({"batch_size": True}, "batch_size=True"),
        ({"steps_per_epoch": -1}, "steps_per_epoch=-1"),
    )
    def test_refused(self, arguments, message):
        with self.assertRaisesRegex(UserError, message):
            default_training.check_counts(**arguments)

    def test_methods_check_them(self):
        model = self.new()
        data = (fit_case.TEXTS, fit_case.LABELS)
        for call in (
            lambda: model.fit(*data, batch_size=0),
            lambda: model.evaluate(*data, batch_size=0),
            lambda: model.predict(data[0], batch_size=0),
        ):
            with self.assertRaisesRegex(UserError, "batch_size=0"):
                call()
        with self.assertRaisesRegex(UserError, "epochs=0"):
            model.fit(*data, epochs=0)


if __name__ == "__main__":
    tf.test.main()

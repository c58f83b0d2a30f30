"""Tests of `fit`, `compile` and `evaluate` of loaded models."""

import os
import tempfile

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.errors import UserError
from tests.support import tiny_model

_TEXTS = ["the cat sat on the mat", "dogs sat", "the dog", "cat", "a mat ."]
_LABELS = ["good", "bad", "bad", "good", "bad"]
_IDS = [1, 0, 0, 1, 0]
_QUESTIONS = (
    ["cat ?", "on"],
    ["the dog sat on the mat .", "東 dogs . The cat, the cat"],
)
_ANSWERS = (["mat", "dogs"], [19, 2])
_SENTENCES = [["the", "cat", "sat", "mats"], ["dogs"]]
_CHOICES = [
    {"context": "the cat", "choices": ["sat", "dog"]},
    {"context": "the", "choices": ["cat", "dog", "mat"]},
]
_CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _softmax_losses(logits, labels):
    logits = np.asarray(logits, np.float64)
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities = exponentials / exponentials.sum(-1, keepdims=True)
    chosen = np.take_along_axis(probabilities, labels[..., None], -1)
    return -np.log(chosen[..., 0])


class FitTestCase(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.path = tiny_model.write(
            tempfile.mkdtemp(), config=tiny_model.ONE_LAYER
        )

    def new(self, kind="classification", compiled=None, **options):
        """Returns the same new model each time; eager unless compiled."""
        keras.utils.set_random_seed(7)
        if kind == "classification" and "num_labels" not in options:
            options.setdefault("labels", ["bad", "good"])
        model = bert_tf.load_model(self.path, kind, **options)
        if compiled is not None:
            model.compile(run_eagerly=True, **compiled)
        return model


class CompileTest(FitTestCase):
    @parameterized.parameters(
        (_CROSS_ENTROPY, ["accuracy"], _IDS),
        (_CROSS_ENTROPY, ["accuracy"], {"logits": _IDS}),
        (_CROSS_ENTROPY, "accuracy", _LABELS),
        ({"logits": _CROSS_ENTROPY}, {"logits": ["accuracy"]}, _IDS),
        ({"logits": _CROSS_ENTROPY}, {"logits": "accuracy"}, {"logits": _IDS}),
    )
    @pytest.mark.slow
    def test_all_forms_train_as_a_functional_model(self, loss, metrics, y):
        rate = {"learning_rate": 1e-2}
        model = self.new(
            compiled={
                "optimizer": keras.optimizers.AdamW(**rate),
                "loss": loss,
                "metrics": metrics,
            }
        )
        features, ids = model.preprocessor(_TEXTS, _LABELS)
        y = {n: np.array(x) for n, x in y.items()} if type(y) is dict else y
        y = np.array(y) if y is _IDS else y
        keras.utils.set_random_seed(7)
        history = model.fit(
            features,
            y,
            batch_size=2,
            verbose=0,
            validation_data=(features, ids),
        )
        inner = self.new()
        inputs = {
            name: keras.Input([8], dtype="int32", name=name)
            for name in features
        }
        plain = keras.Model(inputs, inner(inputs)["logits"])
        plain.compile(
            keras.optimizers.AdamW(**rate),
            _CROSS_ENTROPY,
            metrics=["accuracy"],
            run_eagerly=True,
        )
        keras.utils.set_random_seed(7)
        expected = plain.fit(
            features,
            ids,
            batch_size=2,
            verbose=0,
            validation_data=(features, ids),
        )
        self.assertEqual(
            set(history.history),
            {"loss", "accuracy", "val_loss", "val_accuracy"},
        )
        self.assertAllClose(history.history, expected.history, atol=1e-6)

    def test_losses_and_metrics_of_several_outputs(self):
        model = self.new(
            "question_answering",
            {
                "optimizer": "sgd",
                "loss": _CROSS_ENTROPY,
                "metrics": ["accuracy"],
            },
        )
        features, y = model.preprocessor(_QUESTIONS, _ANSWERS)
        scores = model.evaluate(features, y, verbose=0, return_dict=True)
        logits = model(features)
        total = 0.0
        for end in ("start", "end"):
            losses = _softmax_losses(
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
            {
                "optimizer": "sgd",
                "loss": _CROSS_ENTROPY,
                "metrics": ["accuracy"],
            },
            labels=["O", "X"],
        )
        tags = [["O", "X", "O", 1], ["O"]]
        features, y = model.preprocessor(_SENTENCES, tags)
        self.assertEqual(y.tolist()[1], [-1, 0] + [-1] * 6)
        scores = model.evaluate(features, y, verbose=0, return_dict=True)
        is_label = y != -1
        self.assertEqual(is_label.sum(), 5)
        logits = model(features)["logits"].numpy()[is_label]
        losses = _softmax_losses(logits, y[is_label])
        self.assertAllClose(scores["loss"], losses.mean(), rtol=1e-5)
        self.assertAllClose(
            scores["accuracy"], np.mean(logits.argmax(-1) == y[is_label])
        )

    def test_one_hot_labels_are_single_labels(self):
        model = self.new(
            compiled={
                "optimizer": "sgd",
                "loss": keras.losses.CategoricalCrossentropy(from_logits=True),
                "metrics": ["accuracy"],
            }
        )
        features, ids = model.preprocessor(_TEXTS, _LABELS)
        scores = model.evaluate(
            features, np.eye(2)[ids], verbose=0, return_dict=True
        )
        losses = _softmax_losses(model(features)["logits"], ids)
        self.assertAllClose(scores["loss"], losses.mean(), rtol=1e-5)
        self.assertEqual(model.preprocessor.task.problem_type, "single_label")
        # Files of before have no such argument.
        config = model.get_config()
        self.assertFalse(config.pop("return_encoder_outputs"))
        again = type(model).from_config(config)
        self.assertEqual(set(again(features)), {"logits"})

    def test_wrong_names_and_missing_losses(self):
        with self.assertRaisesRegex(UserError, "outputs are logits.*'label'"):
            self.new(compiled={"loss": {"label": _CROSS_ENTROPY}})
        own = bert_tf.BertForClassification(tiny_model.ONE_LAYER, num_labels=2)
        own.compile("sgd", run_eagerly=True)
        with self.assertRaisesRegex(UserError, "Expected a loss: compile"):
            own.fit({"input_ids": np.array([[2, 3]])}, np.array([0]), verbose=0)

    def test_outputs_on_features(self):
        ids = {"input_ids": np.array([[2, 5, 3]])}
        for kind, names in (
            ("classification", {"logits"}),
            ("question_answering", {"start_logits", "end_logits"}),
            ("pretraining", {"masked_lm_logits", "next_sentence_logits"}),
        ):
            self.assertEqual(set(self.new(kind)(ids)), names)
            more = self.new(kind, return_encoder_outputs=True)(ids)
            self.assertEqual(
                set(more), names | {"sequence_output", "pooled_output"}
            )


class LabelsTest(FitTestCase):
    @parameterized.parameters(
        (_TEXTS, _LABELS),
        (np.array(_TEXTS), np.array(_IDS)),
        (pd.Series(_TEXTS), pd.Series(_LABELS, dtype="category")),
        (pd.DataFrame({"x": _TEXTS}), np.float32(_IDS)),
        (tf.constant(_TEXTS), tf.constant(_LABELS)),
    )
    def test_single_labels(self, x, y):
        features, labels = self.new().preprocessor(x, y)
        self.assertAllEqual(labels, np.int32(_IDS))
        self.assertEqual(features["input_ids"].shape, (5, 8))
        self.assertAllEqual(features["input_mask"].sum(-1), [8, 5, 4, 3, 5])
        self.assertAllEqual(features["input_ids"][2], [2, 5, 7, 3, 0, 0, 0, 0])

    def test_pairs(self):
        pairs = [("the cat", "dogs"), ("mat", "the dog sat on")]
        first, second = map(list, zip(*pairs, strict=True))
        preprocess = self.new().preprocessor
        expected = preprocess(pairs)
        self.assertAllEqual(expected["segment_ids"].sum(-1), [3, 5])
        for x in ((first, second), pd.DataFrame({"a": first, "b": second})):
            for name, value in preprocess(x).items():
                self.assertAllEqual(value, expected[name])

    @parameterized.parameters(
        ([["a"], [], ["c", "a"]],),
        (np.array([[1, 0, 0], [0, 0, 0], [1, 0, 1]]),),
        ([{0}, set(), {"a", 2}],),
    )
    def test_several_labels(self, y):
        model = self.new(labels=["a", "b", "c"])
        _, labels = model.preprocessor(_TEXTS[:3], y)
        self.assertAllEqual(labels, [[1, 0, 0], [0, 0, 0], [1, 0, 1]])
        self.assertEqual(
            model.preprocessor.task_values["problem_type"], "multi_label"
        )
        scores = model.evaluate(_TEXTS[:3], y, verbose=0, return_dict=True)
        logits = model(model.preprocessor(_TEXTS[:3]))["logits"].numpy()
        terms = np.logaddexp(0, logits) - labels * logits
        self.assertAllClose(scores["loss"], terms.mean(), rtol=1e-5)
        self.assertAllClose(scores["accuracy"], np.mean((logits > 0) == labels))
        self.assertIn("labels", model.predict(["cat"], verbose=0)[0])

    def test_scores(self):
        model = self.new(num_labels=1)
        y = [0.5, 1, 2.0, 3, -1]
        scores = model.evaluate(_TEXTS, y, verbose=0, return_dict=True)
        values = model(model.preprocessor(_TEXTS))["logits"].numpy()[:, 0]
        self.assertAllClose(scores["loss"], np.mean((values - y) ** 2))
        self.assertAllClose(
            scores["mean_absolute_error"], np.mean(np.abs(values - y))
        )

    def test_weights_of_rows_and_classes(self):
        model = self.new()
        logits = model(model.preprocessor(_TEXTS))["logits"]
        losses = _softmax_losses(logits, np.array(_IDS))
        weights = np.float32([1, 2, 0, 4, 0.5])
        loss = model.evaluate(
            _TEXTS, _LABELS, sample_weight=weights, verbose=0, return_dict=True
        )["loss"]
        # As Keras, which divides by the number of rows.
        self.assertAllClose(loss, np.mean(losses * weights), rtol=1e-5)
        self.assertEqual(
            model.preprocessor.class_weight({"good": 2.0, 0: 1.0}),
            ({1: 2.0, 0: 1.0}, None),
        )
        with self.assertRaisesRegex(UserError, "are bad, good.*'best'"):
            model.fit(_TEXTS, _LABELS, class_weight={"best": 1.0})

    def test_answers_in_windows(self):
        model = self.new("question_answering")
        features, y, weights = model.preprocessor(
            _QUESTIONS, _ANSWERS, [2.0, 3.0]
        )
        ids = features["input_ids"]
        first = [one for one in range(len(ids)) if y["start_positions"][one]]
        found = [
            ids[one, y["start_positions"][one] : y["end_positions"][one] + 1]
            for one in first
        ]
        tokenizer = model.preprocessor.tokenizer
        self.assertAllEqual(found[0], tokenizer.tokenize(["mat"]).to_list()[0])
        self.assertAllEqual(found[1], tokenizer.tokenize(["dogs"]).to_list()[0])
        self.assertGreater(len(ids), 2)
        self.assertEqual(weights.tolist(), [2.0] + [3.0] * (len(ids) - 1))
        _, none = model.preprocessor(_QUESTIONS, [("", 0), ("dogs", 2)])
        self.assertEqual(none["start_positions"][0], 0)

    def test_choices(self):
        model = self.new("multiple_choice")
        features, y = model.preprocessor(_CHOICES, [1, 2])
        self.assertEqual(features["input_ids"].shape, (2, 3, 8))
        self.assertAllEqual(y, [1, 2])
        loss = model.evaluate(_CHOICES, [1, 2], verbose=0, return_dict=True)
        logits = model(features)["logits"].numpy()
        logits[0, 2] = -1e9
        losses = _softmax_losses(logits, y)
        self.assertAllClose(loss["loss"], losses.mean(), rtol=1e-5)

    @parameterized.parameters(
        ("classification", ["cat", "dog"], ["bad", "fine"], "Row 1.*'fine'"),
        ("classification", ["cat", "dog"], [0, 2], "Row 1.*from 0 to 1.*2"),
        ("classification", ["cat", "dog"], [0], "each of 2 rows.*: 1"),
        ("classification", ["cat", None], [0, 1], "Row 1.*None"),
        ("tagging", [["cat"], ["a", "dog"]], [["O"], ["O"]], "Row 1.*2 tags"),
        ("question_answering", _QUESTIONS, (["mat", "東"], [19, 5]), "Row 1"),
        ("question_answering", _QUESTIONS, ["mat", "dogs"], "Row 0.*'mat'"),
        ("multiple_choice", _CHOICES, [0, 3], "Row 1.*from 0 to 2"),
    )
    def test_wrong_labels(self, kind, x, y, message):
        options = {"labels": ["O", "X"]} if kind == "tagging" else {}
        with self.assertRaisesRegex(UserError, message):
            self.new(kind, **options).fit(x, y)


class FitTest(FitTestCase):
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
        data = self.new().preprocessor(_TEXTS, _LABELS)
        model, history = self._fit(_TEXTS, _LABELS, validation_data=data)
        other, expected = self._fit(
            *data, validation_data=(_TEXTS, np.array(_IDS))
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
        model.fit(_TEXTS, _LABELS, batch_size=5, verbose=0)
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

        data = {"validation_data": (_TEXTS, _LABELS), "shuffle": False}
        expected, _ = self._fit(_TEXTS, _LABELS, shuffle=False)
        with self.assertRaises(KeyboardInterrupt):
            self._fit(_TEXTS, _LABELS, callbacks=callbacks(Stop()), **data)
        model, history = self._fit(
            _TEXTS, _LABELS, callbacks=callbacks(), **data
        )
        self.assertLen(history["val_accuracy"], 1)
        self.assertEqual(int(model.optimizer.iterations), 6)
        # Keras does not restore the seeds of dropout.
        for mine, theirs in zip(model.weights, expected.weights, strict=True):
            if mine.dtype == "float32":
                self.assertAllClose(mine, theirs, atol=1e-3)
        self.assertTrue(os.path.exists(checkpoint))
        self.assertIn("logs", os.listdir(folder))

    @pytest.mark.slow
    def test_data_sets_of_strings(self):
        model = self.new(compiled={"optimizer": "sgd", "metrics": "accuracy"})
        data = tf.data.Dataset.from_tensor_slices((_TEXTS, _LABELS))
        expected = model.evaluate(_TEXTS, _LABELS, verbose=0, return_dict=True)
        indexed = tf.data.Dataset.from_tensor_slices((_TEXTS, _IDS)).batch(5)
        for one in (data, indexed):
            scores = model.evaluate(one, verbose=0, return_dict=True)
            self.assertAllClose(scores, expected, rtol=1e-5)
        features = model.preprocessor(_TEXTS)
        for one in (data, data.map(lambda x, y: x).batch(3)):
            self.assertAllClose(
                model.predict(one, verbose=0)["logits"],
                model(features)["logits"],
                atol=1e-5,
            )
        pairs = tf.data.Dataset.from_tensor_slices(((_TEXTS, _TEXTS), _LABELS))
        (x, _), *_ = model.preprocessor.training_data(pairs)[0]
        self.assertEqual(x["input_ids"].shape, (5, 12))
        self.assertAllGreater(tf.reduce_sum(x["segment_ids"], -1), 0)
        wrong = tf.data.Dataset.from_tensor_slices((_TEXTS, ["x"] * 5))
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "labels among bad, good"
        ):
            model.evaluate(wrong, verbose=0)

    def test_keras_files_restore_the_compiled_state(self):
        path = os.path.join(self.create_tempdir().full_path, "model.keras")
        model = self.new(
            compiled={
                "optimizer": keras.optimizers.SGD(0.5),
                "loss": {"logits": _CROSS_ENTROPY},
                "metrics": ["accuracy"],
            }
        )
        features, y = model.preprocessor(_TEXTS, _LABELS)
        model.fit(features, y, verbose=0)
        model.save(path)
        loaded = keras.models.load_model(path)
        self.assertEqual(float(loaded.optimizer.learning_rate), 0.5)
        self.assertAllClose(
            loaded.evaluate(features, y, verbose=0, return_dict=True),
            model.evaluate(features, y, verbose=0, return_dict=True),
        )

    def test_max_seq_length(self):
        preprocessor = self.new(max_seq_length=5).preprocessor
        self.assertEqual(preprocessor.max_seq_length, 5)
        ids = preprocessor(["the cat sat on the mat"])["input_ids"]
        self.assertAllEqual(ids, [[2, 5, 6, 8, 3]])
        with self.assertRaisesRegex(UserError, "from 3 to 12.*: 13"):
            self.new(max_seq_length=13)


if __name__ == "__main__":
    tf.test.main()

"""Tests of `fit`, with and without labels."""

import dataclasses
import functools
import inspect
import os
import tempfile
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from scipy import special
from tensorflow.python.framework import config as tf_config

import bert_tf
from bert_tf.api import default_training
from bert_tf.distribute import packed_weights
from bert_tf.errors import UserError
from bert_tf.finetuning import contrastive
from bert_tf.modeling import encoder
from bert_tf.modeling import layouts
from bert_tf.tasks import dev_split
from bert_tf.tasks.task_files import SplitKey
from bert_tf.text.vocabulary import Vocabulary
from tests.support import fit_case
from tests.support import tiny_model


class PairsTest(fit_case.FitCase, tf.test.TestCase, parameterized.TestCase):
    """Training of embeddings on pairs, and few-shot training of classifiers."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.path = tiny_model.write_initialized(tempfile.mkdtemp(), 4)

    @pytest.mark.slow
    @parameterized.parameters(
        ([("the cat", "dog"), ("on mat", "東"), ("the cat", "mat")], None),
        ({"anchor": ["the cat", "mat"], "positive": ["dog", "東"]}, None),
        ((["the cat", "mat"], ["dog", "東"]), [0.25, -0.5]),
        ([("the cat", "dog", "."), ("on mat", "東", "sat")], None),
    )
    def test_embeddings_learn_pairs(self, x, y):
        model = self.new("embeddings")
        model.compile(keras.optimizers.Adam(0.003))
        before = model.evaluate(x, y, verbose=0)
        model.fit(x, y, epochs=10, verbose=0)
        self.assertLess(model.evaluate(x, y, verbose=0), before)

    def test_pairs_are_trained_with_bias_correction(self):
        model = self.new("embeddings")
        model.fit([("the cat", "dog"), ("on mat", "東")], verbose=0)
        self.assertTrue(model.optimizer.rule.bias_correction)

    @parameterized.parameters(
        (["cat"], None, "Row 0 of the list: A row must have anchor, positive"),
        ([("cat", " ")], None, "Row 0 of the list: The row has an empty text"),
        ([("cat", "dog")], [3.0], "must have a score from -1 to 1"),
        (
            [("cat", "dog"), ("a", "b", "c")],
            None,
            "as many texts in each. Received: rows of 2 and 3",
        ),
        ([("cat", "dog")], None, "The rows must have .* different positives"),
        ([("a", "b"), ("a", "c")], None, "two different anchors"),
    )
    def test_embeddings_refuse_other_rows(self, x, y, message):
        with self.assertRaisesRegex(UserError, message):
            self.new("embeddings").fit(x, y, verbose=0)

    @pytest.mark.slow
    def test_few_labels_make_an_ordinary_classifier(self):
        model = self.new(labels=["1", "0"])  # The names are other labels' ids.
        texts = ["the cat", "cats sat", "a dog", "dogs on mats"]
        names = ["0", "0", "1", "1"]
        before = model.bert.pooler.dense.kernel.numpy()
        model.predict(texts, verbose=0)  # Caches a copy that reads the pooler.
        # Both values fit the old head only, so training must replace them.
        model.preprocessor.change_task(reject_below=0.9999, temperature=99.0)
        history = model.fit(texts, names, few_shot=True, epochs=3, verbose=0)
        self.assertLen(history.history["loss"], 3)
        predicted = model.predict(texts, verbose=0)
        self.assertEqual([x["label"] for x in predicted], names)
        self.assertAllEqual(model.bert.pooler.dense.kernel, before)
        self.assertLess(model.preprocessor.task_values["temperature"], 99)
        folder = self.create_tempdir().full_path
        bert_tf.save_model(model, f"{folder}/model")
        model.save(f"{folder}/model.keras")
        for name in ("model", "model.keras"):
            loaded = bert_tf.load_model(f"{folder}/{name}")
            self.assertEqual(loaded.pooling, "mean")
            for one, other in zip(
                loaded.predict(texts, verbose=0), predicted, strict=True
            ):
                self.assertAllClose(one["probability"], other["probability"])

    @pytest.mark.slow
    def test_few_labels_end_halfway_between_start_and_end_of_training(self):
        texts = ["the cat", "cats sat", "a dog", "dogs on mats"]
        names = ["good", "good", "bad", "bad"]

        def fit():
            keras.utils.set_random_seed(3)
            model = self.new()
            before = [x.numpy() for x in model.bert.variables]
            model.fit(texts, names, few_shot=True, epochs=3, verbose=0)
            return before, [x.numpy() for x in model.bert.variables]

        before, halfway = fit()
        with mock.patch.object(contrastive, "average"):
            _, trained = fit()
        moved = 0.0
        for start, half, end in zip(before, halfway, trained, strict=True):
            if start.dtype == np.float32:  # Dropout's state is integer.
                self.assertAllClose(half, (start + end) / 2, atol=1e-6)
                moved = max(moved, np.abs(end - start).max())
        self.assertGreater(moved, 1e-5)

    @parameterized.parameters(
        (["cat", "dog"], ["good", "bad"], {}, "fewer of 'bad', 'good'"),
        (
            ["cat", "dog", "cat"],
            ["good", "bad", "bad"],
            {},
            "the list: row 0 and row 2 are the same text, with the labels ",
        ),
        (
            ["cat"],
            ["good"],
            {"class_weight": {0: 2.0}, "validation_split": 0.5},
            "Received: validation_split, class_weight, for",
        ),
        (["cat"], None, {}, "Expected labels: "),
        (["cat"], ["bad"], {}, "Received: another model, for", "tagging"),
    )
    def test_few_labels_are_checked(
        self, x, y, options, message, kind="classification"
    ):
        model = self.new(kind, labels=["bad", "good"])
        with self.assertRaisesRegex(UserError, message):
            model.fit(x, y, few_shot=True, verbose=0, **options)


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
        # A second call makes a new schedule, or its rate would stay at 0.
        model.fit(fit_case.TEXTS, fit_case.LABELS, batch_size=5, verbose=0)
        self.assertEqual(model.optimizer._learning_rate.num_train_steps, 1)

    @parameterized.parameters("names", "dataset", "one_hot")
    @pytest.mark.slow
    def test_calibrate_fits_temperature_to_validation_data(self, form):
        texts = ["cat", "dog", "the cat sat", "mats", "a dog on", "on the mat"]
        ids = np.array([1, 0, 0, 1, 0, 1])
        data = (texts, ["good" if x else "bad" for x in ids])
        model = self.new()
        if form == "dataset":
            data = tf.data.Dataset.from_tensor_slices(data).batch(4)
        if form == "one_hot":
            data = (texts, np.eye(2)[ids])
            model.compile("sgd", "categorical_crossentropy")
        labels = np.eye(2)[fit_case.IDS] if form == "one_hot" else fit_case.IDS
        model.fit(
            fit_case.TEXTS,
            labels,
            validation_data=data,
            calibrate=True,
            verbose=0,
        )
        temperature = model.preprocessor.task.temperature
        logits = np.float64(model(model.preprocessor(texts))["logits"])
        grid = np.geomspace(0.05, 20, 8001)
        losses = [
            -special.log_softmax(logits / x, -1)[range(6), ids].mean()
            for x in grid
        ]
        best = grid[np.argmin(losses)]
        expected = best if 0.06 < best < 19 else 1.0
        self.assertAllClose(temperature, expected, rtol=1e-2)
        values = special.softmax(logits / temperature, -1)
        rows = model.predict(texts, verbose=0)
        self.assertAllClose(
            [[*row["probabilities"].values()] for row in rows],
            values,
            atol=1e-5,
        )
        folder = self.create_tempdir().full_path + "/saved"
        bert_tf.save_model(model, folder)
        stored = bert_tf.load_model(folder).preprocessor.task
        self.assertEqual(stored.temperature, temperature)

    def test_calibrate_needs_other_texts_and_labels(self):
        for kind, options, problem in (
            ("classification", {}, "single_label.*=None"),
            ("classification", {"num_labels": 1, "labels": None}, "regression"),
            ("tagging", {"labels": ["A", "B"]}, "tagging"),
        ):
            model = self.new(kind, **options)
            rows = (fit_case.TEXTS, fit_case.IDS)
            data = None if kind == "classification" and not options else rows
            with self.assertRaisesRegex(UserError, f"a model for {problem}"):
                default_training.check_calibrate(model.preprocessor, data)
        endless = tf.data.Dataset.from_tensors((["cat"], [0])).repeat()
        with self.assertRaisesRegex(UserError, "Dataset that ends"):
            default_training.check_calibrate(self.new().preprocessor, endless)

    @pytest.mark.slow
    def test_validation_split_is_that_of_dev_fraction(self):
        texts = [f"the cat {i}" for i in range(20)]
        labels = [("bad", "good")[i % 2] for i in range(20)]
        pairs = zip(texts, labels, strict=True)
        keys = [SplitKey((x, None), (y,)) for x, y in pairs]
        is_dev = dev_split.choose(keys, 0.2)
        self.assertEqual(sum(is_dev), 4)

        def part(held_out):
            chosen = [i for i in range(20) if is_dev[i] == held_out]
            return [texts[i] for i in chosen], [labels[i] for i in chosen]

        _, history = self._fit(texts, labels, validation_split=0.2)
        _, expected = self._fit(*part(False), validation_data=part(True))
        self.assertEqual(history, expected)
        # Order, arrays, weights and one-hot labels must not change the split.
        model = self.new(
            compiled={
                "loss": keras.losses.CategoricalCrossentropy(from_logits=True)
            }
        )
        one_hot = np.eye(2)[[i % 2 for i in range(20)]]
        weights = np.arange(20.0)
        model._split_table(texts, labels, {})  # Records the loss.
        *data, dev = model.preprocessor.split(
            np.array(texts)[::-1], one_hot[::-1], weights[::-1], 0.2
        )
        self.assertEqual(sorted(dev[0]), sorted(part(True)[0]))
        self.assertEqual([*np.argmax(dev[1], 1)], [int(w) % 2 for w in dev[2]])
        self.assertLen(data[2], 16)
        with self.assertRaisesRegex(UserError, "validation_split needs two"):
            model.fit(["a", "b"], ["bad", "good"], validation_split=0.5)
        # Packed inputs stay whole here, so that Keras takes the last rows.
        features = model.preprocessor(texts, labels)
        self.assertIsNone(model.preprocessor.split(*features, None, 0.2)[3])

    @pytest.mark.slow
    @parameterized.parameters(
        {}, {"loss": fit_case.CROSS_ENTROPY, "metrics": ["accuracy"]}
    )
    def test_a_step_is_traced_once(self, **options):
        model = self.new()
        if options:
            model.compile("adam", **options)
        original, traces = type(model).train_step, []

        def train_step(self, data):
            traces.append(data)
            return original(self, data)

        with mock.patch.object(type(model), "train_step", train_step):
            model.fit(fit_case.TEXTS, fit_case.LABELS, epochs=2, verbose=0)
        self.assertLen(traces, 1)

    @pytest.mark.slow
    @parameterized.parameters(4, 5)  # Whole batches, and a smaller last one.
    def test_layers_are_traced_once(self, num_rows):
        path = tiny_model.write(tempfile.mkdtemp())  # Two layers.
        model = bert_tf.load_model(
            path, "classification", labels=["bad", "good"]
        )
        texts, labels = fit_case.TEXTS[:num_rows], fit_case.LABELS[:num_rows]
        original = encoder.EncoderLayer.call
        with mock.patch.object(
            encoder.EncoderLayer, "call", autospec=True, side_effect=original
        ) as call:
            model.fit(texts, labels, batch_size=2, verbose=0)
        call.assert_called_once()
        self.assertFalse(model.bert.encoder.shares_graph)

    @pytest.mark.slow
    def test_callbacks_resume_to_the_same_weights(self):
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
    def test_callbacks_may_set_the_learning_rate(self):
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

    def test_texts_are_cut_to_max_seq_length(self):
        preprocessor = self.new(max_seq_length=5).preprocessor
        self.assertEqual(preprocessor.max_seq_length, 5)
        ids = preprocessor(["the cat sat on the mat"])["input_ids"]
        self.assertAllEqual(ids, [[2, 5, 6, 8, 3]])
        with self.assertRaisesRegex(UserError, "from 3 to 12.*: 13"):
            self.new(max_seq_length=13)


class ClassWeightsTest(fit_case.FitCase, tf.test.TestCase):
    config = tiny_model.NO_DROPOUT

    def test_class_weight_multiplies_losses_of_its_label(self):
        compiled = {"optimizer": keras.optimizers.SGD(0.0)}
        model = self.new(compiled=compiled, head_dropout_prob=0.0)
        y = np.array(fit_case.IDS)
        loss = model.fit(
            fit_case.TEXTS, y, class_weight={"good": 3.0}, verbose=0
        ).history["loss"]
        losses = fit_case.softmax_losses(
            model(model.preprocessor(fit_case.TEXTS))["logits"], y
        )
        expected = np.mean(losses * np.where(y, 3, 1))
        self.assertAllClose(loss, [expected], rtol=1e-5)


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
    def test_counts_not_whole_or_below_1_are_refused(self, arguments, message):
        with self.assertRaisesRegex(UserError, message):
            default_training.check_counts(**arguments)


class PaddingTest(fit_case.FitCase, tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("classification", fit_case.TEXTS, fit_case.LABELS, True),
        ("tagging", fit_case.SENTENCES, [["A", "B", "A", "B"], ["A"]], True),
        ("multiple_choice", fit_case.CHOICES, [1, 0], True),
        ("embeddings", [("the cat", "dog"), ("on mat", "東")], None, True),
        ("masked_lm", fit_case.TEXTS, None, True),
        # The accuracy of an answer compares the logits of padding, too.
        ("question_answering", fit_case.QUESTIONS, fit_case.ANSWERS, False),
    )
    def test_losses_do_not_depend_on_padding(self, kind, x, y, unpads):
        losses = []
        for short in (0, 99):
            options = {"labels": ["A", "B"]} if kind == "tagging" else {}
            model = self.new(kind, **options)
            with (
                mock.patch.object(default_training, "_SHORT", short),
                mock.patch.object(
                    layouts,
                    "find_tokens_of_parts",
                    wraps=layouts.find_tokens_of_parts,
                ) as found,
            ):
                history = model.fit(x, y, epochs=2, verbose=0).history
            losses.append(history["loss"])
            self.assertEqual(found.called, unpads and not short)
        self.assertAllClose(*losses, rtol=1e-5)

    def test_any_position_may_be_padding(self):
        model = self.new(compiled=fit_case.compiled())
        mask = np.int32(
            [[0, 0, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0]]
        )
        x = {"input_ids": np.int32([[2, 5, 6, 3]] * 4), "input_mask": mask}
        results = []
        for short in (0, 99):
            with mock.patch.object(default_training, "_SHORT", short):
                results.append(
                    fit_case.scores(model, x, np.array([0, 1, 1, 0]))
                )
        self.assertAllClose(*results, rtol=1e-5)

    # Other tests leave TensorFlow deterministic, and then Keras turns XLA off.
    @mock.patch.object(tf_config, "is_op_determinism_enabled", lambda: False)
    def test_xla_computes_padding(self):
        model = self.new()
        model.compile("sgd", jit_compile=True)
        with mock.patch.object(default_training, "skip_padding") as skip:
            model.evaluate(fit_case.TEXTS, fit_case.LABELS, verbose=0)
        skip.assert_not_called()

    def test_padding_is_computed_for_tasks_that_read_it(self):
        preprocessor = self.new("question_answering").preprocessor
        self.assertTrue(preprocessor.unpads)
        preprocessor.task = dataclasses.replace(
            preprocessor.task, mask_padding=False
        )
        self.assertFalse(preprocessor.unpads)


class BooleanArgumentsTest(fit_case.FitCase, tf.test.TestCase):
    """Python would count any text, also "no", as True."""

    # Arguments whose type the signature does not show.
    _OTHERS = {
        "fit": ["calibrate"],
        "evaluate": ["return_dict"],
        "load_model": ["normalize", "remat", "return_encoder_outputs"],
    }

    def _calls(self):
        """Yields public functions with arguments that they accept."""
        model = self.new("classification")
        features = {"input_ids": np.array([[2, 5, 3]])}
        yield bert_tf.load_model, (self.path, "embeddings")
        yield bert_tf.load_tokenizer, (self.path,)
        yield bert_tf.save_model, (model, f"{self.create_tempdir()}/model")
        yield model.compile, ()
        yield model.fit, (["cat"], ["bad"])
        yield model.evaluate, (["cat"], ["bad"])
        yield model.train_on_batch, (features, np.array([0]))
        yield model.test_on_batch, (features, np.array([0]))
        yield bert_tf.BertTokenizer, (Vocabulary(tiny_model.TOKENS),)
        yield type(bert_tf.build_optimizer()), ()
        for cls in (
            bert_tf.BertModel,
            bert_tf.BertForPretraining,
            functools.partial(bert_tf.BertForClassification, num_labels=2),
            bert_tf.BertForEmbeddings,
        ):
            yield cls, (self.config,)

    def test_texts_are_refused(self):
        count = 0
        for function, arguments in self._calls():
            made = getattr(function, "func", function)
            made = made.__init__ if isinstance(made, type) else made
            names = [
                x.name
                for x in inspect.signature(made).parameters.values()
                if isinstance(x.default, bool) or "bool" in str(x.annotation)
            ]
            for name in names + self._OTHERS.get(made.__name__, []):
                message = f"{name} to be True or False. Received: {name}='no'"
                with self.assertRaisesRegex(UserError, message):
                    function(*arguments, **{name: "no"})
                count += 1
        self.assertGreater(count, 25)


class PoolerAdviceTest(fit_case.FitCase, tf.test.TestCase):
    """Classifiers on models for embeddings, which train no pooler."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.path = tiny_model.write_initialized(
            tempfile.mkdtemp(), pooling="mean"
        )

    def test_fit_advises_a_new_pooler_once(self):
        model = self.new(compiled=fit_case.compiled())
        with self.assertLogs("absl", "WARNING") as logs:
            model.fit(["cat"], np.array([1]), verbose=0)
        self.assertLen(logs.output, 1)
        self.assertIn('new_parts=["pooler"]) makes a new', logs.output[0])
        with self.assertNoLogs("absl", "WARNING"):
            model.fit(["cat"], np.array([1]), verbose=0)

    def test_other_heads_and_new_poolers_get_no_advice(self):
        for kind, options in (
            ("classification", {"new_parts": ["pooler"]}),
            ("classification", {"head": "bilstm"}),
            ("classification", {"pooling": "mean"}),
            ("tagging", {"labels": ["O", "B-x"]}),
            ("question_answering", {}),
            ("embeddings", {}),
        ):
            advice = self.new(kind, **options).preprocessor.advice
            self.assertEqual(advice, "", options)
        self.assertIn("pooler", self.new("multiple_choice").preprocessor.advice)


if __name__ == "__main__":
    tf.test.main()

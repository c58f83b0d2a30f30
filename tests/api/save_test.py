"""Tests of saving and exporting Keras models, and of `.keras` files."""

import contextlib
import json
import os
import pathlib
import shutil
import zipfile
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.checkpoints import formats
from bert_tf.checkpoints import keras_model
from bert_tf.errors import UserError
from bert_tf.export import savedmodel
from bert_tf.export.tflite import run as tflite_export
from bert_tf.io import stored_files
from bert_tf.modeling import bert as bert_model
from tests.support import files_case
from tests.support import made_once
from tests.support import scripts
from tests.support import tiny_exports
from tests.support import tiny_model

_TEXTS = list(tiny_exports.TEXTS[:3])
_LOAD = """
import json, sys
import bert_tf.keras_objects
import keras

model = keras.models.load_model(sys.argv[1])
print(json.dumps(model.predict(json.loads(sys.argv[2]), verbose=0)))
"""


def _train(model):
    """Changes every weight by a different factor."""
    for number, weight in enumerate(model.trainable_variables):
        weight.assign(weight * (1.05 + number / 100))


def _values(model):
    named = bert_model.named_variables(model)
    return {name: x.numpy() for name, x in named.items()}


class _SaveTestCase(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        self.output = os.path.join(self.folder, "new", "saved")

    def _load(self, source=None, *args, **kwargs):
        source = source or tiny_exports.classification()
        path = tiny_exports.write(self.folder, source)
        return bert_tf.load_model(path, *args, **kwargs)

    def _assert_equal(self, weights, expected):
        self.assertAllClose(weights, expected, rtol=0, atol=0)


class SaveModelTest(_SaveTestCase):
    def _assert_same(self, loaded, model):
        self.assertIs(type(loaded), type(model))
        self._assert_equal(_values(loaded), _values(model))

    @parameterized.parameters(
        (tiny_exports.classification(pair=True),),
        (tiny_exports.classification("regression"),),
        (tiny_exports.classification("multi_label"),),
        (tiny_exports.squad(),),
        (tiny_exports.tagging(),),
        (tiny_exports.multiple_choice(),),
        ("pretraining",),
        ("encoder",),
    )
    def test_every_kind_comes_back(self, source):
        model = self._load(source)
        _train(model)
        bert_tf.save_model(model, self.output)
        loaded = bert_tf.load_model(self.output)
        self._assert_same(loaded, model)
        before = formats.read(os.path.join(self.folder, "model"))
        after = formats.read(self.output)
        self.assertEqual(after.config, before.config)
        self.assertEqual(after.vocabulary.tokens, before.vocabulary.tokens)
        self.assertEqual(after.tokenizer_settings, before.tokenizer_settings)
        kept = {k: v for k, v in after.task.items() if v is not None}
        self.assertEqual(kept, before.task)

    def test_a_new_head_is_saved_with_its_task(self):
        model = self._load(
            "encoder",
            "classification",
            labels=["sad", "glad", "b|c"],
            max_seq_length=7,
        )
        bert_tf.save_model(model, self.output)
        task = formats.read(self.output).task
        self.assertEqual(task["labels"], ["sad", "glad", "b|c"])
        self.assertEqual(task["max_seq_length"], 7)
        self.assertEqual(task["problem_type"], "single_label")
        loaded = bert_tf.load_model(self.output)
        self.assertEqual(loaded.labels, ("sad", "glad", "b|c"))
        self.assertEqual(loaded.preprocessor.max_seq_length, 7)

    def test_values_of_the_run_and_of_other_tasks_are_dropped(self):
        task = tiny_exports.classification()
        path = tiny_model.write_task(
            self.path("model"),
            task,
            global_step=7,
            results={"dev": {}},
            language="zh",
        )
        bert_tf.save_model(bert_tf.load_model(path), self.output)
        kept = formats.read(self.output).task
        self.assertNoCommonElements(
            kept, ["global_step", "results", "language"]
        )

    def test_models_of_a_constructor_have_no_vocabulary(self):
        config = tiny_model.ONE_LAYER
        four_layers = bert_tf.BertConfig(
            **config.to_dict() | {"num_hidden_layers": 4}
        )
        for kind, model in (
            (
                "classification",
                bert_tf.BertForClassification(config, num_labels=3),
            ),
            (
                "classification",
                bert_tf.BertForClassification(
                    config, labels=["x", "y"], head="bilstm", lstm_size=3
                ),
            ),
            (
                "tagging",
                bert_tf.BertForTagging(
                    four_layers,
                    labels=["O", "B-x"],
                    approach="feature_based",
                    layer_combination="concat_last_four_hidden",
                    lstm_size=2,
                ),
            ),
            (
                "masked_lm",
                bert_tf.BertForPretraining(config, heads=["masked_lm"]),
            ),
            ("encoder", bert_tf.BertModel(config, dtype="mixed_bfloat16")),
        ):
            bert_tf.save_model(model, self.output)
            stored = formats.read(self.output)
            self.assertEqual(stored.task["kind"], kind)
            self.assertIsNone(stored.vocabulary)
            self._assert_equal(dict(stored.weights), _values(model))
            bert_tf.load_model(self.output)

    def test_an_earlier_model_is_replaced_unless_refused(self):
        model = self._load()
        bert_tf.save_model(model, self.output)
        _train(model)
        with self.assertRaisesRegex(UserError, "already, and overwrite=False"):
            bert_tf.save_model(model, self.output, overwrite=False)
        bert_tf.save_model(model, self.output)
        self._assert_same(bert_tf.load_model(self.output), model)

    def test_nothing_else_is_replaced(self):
        model = self._load()
        with self.assertRaisesRegex(UserError, "holds something else"):
            bert_tf.save_model(model, self.folder)
        bert_tf.save_model(model, self.output)
        os.mkdir(os.path.join(self.output, "served"))
        with self.assertRaisesRegex(UserError, "a model and served, which"):
            bert_tf.save_model(model, self.output)
        os.rmdir(os.path.join(self.output, "served"))
        file = os.path.join(self.output, "README.md")
        with self.assertRaisesRegex(UserError, "holds something else"):
            bert_tf.save_model(model, file)
        self.assertEqual(os.listdir(os.path.dirname(self.output)), ["saved"])


class KerasFileTest(_SaveTestCase):
    def _save(self, model):
        path = self.path("x.keras")
        model.save(path)
        return path

    def _without_text(self, path):
        """Returns a copy without assets, as earlier versions wrote it."""
        older = self.path("older.keras")
        with zipfile.ZipFile(path) as source, zipfile.ZipFile(older, "w") as to:
            for name in source.namelist():
                if not name.startswith("assets/"):
                    to.writestr(name, source.read(name))
        return older

    @parameterized.parameters("x.h5", "x.hdf5", "x.zip", "x", "x.keras.h5")
    def test_only_files_that_load_model_reads_are_written(self, name):
        model = self._load()
        with self.assertRaisesRegex(UserError, "bert_tf.save_model"):
            model.save(self.path(name))
        self.assertEqual(os.listdir(self.folder), ["model"])
        model.save(self.path("new/x.keras"))  # The folder is made, too.

    @pytest.mark.slow
    def test_a_fresh_process_reads_texts(self):
        model = self._load()
        _train(model)
        expected = model.predict(_TEXTS, verbose=0)
        path = self._save(model)
        shutil.rmtree(self.path("model"))
        program = self.create_tempfile(content=_LOAD).full_path
        command = [program, path, json.dumps(_TEXTS)]
        (result,) = scripts.run((command, self.folder))
        self.assertEqual(result.status, 0, result.stderr[-2000:])
        self.assertEqual(json.loads(result.stdout.splitlines()[-1]), expected)

    def test_load_model_keeps_text_and_compilation(self):
        model = self._load(max_seq_length=9)
        model.compile(keras.optimizers.SGD(0.25), {"logits": "mse"})
        path = self._save(model)
        loaded = bert_tf.load_model(path)
        self._assert_equal(_values(loaded), _values(model))
        self.assertAllClose(float(loaded.optimizer.learning_rate), 0.25)
        self.assertEqual(loaded.preprocessor.max_seq_length, 9)
        self.assertEqual(
            loaded.preprocessor.task_values["columns"]["text"], "text"
        )
        self.assertAllEqual(
            loaded.preprocessor(_TEXTS)["input_ids"],
            model.preprocessor(_TEXTS)["input_ids"],
        )
        # The settings must outlast a second save, too.
        bert_tf.save_model(loaded, self.output)
        self.assertEqual(formats.read(self.output).task["max_seq_length"], 9)

    def test_fit_chooses_a_new_learning_rate_if_it_chose_the_old_one(self):
        model = self._load()
        labels = ["no", "yes", "no"]
        with mock.patch.object(keras.Model, "fit"):
            model.fit(_TEXTS, labels)
            loaded = bert_tf.load_model(self._save(model))
            first = loaded.optimizer
            loaded.fit(_TEXTS, labels)
            self.assertIsNot(loaded.optimizer, first)
            model.compile("sgd")
            loaded = bert_tf.load_model(self._save(model))
            first = loaded.optimizer
            self.assertFalse(first.built)  # Keras warns of missing variables.
            loaded.fit(_TEXTS, labels)
            self.assertIs(loaded.optimizer, first)

    def test_gives_its_encoder_to_another_head(self):
        model = self._load()
        path = self._save(model)
        loaded = bert_tf.load_model(path, "tagging", labels=["O", "B-x"])
        self.assertIsInstance(loaded, bert_tf.BertForTagging)
        self._assert_equal(_values(loaded.bert), _values(model.bert))
        self.assertEqual(
            bert_tf.load_tokenizer(path).tokenize("dogs")[0].numpy().tolist(),
            model.preprocessor.tokenizer.tokenize("dogs")[0].numpy().tolist(),
        )

    def test_files_of_earlier_versions_load_without_text(self):
        model = self._load()
        path = self._without_text(self._save(model))
        for loaded in (bert_tf.load_model(path), keras.models.load_model(path)):
            self._assert_equal(_values(loaded), _values(model))
            self.assertEqual(loaded.labels, model.labels)
            self.assertFalse(loaded.has_vocabulary)
        with self.assertRaisesRegex(UserError, "older.keras has no vocab"):
            bert_tf.load_model(path).predict(_TEXTS)
        self.assertIsNone(formats.read(path).vocabulary)

    def test_keeps_text_inside_another_model(self):
        model = self._load()
        inputs = {"input_ids": keras.Input((None,), dtype="int32")}
        outer = keras.Model(inputs, model(inputs)["logits"])
        path = self._save(outer)
        self.assertFalse(keras_model.recognizes(path))
        inner = keras.models.load_model(path).get_layer(model.name)
        self.assertEqual(
            inner.preprocessor.task_values["kind"], "classification"
        )
        with self.assertRaisesRegex(UserError, "or a .keras file of bert_tf"):
            bert_tf.load_model(path)

    def test_damaged_text_files_are_refused(self):
        path = self._without_text(self._save(self._load()))
        with zipfile.ZipFile(path, "a") as file:
            file.writestr("assets/task.json", json.dumps({"kind": "other"}))
        with self.assertRaisesRegex(UserError, "older.keras is damaged"):
            formats.read(path)

    @parameterized.parameters(zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
    def test_large_configurations_are_not_read(self, method):
        path = self.path("x.keras")
        with zipfile.ZipFile(path, "w", method) as file:
            config = {"registered_name": "bert_tf>A", "a": "b" * 2000}
            file.writestr("config.json", json.dumps(config))
        with mock.patch.object(stored_files, "MAX_BYTES", 1000):
            self.assertFalse(keras_model.recognizes(path))


_FLAGS = {"buckets": "5,8", "max_seq_length": 11}
_ONLY = ["serving_default", "from_ids"]


@contextlib.contextmanager
def _spying(module, name, weights=None):
    """Yields the calls of an exporter that only reads the stored model."""
    calls = []

    def spy(config, origin):
        stored = formats.read(config.model_dir)
        for key in weights or ():
            np.testing.assert_array_equal(stored.weights[key], weights[key])
        calls.append((config, origin))

    with mock.patch.object(module, name, spy):
        yield calls


class ExportTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        path = made_once.folder(
            "api_export_model",
            lambda x: tiny_exports.write(x, tiny_exports.classification()),
        )
        self.saved = os.path.join(path, "model")
        self.model = bert_tf.load_model(self.saved)
        # The stored model differs, so exports must read the current weights.
        for weight in self.model.trainable_variables:
            weight.assign(weight * 1.1)

    @pytest.mark.slow
    def test_writes_what_the_script_writes(self):
        bert_tf.save_model(self.model, self.path("saved"))
        expected = tiny_exports.export(
            self.path("saved"), self.path("theirs"), _ONLY, **_FLAGS
        )
        self.model.compile("sgd", {"logits": "mse"})
        with tiny_exports.graph_alone(), tiny_exports.only(_ONLY):
            self.model.export(self.path("ours"), verbose=False, **_FLAGS)
        theirs = tf.saved_model.load(expected).signatures
        ours = tf.saved_model.load(self.path("ours/1")).signatures
        self.assertCountEqual(ours, _ONLY)
        for name in _ONLY:
            for part in ("structured_input_signature", "structured_outputs"):
                self.assertEqual(
                    getattr(ours[name], part), getattr(theirs[name], part)
                )
        # Equal graphs and weights must give equal outputs, bit for bit.
        texts = tf.constant(tiny_exports.TEXTS)
        received = ours["serving_default"](text=texts)
        for name, values in theirs["serving_default"](text=texts).items():
            self.assertAllEqual(received[name], values)

    def test_keras_formats_reach_the_exporters(self):
        weights = {
            name: variable.numpy()
            for name, variable in bert_model.named_variables(self.model).items()
        }
        with _spying(savedmodel, "run", weights) as calls:
            self.model.export(self.path("served"), litert=True)
        ((config, _),) = calls
        self.assertEqual(config.output_dir, self.path("served"))
        self.assertTrue(config.litert)
        with _spying(tflite_export, "run", weights) as calls:
            path = pathlib.Path(self.folder, "x.tflite")
            dev = path.with_name("dev.csv")
            self.model.export(path, "litert", batch_size=2, eval_file=dev)
        ((config, _),) = calls
        self.assertEqual(config.eval_file, self.path("dev.csv"))
        self.assertEqual(config.output_file, self.path("x.tflite"))
        self.assertEqual(config.batch_size, 2)

    @parameterized.parameters(
        ({"max_length": 8}, "flag max_length; did you mean max_seq_length"),
        ({"model_dir": "x"}, "model_dir .* Received: 'x'"),
        ({"precision": "int8"}, "one of float32, bfloat16, auto. .*'int8'"),
        ({"buckets": [5, 8]}, r"^buckets must be .* Received: '\[5, 8\]'"),
        ({"version": "new"}, "^version must be a whole number"),
        ({"litert": "fast"}, "^litert must be true or false"),
        ({"max_seq_length": 2}, "^max_seq_length must be at least 3"),
        ({"doc_stride": 3, "top_k": 2}, "^top_k is for head=fill_mask"),
        (
            {"litert_quantization": "float16"},
            "^litert_quantization needs litert",
        ),
    )
    def test_wrong_flags_raise_one_sentence(self, flags, message):
        with self.assertRaisesRegex(UserError, message):
            bert_tf.export_savedmodel(self.model, self.path("x"), **flags)
        self.assertEmpty(os.listdir(self.folder))

    def test_without_vocabulary_keras_exports_features(self):
        model = bert_tf.BertForMultipleChoice(tiny_model.ONE_LAYER)
        with self.assertRaisesRegex(UserError, "so the model needs a vocab"):
            bert_tf.export_savedmodel(model, self.path("x"))
        model.export(self.path("features"), verbose=False)
        served = tf.saved_model.load(self.path("features"))
        inputs = {
            "input_ids": np.array([[[1, 2, 3], [1, 5, 4]]], np.int32),
            "input_mask": np.array([[[1, 1, 1], [1, 1, 0]]], np.int32),
            "segment_ids": np.array([[[0, 1, 1], [0, 0, 1]]], np.int32),
        }
        self.assertAllClose(
            served.serve(inputs)["logits"], model(inputs)["logits"]
        )


if __name__ == "__main__":
    tf.test.main()

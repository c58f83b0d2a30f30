"""Tests for bert_tf.api.export and `model.export`."""

import contextlib
import dataclasses
import os
import pathlib
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf.checkpoints import formats
from bert_tf.errors import UserError
from bert_tf.export import savedmodel
from bert_tf.export.tflite import build as tflite_build
from bert_tf.export.tflite import run as tflite_export
from bert_tf.modeling import bert as bert_model
from tests.support import made_once
from tests.support import tiny_exports
from tests.support import tiny_model

_FLAGS = {"buckets": "5,8", "max_seq_length": 11}
_ONLY = ["serving_default", "from_ids"]


def _make(folder):
    tiny_exports.write(folder, tiny_exports.classification())


@contextlib.contextmanager
def _spying(module, name, weights=None):
    """Yields the calls of an exporter, which reads the model and no more."""
    calls = []

    def spy(config, origin):
        stored = formats.read(config.model_dir)
        for key in weights or ():
            np.testing.assert_array_equal(stored.weights[key], weights[key])
        calls.append((config, origin))

    with mock.patch.object(module, name, spy):
        yield calls


class ExportTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        path = made_once.folder("api_export_model", _make)
        self.saved = os.path.join(path, "model")
        self.model = bert_tf.load_model(self.saved)
        # As after training.
        for weight in self.model.trainable_variables:
            weight.assign(weight * 1.1)

    def _path(self, name):
        return os.path.join(self.folder, name)

    @pytest.mark.slow
    def test_writes_what_the_script_writes(self):
        bert_tf.save_model(self.model, self._path("saved"))
        expected = tiny_exports.export(
            self._path("saved"), self._path("theirs"), _ONLY, **_FLAGS
        )
        self.model.compile("sgd", {"logits": "mse"})
        with tiny_exports.graph_alone(), tiny_exports.only(_ONLY):
            self.model.export(self._path("ours"), verbose=False, **_FLAGS)
        theirs = tf.saved_model.load(expected).signatures
        ours = tf.saved_model.load(self._path("ours/1")).signatures
        self.assertCountEqual(ours, _ONLY)
        for name in _ONLY:
            for part in ("structured_input_signature", "structured_outputs"):
                self.assertEqual(
                    getattr(ours[name], part), getattr(theirs[name], part)
                )
        # Bit for bit.
        texts = tf.constant(tiny_exports.TEXTS)
        received = ours["serving_default"](text=texts)
        for name, values in theirs["serving_default"](text=texts).items():
            self.assertAllEqual(received[name], values)

    def test_reports_name_no_temporary_folder(self):
        with _spying(savedmodel, "run") as calls:
            bert_tf.export_savedmodel(self.model, "served", version=3)
        ((config, origin),) = calls
        self.assertEqual(origin, "a Keras model")
        export = savedmodel.prepare(
            dataclasses.replace(config, model_dir=self.saved), origin
        )
        self.assertEndsWith(
            export.artifact(3, ids_only=False).command,
            " --model_dir=MODEL_DIR --output_dir=served --version=3",
        )
        with _spying(tflite_export, "run") as calls:
            bert_tf.export_tflite(self.model, "x.tflite", quantization="none")
        ((config, origin),) = calls
        build = tflite_build.prepare(
            dataclasses.replace(config, model_dir=self.saved), origin
        )
        self.assertEqual(build.stored.origin, "a Keras model")
        self.assertEndsWith(
            build.command,
            " --model_dir=MODEL_DIR --output_file=x.tflite --quantization=none"
            " --max_seq_length=12 --batch_size=1",
        )

    def test_keras_formats_reach_the_exporters(self):
        weights = {
            name: variable.numpy()
            for name, variable in bert_model.named_variables(self.model).items()
        }
        with _spying(savedmodel, "run", weights) as calls:
            self.model.export(self._path("served"), litert=True)
        ((config, _),) = calls
        self.assertEqual(config.output_dir, self._path("served"))
        self.assertTrue(config.litert)
        with _spying(tflite_export, "run", weights) as calls:
            path = pathlib.Path(self.folder, "x.tflite")
            dev = path.with_name("dev.csv")
            self.model.export(path, "litert", batch_size=2, eval_file=dev)
        ((config, _),) = calls
        self.assertEqual(config.eval_file, self._path("dev.csv"))
        self.assertEqual(config.output_file, self._path("x.tflite"))
        self.assertEqual(config.batch_size, 2)
        with self.assertRaisesRegex(ValueError, "Unrecognized format=zip"):
            self.model.export(self._path("x"), "zip")

    @parameterized.parameters(
        (
            {"max_length": 8},
            "Received: max_length; did you mean max_seq_length",
        ),
        ({"model_dir": "x"}, "Received: model_dir"),
        ({"precision": "int8"}, "one of float32, bfloat16, auto. .*'int8'"),
        ({"buckets": [5, 8]}, r"buckets must be of the type str \| None"),
        ({"version": True}, r"version must be of the type int \| None"),
        ({"litert": 1}, "litert must be of the type bool. Received: 1"),
        ({"max_seq_length": 2}, "--max_seq_length must be at least 3"),
        ({"doc_stride": 3, "top_k": 2}, "--top_k is for --head=fill_mask"),
    )
    def test_wrong_flags_raise_one_sentence(self, flags, message):
        with self.assertRaisesRegex(UserError, message):
            bert_tf.export_savedmodel(self.model, self._path("x"), **flags)
        self.assertEmpty(os.listdir(self.folder))

    def test_without_vocabulary_keras_exports_features(self):
        model = bert_tf.BertForMultipleChoice(tiny_model.ONE_LAYER)
        with self.assertRaisesRegex(UserError, "so the model needs a vocab"):
            bert_tf.export_savedmodel(model, self._path("x"))
        model.export(self._path("features"), verbose=False)
        served = tf.saved_model.load(self._path("features"))
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

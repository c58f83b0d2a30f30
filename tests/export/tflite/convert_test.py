"""Tests for export.tflite.convert: calibration and column scales."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.lite.python import schema_py_generated as schema

from bert_tf.export.tflite import build as builds
from bert_tf.export.tflite import convert as conversion
from bert_tf.export.tflite import evaluate as evaluation
from bert_tf.inference.lite_model import LiteModel
from bert_tf.modeling.layers import Projection
from tests.support import eval_files
from tests.support import rows_of_ids
from tests.support import tiny_builds
from tests.support import tiny_model

_NUM_SAMPLES, _WIDTH = 40, 8


def _operators_in_int8(content):
    """Returns the names of operators that compute in int8."""
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    names = {v: k for k, v in vars(schema.BuiltinOperator).items()}
    found = set()
    for graph in model.subgraphs:
        for operator in graph.operators:
            given, gets = (
                graph.tensors[tensors[0]].type
                for tensors in (operator.outputs, operator.inputs)
            )
            if (
                given == schema.TensorType.INT8
                and gets != schema.TensorType.FLOAT32
            ):
                code = model.operatorCodes[operator.opcodeIndex]
                found.add(names[code.builtinCode])
    return found


class CalibrationTest(tf.test.TestCase):
    @pytest.mark.slow
    def test_dense_layers_compute_in_int8_and_sensitive_operators_do_not(self):
        build = eval_files.prepare(
            "classification",
            quantization="full_int8",
            representative_file=eval_files.write("classification"),
        )
        rows = list(evaluation.read_calibration_set(build)())
        self.assertGreater(len({x["input_ids"].shape for x in rows}), 3)
        function = builds.make_function(build)
        content = conversion.convert(*function, "full_int8", lambda: rows)
        found = _operators_in_int8(content)
        self.assertIn("FULLY_CONNECTED", found)
        self.assertNoCommonElements(
            found, ["SOFTMAX", "ADD", "MUL", "MEAN", "GELU", "ONE_HOT"]
        )
        model = LiteModel(content)
        like = LiteModel(eval_files.make("classification"))
        for inputs in rows:
            ours, theirs = (
                x.run(inputs)["probabilities"] for x in (model, like)
            )
            self.assertEqual(ours.dtype, np.float32)
            self.assertAllClose(ours, theirs, atol=0.1)


def _projection(column_sizes, width=_WIDTH):
    """Returns a layer whose columns have given magnitudes."""
    rng = np.random.default_rng(1)
    count = len(column_sizes)
    projection = Projection(count)
    projection.build((None, width))
    projection.kernel.assign(rng.normal(size=(width, count)) * column_sizes)
    projection.bias.assign(rng.normal(size=count) * column_sizes)
    return projection


class _Dense(keras.Model):
    """A model of a single projection."""

    def __init__(self, projection):
        super().__init__(name="dense_alone")
        self.projection = projection

    def call(self, inputs):
        return {"rows": self.projection.affine(inputs["numbers"])}


class ProjectionTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("linear", "gelu", "relu")
    def test_scales_do_not_change_outputs(self, activation):
        projection = _projection([1.0, 200.0, 0.02])
        inputs = tf.random.stateless_normal([2, 5, _WIDTH], seed=[1, 2])
        expected = projection.affine(inputs, activation)
        projection.column_scales = np.array([0.1, 700.0, 3.0])
        projection.input_scales = np.linspace(0.5, 20.0, _WIDTH)
        received = projection.affine(inputs, activation)
        self.assertEqual(received.shape, (2, 5, 3))
        self.assertAllClose(received, expected, rtol=1e-5, atol=1e-5)


class ColumnScalesTest(tf.test.TestCase):
    def test_outputs_stay_the_same_and_scales_are_removed(self):
        built = tiny_builds.make("classification")
        model, rows = built.build.model, rows_of_ids.make(built, 6, 9)
        parts = [{x: v[i : i + 2] for x, v in rows.items()} for i in (0, 2, 4)]
        expected = model(rows, training=False)["logits"]
        layers = [
            layer
            for layer in model._flatten_layers()
            if isinstance(layer, Projection)
        ]
        with self.assertRaisesRegex(ValueError, "Broken off"):
            with conversion.scaled_columns(model, lambda: parts):
                scaled = [x for x in layers if x.column_scales is not None]
                received = model(rows, training=False)["logits"]
                raise ValueError("Broken off.")
        self.assertGreater(len(scaled), 4)
        self.assertAllClose(received, expected, atol=1e-5)
        for layer in layers:
            self.assertIsNone(layer.column_scales)
            self.assertIsNone(layer.input_scales)
            self.assertIsNone(layer.on_rows)

    def test_zero_columns_stay_zero(self):
        model = _Dense(_projection([1.0, 0.0]))
        inputs = {"numbers": np.ones((3, _WIDTH), np.float32)}
        with conversion.scaled_columns(model, lambda: [inputs]):
            rows = model(inputs)["rows"].numpy()
        self.assertAllEqual(rows[:, 1], [0.0] * 3)
        self.assertAllGreater(np.abs(rows[:, 0]), 0.0)

    def test_zero_inputs_stay_zero(self):
        model = _Dense(_projection([1.0, 2.0]))
        inputs = {"numbers": np.zeros((3, _WIDTH), np.float32)}
        with conversion.scaled_columns(model, lambda: [inputs]):
            rows = model(inputs)["rows"].numpy()
            self.assertAllEqual(model.projection.input_scales, [1.0] * _WIDTH)
        self.assertAllClose(rows, [model.projection.bias.numpy()] * 3)

    def test_a_great_column_keeps_the_precision_of_others(self):
        model = _Dense(_projection([1.0, 1.0, 300.0, 1.0]))
        samples = _random_samples()
        without = _measure_errors(model, samples)[..., [0, 1, 3]].max()
        with conversion.scaled_columns(model, lambda: samples):
            errors = _measure_errors(model, samples)
        self.assertGreater(without, 1.0)
        self.assertLess(errors[..., [0, 1, 3]].max(), 0.2)

    def test_a_great_input_keeps_the_precision_of_others(self):
        projection = _projection([1.0] * 4, width=200)
        kernel = projection.kernel.numpy()
        kernel[2] /= 30.0  # Makes up for the great input.
        projection.kernel.assign(kernel)
        model = _Dense(projection)
        samples = _random_samples(width=200)
        for sample in samples:
            sample["numbers"][..., 2] *= 30.0
        without = _measure_errors(model, samples)
        with conversion.scaled_columns(model, lambda: samples):
            errors = _measure_errors(model, samples)
        self.assertLess(np.std(errors), 0.5 * np.std(without))

    @pytest.mark.slow
    def test_full_int8_files_scale_columns(self):
        flags = {
            "quantization": "full_int8",
            "representative_file": eval_files.write("classification"),
        }
        count, usual = (
            conversion.operators(eval_files.make("classification", **given))
            for given in (flags, {})
        )
        layers = 4 * tiny_model.ONE_LAYER.num_hidden_layers + 1  # The pooler.
        self.assertEqual(count["MUL"] - usual["MUL"], 2 * layers)


def _random_samples(width=_WIDTH):
    rng = np.random.default_rng(2)
    return [
        {"numbers": rng.normal(size=(2, 3, width)).astype(np.float32)}
        for _ in range(_NUM_SAMPLES)
    ]


def _measure_errors(model, samples):
    """Returns the differences of an int8 file from the model."""
    width = samples[0]["numbers"].shape[-1]
    content = conversion.convert(
        lambda numbers: model({"numbers": numbers}),
        {"numbers": tf.TensorSpec([None, None, width], tf.float32)},
        "full_int8",
        lambda: samples,
    )
    lite = LiteModel(content)
    return np.concatenate(
        [
            np.abs(lite.run(sample)["rows"] - model(sample)["rows"].numpy())
            for sample in samples
        ]
    )


if __name__ == "__main__":
    tf.test.main()

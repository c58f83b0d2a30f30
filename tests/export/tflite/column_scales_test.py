"""Tests for export.on_device.column_scales."""

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.export.tflite import column_scales
from bert_tf.export.tflite import convert as conversion
from bert_tf.export.tflite import tflite_file
from bert_tf.inference.lite_model import LiteModel
from bert_tf.modeling.layers import Projection
from tests.support import eval_files
from tests.support import rows_of_ids
from tests.support import tiny_builds

_NUM_SAMPLES, _WIDTH = 40, 8


def _projection(column_sizes, width=_WIDTH):
    """Returns a layer whose columns have such sizes."""
    rng = np.random.default_rng(1)
    count = len(column_sizes)
    projection = Projection(count)
    projection.build((None, width))
    projection.kernel.assign(rng.normal(size=(width, count)) * column_sizes)
    projection.bias.assign(rng.normal(size=count) * column_sizes)
    return projection


class _Dense(keras.Model):
    """A projection alone."""

    def __init__(self, projection):
        super().__init__(name="dense_alone")
        self.projection = projection

    def call(self, inputs):
        return {"rows": self.projection.affine(inputs["numbers"])}


class ProjectionTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("linear", "gelu", "relu")
    def test_scales_do_not_change_what_is_computed(self, activation):
        projection = _projection([1.0, 200.0, 0.02])
        inputs = tf.random.stateless_normal([2, 5, _WIDTH], seed=[1, 2])
        expected = projection.affine(inputs, activation)
        projection.column_scales = np.array([0.1, 700.0, 3.0])
        projection.input_scales = np.linspace(0.5, 20.0, _WIDTH)
        received = projection.affine(inputs, activation)
        self.assertEqual(received.shape, (2, 5, 3))
        self.assertAllClose(received, expected, rtol=1e-5, atol=1e-5)


class ColumnScalesTest(tf.test.TestCase):
    def test_are_the_greatest_of_each_column(self):
        model = _Dense(_projection([1.0, 30.0, 0.2]))
        rng = np.random.default_rng(3)
        samples = [
            {"numbers": rng.normal(size=(n, _WIDTH)).astype(np.float32)}
            for n in (1, 4, 2)
        ]
        rows = np.concatenate([model(x)["rows"] for x in samples])
        with column_scales.applied(model, lambda: samples):
            scales = model.projection.column_scales
        self.assertAllClose(scales, np.abs(rows).max(0))

    def test_a_model_computes_the_same_and_loses_them_afterwards(self):
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
            with column_scales.applied(model, lambda: parts):
                scaled = [x for x in layers if x.column_scales is not None]
                received = model(rows, training=False)["logits"]
                raise ValueError("Broken off.")
        self.assertGreater(len(scaled), 4)
        self.assertAllClose(received, expected, atol=1e-5)
        for layer in layers:
            self.assertIsNone(layer.column_scales)
            self.assertIsNone(layer.input_scales)
            self.assertIsNone(layer.on_rows)

    def test_columns_of_always_zero_stay_so(self):
        model = _Dense(_projection([1.0, 0.0]))
        inputs = {"numbers": np.ones((3, _WIDTH), np.float32)}
        with column_scales.applied(model, lambda: [inputs]):
            rows = model(inputs)["rows"].numpy()
        self.assertAllEqual(rows[:, 1], [0.0] * 3)
        self.assertAllGreater(np.abs(rows[:, 0]), 0.0)

    def test_inputs_have_those_of_the_few_that_are_great(self):
        rng = np.random.default_rng(4)
        sizes = np.ones(200)
        sizes[[7, 70]] = 40.0, 20.0
        projection = Projection(2)
        projection.build((None, 200))
        model = _Dense(projection)
        samples = [
            {"numbers": (rng.uniform(-1, 1, (30, 200)) * sizes).astype("f")}
            for _ in range(2)
        ]
        with column_scales.applied(model, lambda: samples):
            scales = projection.input_scales
        self.assertAllInRange(scales[[7, 70]], 18.0, 41.0)
        self.assertAllClose(scales[7] / scales[70], 2.0, rtol=0.1)
        # Its neighbours, of about the size of the usual ones.
        self.assertAllInRange(np.delete(scales, [7, 70]), 1.0, 1.01)
        self.assertEqual(np.median(scales), 1.0)

    def test_inputs_of_always_zero_stay_so(self):
        model = _Dense(_projection([1.0, 2.0]))
        inputs = {"numbers": np.zeros((3, _WIDTH), np.float32)}
        with column_scales.applied(model, lambda: [inputs]):
            rows = model(inputs)["rows"].numpy()
            self.assertAllEqual(model.projection.input_scales, [1.0] * _WIDTH)
        self.assertAllClose(rows, [model.projection.bias.numpy()] * 3)

    def test_one_great_column_leaves_the_others_what_they_are(self):
        model = _Dense(_projection([1.0, 1.0, 300.0, 1.0]))
        samples = _random_samples()
        without = _measure_errors(model, samples)[..., [0, 1, 3]].max()
        with column_scales.applied(model, lambda: samples):
            errors = _measure_errors(model, samples)
        self.assertGreater(without, 1.0)
        self.assertLess(errors[..., [0, 1, 3]].max(), 0.2)

    def test_one_great_input_leaves_the_others_what_they_are(self):
        projection = _projection([1.0] * 4, width=200)
        kernel = projection.kernel.numpy()
        kernel[2] /= 30.0  # Of which as much comes as of the others.
        projection.kernel.assign(kernel)
        model = _Dense(projection)
        samples = _random_samples(width=200)
        for sample in samples:
            sample["numbers"][..., 2] *= 30.0
        without = _measure_errors(model, samples)
        with column_scales.applied(model, lambda: samples):
            errors = _measure_errors(model, samples)
        self.assertLess(np.std(errors), 0.5 * np.std(without))

    def test_files_in_int8_have_them(self):
        flags = {
            "quantization": "full_int8",
            "representative_file": eval_files.write("classification"),
        }
        count, usual = (
            tflite_file.operators(eval_files.make("classification", **given))
            for given in (flags, {})
        )
        layers = 2 * 4 + 1  # With the pooler.
        self.assertEqual(count["MUL"] - usual["MUL"], 2 * layers)


def _random_samples(width=_WIDTH):
    rng = np.random.default_rng(2)
    return [
        {"numbers": rng.normal(size=(2, 3, width)).astype(np.float32)}
        for _ in range(_NUM_SAMPLES)
    ]


def _measure_errors(model, samples):
    """Returns how far each number of a file in int8 is from the model's."""
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

"""Tests for export.on_device.column_scales."""

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.modeling.layers import Projection
from bert_tf.serving.lite_model import LiteModel
from export.on_device import column_scales
from export.on_device import conversion
from tests.export.on_device import rows_of_ids
from tests.export.on_device import tiny_builds

_NUM_SAMPLES, _WIDTH = 40, 8


def _projection(column_sizes, seed=1):
    """Returns a layer whose columns have such sizes."""
    rng = np.random.default_rng(seed)
    count = len(column_sizes)
    projection = Projection(count)
    projection.build((None, _WIDTH))
    projection.kernel.assign(rng.normal(size=(_WIDTH, count)) * column_sizes)
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
            self.assertIsNone(layer.on_rows)

    def test_columns_of_always_zero_stay_so(self):
        model = _Dense(_projection([1.0, 0.0]))
        inputs = {"numbers": np.ones((3, _WIDTH), np.float32)}
        with column_scales.applied(model, lambda: [inputs]):
            rows = model(inputs)["rows"].numpy()
        self.assertAllEqual(rows[:, 1], [0.0] * 3)
        self.assertAllGreater(np.abs(rows[:, 0]), 0.0)

    def test_one_great_column_leaves_the_others_what_they_are(self):
        model = _Dense(_projection([1.0, 1.0, 300.0, 1.0]))
        rng = np.random.default_rng(2)
        samples = [
            {"numbers": rng.normal(size=(2, 3, _WIDTH)).astype(np.float32)}
            for _ in range(_NUM_SAMPLES)
        ]
        specs = {"numbers": tf.TensorSpec([None, None, _WIDTH], tf.float32)}

        def measure_error():
            content = conversion.convert(
                lambda numbers: model({"numbers": numbers}),
                specs,
                "full_int8",
                lambda: samples,
            )
            lite = LiteModel(content)
            errors = []
            for sample in samples:
                expected = model(sample)["rows"].numpy()
                errors.append(np.abs(lite.run(sample)["rows"] - expected))
            return np.concatenate(errors)[..., [0, 1, 3]].max()

        without = measure_error()
        with column_scales.applied(model, lambda: samples):
            with_scales = measure_error()
        self.assertGreater(without, 1.0)
        self.assertLess(with_scales, 0.2)


if __name__ == "__main__":
    tf.test.main()

"""Tests for weights of models in bert_tf.checkpoints.load."""

from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.errors import UserError
from bert_tf.modeling import bert as bert_model
from tests.support import tiny_layers

_HEADS = set(weight_map.pretraining_shapes(tiny_layers.CONFIG)) - set(
    weight_map.encoder_shapes(tiny_layers.CONFIG)
)
_SLOT = "bert/pooler/dense/bias/adam_m"


def _tensors(encoder_only=False):
    shapes = (
        weight_map.encoder_shapes(tiny_layers.CONFIG)
        if encoder_only
        else weight_map.pretraining_shapes(tiny_layers.CONFIG)
    )
    return {
        name: tiny_layers.normal(*shape, seed=index)
        for index, (name, shape) in enumerate(shapes.items())
    }


class _Classifier(keras.Model):
    """An encoder with the original's classification head."""

    def __init__(self, num_labels=2):
        super().__init__(name="classifier")
        with keras.name_scope(self.name):
            self.bert = bert_model.BertModel(tiny_layers.CONFIG)
        self.build()

    def build(self, input_shape=None):
        self.output_weights = self.add_weight(
            name="output_weights", shape=(2, 8)
        )
        self.output_bias = self.add_weight(name="output_bias", shape=(2,))


class BuildTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.model = tiny_layers.randomize(
            bert_model.BertModel(tiny_layers.CONFIG), seed=4
        )
        self.arrays = {
            name: variable.numpy()
            for name, variable in bert_model.named_variables(self.model).items()
        }

    def _build(self, weights):
        return checkpoint_loading.build(
            lambda: bert_model.BertModel(tiny_layers.CONFIG),
            bert_model.named_variables,
            weights,
        )

    def _assert_built(self, model):
        variables = bert_model.named_variables(model)
        self.assertCountEqual(variables, self.arrays)
        for name, value in self.arrays.items():
            self.assertAllEqual(variables[name], value, name)
        inputs = tiny_layers.inputs()
        self.assertAllEqual(
            model(inputs)["sequence_output"],
            self.model(inputs)["sequence_output"],
        )

    def test_each_weight_is_read_once_and_none_is_drawn(self):
        shapes = {name: x.shape for name, x in self.arrays.items()}
        read = mock.Mock(side_effect=self.arrays.__getitem__)
        with mock.patch.object(
            keras.initializers.TruncatedNormal, "__call__"
        ) as draw:
            model = self._build(Tensors(shapes, read))
            draw.assert_not_called()
        self.assertLen(read.mock_calls, len(self.arrays))
        self._assert_built(model)

    def test_keras_that_ignores_the_initializers(self):
        initialize = keras.Variable._deferred_initialize

        def initialize_with_zeros(variable):
            variable._initializer = keras.initializers.Zeros()
            initialize(variable)

        with mock.patch.object(
            keras.Variable, "_deferred_initialize", initialize_with_zeros
        ):
            model = self._build(Tensors.from_arrays(self.arrays))
        self._assert_built(model)

    def test_dropout_still_draws(self):
        model = self._build(Tensors.from_arrays(self.arrays))
        inputs = tiny_layers.inputs()
        first, second = (
            model(inputs, training=True)["pooled_output"] for _ in range(2)
        )
        self.assertNotAllClose(first, second)
        self.assertTrue(np.isfinite(first).all())


class LoadingTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.model = bert_model.BertForPretraining(tiny_layers.CONFIG)

    def _values(self, model=None):
        return {
            name: variable.numpy()
            for name, variable in bert_model.named_variables(
                model or self.model
            ).items()
        }

    def _assert_refused(self, tensors, message, **kwargs):
        before = self._values()
        with self.assertRaisesRegex(UserError, message):
            checkpoint_loading.load_into(self.model, tensors, **kwargs)
        after = self._values()
        for name, value in before.items():
            self.assertAllEqual(after[name], value, name)

    def test_every_weight_gets_its_value(self):
        tensors = _tensors()
        report = checkpoint_loading.load_into(self.model, tensors)
        self.assertCountEqual(report.loaded, tensors)
        self.assertEqual((report.missing, report.unused), ((), ()))
        for name, value in self._values().items():
            self.assertAllEqual(value, tensors[name], name)

    def test_heads_the_model_does_not_build_and_optimizer_state(self):
        encoder = bert_model.BertModel(tiny_layers.CONFIG)
        extra = {
            "global_step": np.int64(3),
            _SLOT: np.zeros(8, np.float32),
            "cls/squad/output_weights": np.zeros((2, 8), np.float32),
            "output_weights": np.zeros((3, 8), np.float32),
        }
        report = checkpoint_loading.load_into(encoder, _tensors() | extra)
        self.assertCountEqual(report.unused, _HEADS | set(extra))
        self.assertEqual(report.missing, ())
        self.assertLen(report.loaded, 39)
        self.assertRegex(str(report), "loaded 39 weights, all of the model's; ")
        self.assertRegex(str(report), "part: .*cls/squad.*; not needed: 2 t")

    def test_heads_the_model_creates_new(self):
        before = self._values()
        report = checkpoint_loading.load_into(
            self.model, _tensors(encoder_only=True)
        )
        self.assertCountEqual(report.missing, _HEADS)
        for name, value in self._values().items():
            changed = not np.array_equal(value, before[name])
            self.assertEqual(changed, name not in _HEADS, name)

    def test_head_in_the_root_scope(self):
        model = _Classifier()
        report = checkpoint_loading.load_into(model, _tensors())
        new = ("output_weights", "output_bias")
        self.assertCountEqual(report.missing, new)
        tensors = _tensors() | {
            "output_weights": tiny_layers.normal(2, 8),
            "output_bias": tiny_layers.normal(2),
        }
        report = checkpoint_loading.load_into(model, tensors)
        self.assertEqual(report.missing, ())
        self.assertAllEqual(model.output_bias, tensors["output_bias"])

    @parameterized.parameters(
        ("bert/embeddings/LayerNorm/beta",),
        ("bert/encoder/layer_1/output/dense/kernel",),
        ("bert/pooler/dense/bias",),
        ("cls/predictions/output_bias",),
        ("cls/seq_relationship/output_weights",),
    )
    def test_missing_weight(self, name):
        tensors = _tensors()
        del tensors[name]
        self._assert_refused(tensors, f"x.ckpt .*{name}", source="x.ckpt")
        report = checkpoint_loading.load_into(
            self.model, tensors, expected_missing=[name]
        )
        self.assertEqual(report.missing, (name,))

    @parameterized.parameters(
        "bert/encoder/layer_2/output/dense/kernel",
        "bert/embeddings/other",
        "cls/predictions/other",
        "model/encoder/kernel",
        "beta1_power",
    )
    def test_unknown_tensor(self, name):
        tensors = _tensors() | {name: np.zeros(3, np.float32)}
        self._assert_refused(tensors, f"also has {name}")
        report = checkpoint_loading.load_into(
            self.model, tensors, expected_unused=[name]
        )
        self.assertEqual(report.unused, (name,))

    @parameterized.parameters(
        ("bert/embeddings/word_embeddings", (20, 8), (19, 8)),
        ("bert/pooler/dense/kernel", (64,), (8, 8)),
        ("cls/predictions/output_bias", (20,), (19,)),
    )
    def test_other_shape(self, name, shape, expected):
        tensors = _tensors() | {name: np.zeros(shape, np.float32)}
        shapes = [str(x).replace("(", r"\(") for x in (shape, expected)]
        shapes = [x.replace(")", r"\)") for x in shapes]
        self._assert_refused(tensors, f"{name} {shapes[0]}, .*{shapes[1]}")


if __name__ == "__main__":
    tf.test.main()

"""Tests for bert_tf.checkpoints.building."""

from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import building
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.modeling import bert as bert_model
from tests.support import tiny_layers


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
        return building.build(
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

    def test_a_keras_that_keeps_its_own_initializers(self):
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


if __name__ == "__main__":
    tf.test.main()

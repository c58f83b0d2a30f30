"""Tests for bert_tf.distribute.packed_weights."""

import json
import os
from unittest import mock

import pytest
from absl.testing import absltest
from absl.testing import parameterized

from bert_tf.distribute import packed_weights
from bert_tf.errors import UserError
from tests.support import scripts

# Prints the variable after `assume`, called before or after an import.
_ASSUME = """
import json, os, sys
from bert_tf.distribute import packed_weights
name = packed_weights.VARIABLE
if sys.argv[1] == "imported":
    sys.modules["tensorflow"] = None
packed_weights.assume()
print(json.dumps(os.environ.get(name)))
"""
# Prints a product's result with the first weight, 1, and the next one, 2.
_UPDATE = """
import json, os
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
import tensorflow as tf
size = 512
weight = tf.Variable(tf.ones([size, size]))
bias = tf.zeros([size])
@tf.function(autograph=False)
def product(x):
    return tf.nn.relu(tf.nn.bias_add(tf.matmul(x, weight), bias))
x = tf.ones([64, size]) / size
first = product(x)[0, 0].numpy()
weight.assign(2.0 * weight)
print(json.dumps([float(first), float(product(x)[0, 0].numpy())]))
"""


def _run(program, *arguments, **environment):
    result = scripts.python(
        "-c", program, *arguments, variables=environment, check=True
    )
    return json.loads(result.stdout)


class PackedWeightsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("fresh", {}, "1"),
        ("fresh", {packed_weights.VARIABLE: "0"}, "0"),
        ("imported", {}, None),
    )
    def test_assumed_before_tensorflow_and_unless_set(
        self, process, environment, value
    ):
        self.assertEqual(_run(_ASSUME, process, **environment), value)

    @pytest.mark.slow
    def test_tensorflow_ignores_updates_of_packed_weights(self):
        self.assertEqual(_run(_UPDATE), [1.0, 2.0])
        assumed = {packed_weights.VARIABLE: "1"}
        self.assertEqual(_run(_UPDATE, **assumed), [1.0, 1.0])

    @parameterized.parameters("1", "true", "True")
    def test_training_is_refused_with_packed_weights(self, value):
        assumed = {packed_weights.VARIABLE: value}
        with mock.patch.dict(os.environ, assumed):
            self.assertTrue(packed_weights.are_assumed())
            with self.assertRaisesRegex(
                UserError, f"Received: {packed_weights.VARIABLE}={value}; unset"
            ):
                packed_weights.refuse()

    @parameterized.parameters("", "0", "false")
    def test_training_is_allowed_without_packed_weights(self, value):
        with mock.patch.dict(os.environ, {packed_weights.VARIABLE: value}):
            self.assertFalse(packed_weights.are_assumed())
            packed_weights.refuse()


if __name__ == "__main__":
    absltest.main()

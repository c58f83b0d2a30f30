"""Tests for bert_tf.checkpoints.matching and bert_tf.checkpoints.tensors."""

import re

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import matching
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tensors import Tensors
from bert_tf.errors import UserError
from tests.support import tiny_layers

_PARTS = ("bert", "bert/pooler", "output")


def _theirs(weights_format="huggingface", parts=_PARTS, num_labels=3):
    """Returns weights by canonical name and by the format's name."""
    ours, theirs = {}, {}
    for index, row in enumerate(weight_map.rows(tiny_layers.CONFIG)):
        if weight_map.part_of(row.name) not in parts:
            continue
        shape = weight_map.shape_of(row, tiny_layers.CONFIG, num_labels)
        ours[row.name] = tiny_layers.normal(*shape, seed=index)
        theirs[weight_map.name_in(row, weights_format)] = weight_map.to_format(
            ours[row.name], row.layout, weights_format, 2
        )
    return ours, theirs


def _match(theirs, weights_format="huggingface", heads=("output",), **options):
    return matching.match(
        tiny_layers.CONFIG,
        Tensors.from_arrays(theirs),
        weights_format,
        "there",
        heads,
        **options,
    )


class MatchTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        "tf1", "huggingface", "keras_hub", "model_garden", "bert_tf"
    )
    def test_finds_every_weight(self, weights_format):
        parts = ("bert", "bert/pooler")
        ours, theirs = _theirs(weights_format, parts)
        tensors, report = _match(theirs, weights_format, heads=())
        self.assertEqual(set(tensors), set(ours))
        for name, value in ours.items():
            self.assertAllEqual(tensors[name], value, name)
            self.assertEqual(tensors.shapes[name], value.shape)
            self.assertTrue(tensors[name].flags.c_contiguous)
        self.assertEqual(set(report.loaded), set(ours))
        self.assertEqual(report.missing + report.unused, ())
        expected = {
            "tf1": 0,
            "bert_tf": 0,
            # PyTorch transposes six kernels per layer and one more: 6 * 2 + 1.
            "huggingface": 13,
            # Attention's four kernels and three biases have a head axis: 7 * 2.
            "keras_hub": 14,
            "model_garden": 14,
        }
        self.assertLen(report.reshaped, expected[weights_format])

    @parameterized.parameters(np.nan, np.inf, -np.inf)
    def test_refuses_numbers_that_are_not_finite(self, value):
        _, theirs = _theirs()
        theirs["bert.encoder.layer.1.output.dense.weight"][2, 3] = value
        tensors, _ = _match(theirs)
        self.assertLen(tensors["bert/encoder/layer_0/output/dense/kernel"], 12)
        message = "there holds numbers in bert.encoder.layer.1.output.dense.w"
        with self.assertRaisesRegex(UserError, message):
            tensors["bert/encoder/layer_1/output/dense/kernel"]  # noqa: B018

    def test_error_lists_all_problems(self):
        _, theirs = _theirs()
        del theirs["bert.encoder.layer.1.output.dense.bias"]
        del theirs["classifier.bias"]
        theirs["extra"] = np.zeros(3)
        theirs["bert.pooler.dense.bias"] = np.zeros(9)
        message = (
            "there does not hold.*lacks bert.encoder.layer.1.output.dense.bias,"
            r".*it also has extra; it has in another shape .*bias \(9,\) "
            r"\(expected \(8,\)\)"
        )
        with self.assertRaisesRegex(UserError, message):
            _match(theirs)

    def test_allowed_missing_weights_get_initial_values(self):
        ours, theirs = _theirs()
        del theirs["bert.encoder.layer.0.intermediate.dense.weight"]
        del theirs["bert.embeddings.LayerNorm.weight"]
        del theirs["bert.embeddings.LayerNorm.bias"]
        theirs["extra.weight"] = np.zeros(3)
        # Patterns may match canonical names and the format's names.
        allow = re.compile(r"layer_0/inter.*kernel|LayerNorm|^extra")
        tensors, report = _match(theirs, allow_missing=allow)
        kernel = "bert/encoder/layer_0/intermediate/dense/kernel"
        norm = "bert/embeddings/LayerNorm/"
        self.assertSameElements(
            report.missing, [kernel, f"{norm}gamma", f"{norm}beta"]
        )
        self.assertEqual(report.unused, ("extra.weight",))
        self.assertAllEqual(tensors[f"{norm}gamma"], np.ones(8))
        self.assertAllEqual(tensors[f"{norm}beta"], np.zeros(8))
        value = tensors[kernel]
        self.assertEqual(value.shape, (8, 12))
        self.assertAllEqual(value, tensors[kernel])
        self.assertBetween(np.std(value), 0.01, 0.03)
        self.assertLessEqual(np.max(np.abs(value)), 0.04)
        name = "bert/pooler/dense/kernel"
        self.assertAllEqual(tensors[name], ours[name])


if __name__ == "__main__":
    tf.test.main()

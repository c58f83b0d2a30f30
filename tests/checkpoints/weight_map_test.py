"""Tests for bert_tf.checkpoints.weight_map."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import weight_map
from bert_tf.flags.groups import FORMATS
from tests.support import tiny_layers


def _row(name):
    (row,) = [x for x in weight_map.rows(tiny_layers.CONFIG) if x.name == name]
    return row


class WeightMapTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("cls/predictions/transform/dense/bias", "cls/predictions"),
        ("cls/squad/output_bias", "cls/squad"),
        ("output_bias", "output"),
        ("bert/pooler/dense/kernel", "bert/pooler"),
        ("bert/embeddings/word_embeddings", None),
        ("global_step", None),
    )
    def test_head_of(self, name, expected):
        self.assertEqual(weight_map.head_of(name), expected)

    @parameterized.parameters(
        ("global_step", True),
        ("bert/pooler/dense/bias/adam_m", True),
        ("bert/pooler/dense/bias/adam_v", True),
        ("bert/pooler/dense/bias", False),
    )
    def test_is_optimizer_state(self, name, expected):
        self.assertEqual(weight_map.is_optimizer_state(name), expected)

    @parameterized.parameters(
        ("encoder", ()),
        ("encoder", ("bert/pooler/dense/bias",)),
        ("masked_lm", ("cls/predictions/output_bias",)),
        ("next_sentence", ("cls/seq_relationship/output_bias",)),
        (
            "pretraining",
            ("cls/seq_relationship/output_bias", "cls/predictions/output_bias"),
        ),
        ("classification", ("output_bias", "cls/predictions/output_bias")),
        ("question_answering", ("cls/squad/output_bias",)),
        ("tagging", ("cls/tagging/output_bias",)),
        ("multiple_choice", ("cls/multiple_choice/output_bias",)),
    )
    def test_kind_of(self, expected, names):
        encoder = ("bert/embeddings/word_embeddings",)
        self.assertEqual(weight_map.kind_of(encoder + names), expected)

    def test_rows_of_a_layer_appear_once_per_layer(self):
        names = [row.name for row in weight_map.rows(tiny_layers.CONFIG)]
        self.assertLen(set(names), len(names))
        of_layer = [x for x in names if x.startswith("bert/encoder/layer_1/")]
        self.assertLen(of_layer, 16)
        self.assertEmpty([x for x in names if "layer_2" in x or "{" in x])

    @parameterized.parameters(
        (
            "bert/encoder/layer_1/attention/self/key/kernel",
            "bert.encoder.layer.1.attention.self.key.weight",
            "transformer_layer_1/self_attention_layer/key/kernel",
            "encoder/_transformer_layers/1/_attention_layer/_key_dense/kernel",
        ),
        (
            "bert/embeddings/LayerNorm/gamma",
            "bert.embeddings.LayerNorm.weight",
            "embeddings_layer_norm/gamma",
            "encoder/_embedding_norm_layer/gamma",
        ),
        (
            "output_weights",
            "classifier.weight",
            "logits/kernel",
            "model/classifier/out_proj/kernel",
        ),
        (
            "cls/squad/output_bias",
            "qa_outputs.bias",
            None,
            "model/span_labeling/layer_with_weights-0/bias",
        ),
    )
    def test_names(self, name, huggingface, keras_hub, model_garden):
        row = _row(name)
        self.assertEqual(weight_map.name_in(row, "tf1"), name)
        self.assertEqual(weight_map.name_in(row, "bert_tf"), name)
        self.assertEqual(weight_map.name_in(row, "huggingface"), huggingface)
        self.assertEqual(weight_map.name_in(row, "keras_hub"), keras_hub)
        self.assertEqual(weight_map.name_in(row, "model_garden"), model_garden)

    @parameterized.parameters(*FORMATS)
    def test_layouts_round_trip(self, weights_format):
        for index, row in enumerate(weight_map.rows(tiny_layers.CONFIG)):
            shape = weight_map.shape_of(row, tiny_layers.CONFIG, num_labels=5)
            value = tiny_layers.normal(*shape, seed=index)
            theirs = weight_map.to_format(value, row.layout, weights_format, 2)
            self.assertEqual(
                theirs.shape,
                weight_map.shape_in(row, weights_format, tiny_layers.CONFIG, 5),
            )
            back = weight_map.from_format(theirs, row.layout, weights_format)
            self.assertAllEqual(back, value, row.name)

    def test_layouts(self):
        # Width 8, inner width 12, 2 heads of 4.
        kernel = tiny_layers.normal(8, 8)
        query = ("per_head_out", "keras_hub", 2)
        split = weight_map.to_format(kernel, *query)
        self.assertAllEqual(split[3, 1, 2], kernel[3, 6])
        split = weight_map.to_format(kernel, "per_head_in", "model_garden", 2)
        self.assertAllEqual(split[1, 2, 3], kernel[6, 3])
        bias = weight_map.to_format(kernel[0], "per_head_bias", "keras_hub", 2)
        self.assertAllEqual(bias[1, 2], kernel[0, 6])
        dense = weight_map.to_format(kernel, "dense", "huggingface", 2)
        self.assertAllEqual(dense, np.transpose(kernel))
        output = weight_map.to_format(kernel, "output", "keras_hub", 2)
        self.assertAllEqual(output, np.transpose(kernel))
        for layout, weights_format in (
            ("output", "huggingface"),
            ("dense", "keras_hub"),
            ("dense", "tf1"),
        ):
            same = weight_map.to_format(kernel, layout, weights_format, 2)
            self.assertAllEqual(same, kernel)


if __name__ == "__main__":
    tf.test.main()

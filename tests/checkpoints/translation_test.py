"""Tests for bert_tf.checkpoints.translation."""

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints import matching
from bert_tf.checkpoints import translation
from bert_tf.checkpoints import weight_map
from bert_tf.checkpoints.tensors import Tensors
from tests.support import tiny_layers


def _weights(*parts):
    rows = [
        row
        for row in weight_map.rows(tiny_layers.CONFIG)
        if weight_map.part_of(row.name) in parts
    ]
    return Tensors.from_arrays(
        {
            row.name: tiny_layers.normal(
                *weight_map.shape_of(row, tiny_layers.CONFIG, 5), seed=index
            )
            for index, row in enumerate(rows)
        }
    )


class TranslateTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("tf1", ("output", "cls/squad", "cls/predictions")),
        ("huggingface", ("cls/predictions", "cls/seq_relationship")),
        ("huggingface", ("cls/tagging",)),
        ("keras_hub", ("output",)),
        ("model_garden", ("cls/predictions",)),
    )
    def test_is_undone_by_matching(self, weights_format, heads):
        ours = _weights("bert", "bert/pooler", *heads)
        theirs, left = translation.translate(
            ours, tiny_layers.CONFIG, weights_format
        )
        self.assertEqual(left, ())
        back, report = matching.match(
            tiny_layers.CONFIG,
            theirs.shapes,
            theirs.__getitem__,
            weights_format,
            "there",
            heads,
        )
        self.assertEqual(report.absent_heads, ())
        self.assertEqual(dict(back.shapes), dict(ours.shapes))
        for name, value in ours.items():
            self.assertAllEqual(back[name], value, name)
        for name, value in theirs.items():
            self.assertEqual(value.shape, theirs.shapes[name])
            self.assertTrue(value.flags.c_contiguous)

    def test_says_what_the_format_does_not_have(self):
        ours = _weights("bert", "cls/squad")
        theirs, left = translation.translate(
            ours, tiny_layers.CONFIG, "keras_hub"
        )
        self.assertEqual(
            left, ("cls/squad/output_weights", "cls/squad/output_bias")
        )
        self.assertLen(theirs, len(ours) - 2)


if __name__ == "__main__":
    tf.test.main()

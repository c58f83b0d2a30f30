"""Tests for export.tflite.build."""

import types

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.export.tflite import build as builds
from bert_tf.flags.export import TfliteConfig
from tests.support import tiny_builds


class BuildTest(tf.test.TestCase, parameterized.TestCase):
    def _require(self, model, **flags):
        config = TfliteConfig(
            model_dir="output/recurrent", output_file="a.tflite", **flags
        )
        builds._require_form(config, model)

    @parameterized.parameters(
        ({}, "None and None"),
        ({"batch_size": 1}, "1 and None"),
        ({"max_seq_length": 8}, "None and 8"),
        ({"input": "text"}, "None and None"),
    )
    def test_rejects_recurrent_heads_with_free_shapes(self, flags, given):
        recurrent = types.SimpleNamespace(lstms=["one"])
        with self.assertRaisesRegex(
            UserError, f"Received: {given} for the model in output/recurrent"
        ):
            self._require(recurrent, **flags)
        self._require(recurrent, batch_size=1, max_seq_length=8)
        self._require(recurrent, batch_size=1, input="text")

    def test_classifiers_have_fixed_shapes_by_default(self):
        for flags, expected in (
            ({"dynamic_shapes": False}, (1, 12)),
            ({"dynamic_shapes": False, "max_seq_length": 7}, (1, 7)),
            ({}, (None, None)),
            ({"batch_size": 3}, (3, None)),
        ):
            build = builds.prepare(tiny_builds.config("pair", **flags))
            self.assertEqual((build.batch_size, build.seq_length), expected)


if __name__ == "__main__":
    tf.test.main()

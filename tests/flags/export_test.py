"""Tests for bert_tf.flags.export."""

import itertools

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.flags import export
from bert_tf.flags.export import SavedModelConfig
from bert_tf.flags.export import TfliteConfig


def _config(**values):
    return SavedModelConfig(
        **{"model_dir": "model", "output_dir": "served/mrpc"} | values
    )


class SavedModelConfigTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ({"version": 0}, "--version must be at least 1 .*Received: 0"),
        ({"version": 2**63}, "--version must be .*below 9223372036854775808"),
        ({"max_seq_length": 2}, "--max_seq_length must be at least 3"),
        ({"top_k": 0}, "--top_k must be at least 1"),
        ({"doc_stride": 0}, "--doc_stride must be at least 1"),
        ({"buckets": "16,16"}, "names a value twice.*'16,16'"),
        ({"buckets": "32,16"}, "--buckets must rise"),
        ({"buckets": "16;32"}, "a whole number above 0.*separated by commas"),
        ({"model_name": "a/b"}, "--model_name must be a name without /"),
        ({"model_name": ""}, "--model_name must be a name"),
        ({"output_dir": "/"}, "--model_name must be a name"),
    )
    def test_invalid_flags_raise_one_sentence(self, values, message):
        with self.assertRaisesRegex(UserError, message):
            _config(**values)

    @parameterized.parameters(
        ({}, "mrpc"),
        ({"output_dir": "served/mrpc/"}, "mrpc"),
        ({"output_dir": "/a/b"}, "b"),
        ({"model_name": "nice"}, "nice"),
    )
    def test_model_name_defaults_to_the_directory(self, values, name):
        self.assertEqual(_config(**values).served_name, name)

    def test_buckets_are_read_as_numbers(self):
        self.assertEqual(
            _config(buckets="16, 32,99").bucket_lengths(), (16, 32, 99)
        )
        self.assertIsNone(_config().bucket_lengths())
        for first, second in itertools.pairwise(export.BUCKETS):
            self.assertBetween(second / first, 1.1, 1.5)


class TfliteConfigTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ({"batch_size": 0}, "--batch_size must be at least 1. Received: 0"),
        ({"max_seq_length": 2}, "--max_seq_length must be at least 3"),
        ({"top_k": 0}, "--top_k must be at least 1"),
        ({"max_drop": -0.5, "eval_file": "e"}, "--max_drop must be at least 0"),
        ({"max_drop": 2.0}, "--max_drop needs --eval_file. .*=2.0"),
        (
            {"output_file": "a/b/"},
            "must end in .tflite. Received: 'a/b/'; use 'a/b.tflite'",
        ),
        (
            {"representative_file": "r"},
            "--representative_file needs --quantization=full",
        ),
        ({"quantization": "full_int8"}, "needs --representative_file"),
        (
            {
                "quantization": "full_int8",
                "representative_file": "r",
                "input": "text",
            },
            "full_int8 is for --input=ids. Received: --input=text",
        ),
    )
    def test_invalid_flags_raise_one_sentence(self, values, message):
        with self.assertRaisesRegex(UserError, message):
            TfliteConfig(
                **{"model_dir": "model", "output_file": "a.tflite"} | values
            )


if __name__ == "__main__":
    tf.test.main()

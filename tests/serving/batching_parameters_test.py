"""Tests for bert_tf.serving.batching_parameters."""

from absl.testing import absltest
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.serving import batching_parameters
from bert_tf.serving.batching import BatchingOptions


class BatchingParametersTest(parameterized.TestCase):
    def read(self, text):
        return batching_parameters.read(
            self.create_tempfile("batching.config", text).full_path
        )

    def test_reads_what_tensorflow_serving_reads(self):
        self.assertEqual(
            self.read(
                """
                max_batch_size { value: 32 }
                batch_timeout_micros { value: 1500 }
                max_enqueued_batches { value: 7 }
                num_batch_threads { value: 3 }
                thread_pool_name { value: "pool" }
                allowed_batch_sizes: 1
                allowed_batch_sizes: 32
                pad_variable_length_inputs: false
                """
            ),
            BatchingOptions(32, 1500, 7, 3, (1, 32)),
        )

    def test_defaults_are_tensorflow_servings(self):
        self.assertEqual(self.read(""), BatchingOptions(1000, 0, 10, 0, ()))

    @parameterized.parameters(
        ("max_batch_size: 32", "must be a text file of BatchingParameters"),
        ("max_size { value: 1 }", "no field named"),
        ("max_batch_size { value: 0 }", "at least 1"),
        ("batch_timeout_micros { value: -1 }", "must not be negative"),
        ("pad_variable_length_inputs: true", "sets pad_variable_length_inputs"),
        ("allowed_batch_sizes: 4", "end with max_batch_size=1000"),
        (
            "max_batch_size { value: 4 } allowed_batch_sizes: [4, 2, 4]",
            "must rise",
        ),
    )
    def test_refuses_others(self, text, message):
        with self.assertRaisesRegex(UserError, message):
            self.read(text)


if __name__ == "__main__":
    absltest.main()

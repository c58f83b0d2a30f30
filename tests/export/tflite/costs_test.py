"""Tests for export.tflite.costs."""

import sys
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.export.tflite import costs
from bert_tf.inference.lite_model import LiteModel
from tests.support import eval_files


class CostsTest(tf.test.TestCase):
    def test_times_each_file_with_each_setting(self):
        content = eval_files.make("classification")
        with mock.patch.object(costs, "_ROUNDS", 2):
            found = costs.measure_latencies(
                {"none": content, "same": content}, [4, 9]
            )
        for of_file in found.values():
            self.assertEqual(
                [(one.length, one.threads) for one in of_file],
                [(4, 1), (9, 1), (4, 2), (9, 2)],
            )
            for one in of_file:
                self.assertBetween(one.milliseconds, 1e-3, 1e3)
        self.assertEqual(
            [one.setting for one in found["none"]][1:3],
            ["9 tokens, 1 thread", "4 tokens, 2 threads"],
        )

    def test_requests_have_the_shape_of_the_file(self):
        flags = {"batch_size": 4, "max_seq_length": 10}
        static = LiteModel(eval_files.make("classification", **flags))
        self.assertEqual(costs.request(static, 10)["input_ids"].shape, (4, 10))
        choices = LiteModel(eval_files.make("multiple_choice"))
        inputs = costs.request(choices, 5)
        self.assertEqual(inputs["input_mask"].shape, (1, 4, 5))
        self.assertAllEqual(inputs["input_mask"], np.ones([1, 4, 5]))
        self.assertIn("probabilities", choices.run(inputs))

    @pytest.mark.slow
    def test_requests_with_strings_have_the_shape_of_the_file(self):
        for name, shape in (
            ("classification", (1,)),
            ("multiple_choice", (1, 4)),
        ):
            model = LiteModel(eval_files.make(name, input="text"))
            inputs = costs.request(model, 5)
            for value in inputs.values():
                self.assertIn(value.shape, (shape, (1,)))
            self.assertIn(shape, [value.shape for value in inputs.values()])

    def test_memory_is_that_of_a_separate_process(self):
        content = eval_files.make("classification")
        ballast = np.ones(2**24)  # 128 MiB here are none there.
        # The process must not run the user's program again.
        program = self.create_tempfile(content="raise SystemExit(3)").full_path
        main = sys.modules["__main__"]
        with (
            mock.patch.object(main, "__spec__", None),
            mock.patch.object(main, "__file__", program, create=True),
        ):
            found = costs.measure_peak_memory(content, 8)
        self.assertBetween(found, len(content), ballast.nbytes)


if __name__ == "__main__":
    tf.test.main()

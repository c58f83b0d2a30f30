"""Tests for export.tflite.verify."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.export.tflite import verify as verification


class VerificationTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (None, [[0, 1, 2, 3, 4]]),
        (1, [[0], [1], [2], [3], [4]]),
        (2, [[0, 1], [2, 3], [4, 4]]),
        (7, [[0, 1, 2, 3, 4, 0, 0]]),
    )
    def test_calls_have_the_batch_size_of_the_file(self, size, expected):
        rows = {"ids": np.arange(5), "mask": 10 + np.arange(5)}
        calls = list(verification.split(rows, size))
        self.assertEqual([x["ids"].tolist() for x in calls], expected)
        for call in calls:
            self.assertAllEqual(call["mask"], call["ids"] + 10)

    def test_text_is_one_line(self):
        found = verification.Verification(
            3, 1200, 0.0123, None, {"agreement of probabilities": 0.98765}
        )
        self.assertEqual(
            found.text(),
            "3 calls, 1,200 values, largest difference 0.012, agreement of "
            "probabilities 0.9877",
        )


if __name__ == "__main__":
    tf.test.main()

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


def _measure(name, expected, actual, **others):
    return verification.measure_agreement(
        [{name: np.array(one)} | others for one in expected],
        [{name: np.array(one)} | others for one in actual],
    )


class AgreementTest(tf.test.TestCase):
    def test_agreement_is_over_all_calls(self):
        found = _measure(
            "probabilities",
            [[[0.9, 0.1], [0.4, 0.6]], [[0.7, 0.3]], [[0.2, 0.8]]],
            [[[0.6, 0.4], [0.5, 0.4]], [[0.9, 0.1]], [[0.1, 0.9]]],
        )
        self.assertEqual(found, {"agreement of probabilities": 0.75})

    def test_positions_are_chosen_from_each_row(self):
        found = _measure("start_logits", [[[1, 5, 2]]], [[[1, 2, 5]]])
        self.assertEqual(found, {"agreement of start_logits": 0.0})

    def test_independent_labels_are_counted_separately(self):
        found = verification.measure_agreement(
            [{"probabilities": np.array([[0.9, 0.6, 0.1, 0.2]])}],
            [{"probabilities": np.array([[0.6, 0.4, 0.3, 0.3]])}],
            is_multi_label=True,
        )
        self.assertEqual(found, {"agreement of probabilities": 0.75})

    def test_only_first_candidates_count(self):
        # Two rows with up to two masks and two candidates each.
        expected = [[[[4, 5], [6, 7]], [[8, 9], [-1, -1]]]]
        actual = [[[[4, 6], [7, 6]], [[8, 9], [-1, -1]]]]
        found = _measure(
            "token_ids", expected, actual, probabilities=np.ones([2, 2, 2])
        )
        self.assertEqual(found, {"agreement of token_ids": 0.75})

    def test_embeddings_have_a_lowest_cosine(self):
        found = _measure(
            "embedding", [[[1.0, 0.0], [0.0, 2.0]]], [[[3.0, 0.0], [2.0, 2.0]]]
        )
        self.assertAllClose(found, {"least cosine": 0.5**0.5})

    def test_scores_have_no_agreement(self):
        self.assertEqual(_measure("score", [[1.0]], [[2.0]]), {})


if __name__ == "__main__":
    tf.test.main()

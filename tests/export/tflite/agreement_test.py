"""Tests for export.on_device.agreement."""

import numpy as np
import tensorflow as tf

from bert_tf.export.tflite import agreement


def _measure(name, wanted, given, **others):
    return agreement.measure(
        [{name: np.array(one)} | others for one in wanted],
        [{name: np.array(one)} | others for one in given],
    )


class AgreementTest(tf.test.TestCase):
    def test_what_is_chosen_is_counted_over_all_calls(self):
        found = _measure(
            "probabilities",
            [[[0.9, 0.1], [0.4, 0.6]], [[0.7, 0.3]], [[0.2, 0.8]]],
            [[[0.6, 0.4], [0.5, 0.4]], [[0.9, 0.1]], [[0.1, 0.9]]],
        )
        self.assertEqual(found, {"agreement of probabilities": 0.75})

    def test_positions_are_chosen_from_each_row(self):
        found = _measure("start_logits", [[[1, 5, 2]]], [[[1, 2, 5]]])
        self.assertEqual(found, {"agreement of start_logits": 0.0})

    def test_labels_that_are_given_by_themselves_are_counted_each(self):
        found = agreement.measure(
            [{"probabilities": np.array([[0.9, 0.6, 0.1, 0.2]])}],
            [{"probabilities": np.array([[0.6, 0.4, 0.3, 0.3]])}],
            is_multi_label=True,
        )
        self.assertEqual(found, {"agreement of probabilities": 0.75})

    def test_of_candidates_the_first_counts(self):
        # Two rows of up to two masks with two candidates each.
        wanted = [[[[4, 5], [6, 7]], [[8, 9], [-1, -1]]]]
        given = [[[[4, 6], [7, 6]], [[8, 9], [-1, -1]]]]
        found = _measure(
            "token_ids", wanted, given, probabilities=np.ones([2, 2, 2])
        )
        self.assertEqual(found, {"agreement of token_ids": 0.75})

    def test_embeddings_have_a_least_cosine(self):
        found = _measure(
            "embedding", [[[1.0, 0.0], [0.0, 2.0]]], [[[3.0, 0.0], [2.0, 2.0]]]
        )
        self.assertAllClose(found, {"least cosine": 0.5**0.5})

    def test_of_scores_there_is_none(self):
        self.assertEqual(_measure("score", [[1.0]], [[2.0]]), {})


if __name__ == "__main__":
    tf.test.main()

"""Tests for bert_tf.demo.run; `make demo` tests the whole."""

import os

import numpy as np
import tensorflow as tf

from bert_tf.data.records import tfrecords
from bert_tf.demo import run as demo
from bert_tf.errors import UserError
from bert_tf.io import files


def _write_records(path):
    """Writes six predictions, three of them of token 7; labels 0 1 1."""
    length = np.arange(8)
    batch = {
        "input_ids": np.array([length + 5, length + 6, length + 7]),
        "input_mask": np.ones((3, 8), np.int64),
        "segment_ids": np.array([length > 3, length > 2, length > 4]) * 1,
        "masked_lm_positions": np.array([[1, 2, 3], [2, 4, 0], [5, 0, 0]]),
        "masked_lm_ids": np.array([[7, 9, 7], [7, 11, 0], [12, 0, 0]]),
        "masked_lm_weights": np.array(
            [[1, 1, 1], [1, 1, 0], [1, 0, 0]], np.float32
        ),
        "next_sentence_labels": np.array([[0], [1], [1]]),
    }
    with tfrecords.open_writers([path]) as (writer,):
        writer.write(batch)


class DemoTest(tf.test.TestCase):
    def test_guessing_predicts_the_most_common_label(self):
        path = os.path.join(self.create_tempdir().full_path, "a.tfrecord")
        _write_records(path)
        guess = demo.measure_guessing(path)
        # Padding (token 0, three times) is no prediction.
        self.assertAllClose(guess["masked_lm_accuracy"], 3 / 6)
        self.assertAllClose(guess["next_sentence_accuracy"], 2 / 3)

    def test_reads_the_format_of_the_original(self):
        path = os.path.join(self.create_tempdir().full_path, "eval_results.txt")
        files.write_text(path, "global_step = 7\nloss = 2.5\n")
        self.assertEqual(
            demo.read_eval_results(path), {"global_step": 7.0, "loss": 2.5}
        )

    def test_a_model_that_only_guesses_fails(self):
        guess = {"masked_lm_accuracy": 0.07, "next_sentence_accuracy": 0.55}
        good = {"masked_lm_accuracy": 0.30, "next_sentence_accuracy": 0.70}
        demo.judge(good, guess)
        for name in guess:
            bad = good | {name: guess[name] + 0.001}
            with self.assertRaisesRegex(UserError, f"held-out {name}"):
                demo.judge(bad, guess)


if __name__ == "__main__":
    tf.test.main()

"""Tests for bert_tf.experiments.pretraining_curves; more in report_test."""

import json
import pathlib

import tensorflow as tf

from bert_tf.experiments import pretraining_curves


class ReadTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self._folder = pathlib.Path(self.create_tempdir().full_path)

    def _tokens(self, words):
        """Returns the tokens of the only step of a run with these flags."""
        job = "pretraining-bert-0a1b2c3d"
        run = self._folder / "pretraining" / job
        run.mkdir(parents=True, exist_ok=True)
        row = {"step": 1, "masked_lm_loss": 9.0, "masked_lm_accuracy": 0.1}
        row |= {"examples_per_second": 5.0, "tokens_per_second": 500.0}
        (run / "train_metrics.jsonl").write_text(json.dumps(row))
        steps = self._folder / "steps"
        steps.mkdir(exist_ok=True)
        commands = [
            "python run/create_pretraining_data.py --input_file=a.txt",
            f"python run/pretrain.py {words} '--input_file=a b/*.tfrecord'",
        ]
        text = json.dumps({"commands": commands})
        (steps / f"{job}.json").write_text(text)
        curves = pretraining_curves.read(str(self._folder))
        return curves[0]["tokens"] if curves else None

    def test_batch_size_is_read_from_the_flag_file(self):
        # Examples of 100 tokens, as 500 / 5.
        self.assertEqual(self._tokens("--flagfile=base.flags"), [256 * 100])
        # Flags after it override it.
        words = "--flagfile=base_phase2.flags --train_batch_size=32"
        self.assertEqual(self._tokens(words), [32 * 100])
        # Of another machine, or cut: then there is no curve, but a report.
        self.assertIsNone(self._tokens("--flagfile=missing.flags"))
        self.assertIsNone(self._tokens("--train_batch_size=32 '"))


if __name__ == "__main__":
    tf.test.main()

"""Pretraining on damaged records that --max_corrupt_records leaves out."""

import os

import pytest
import tensorflow as tf

from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.errors import UserError
from tests.support import pretrain_case
from tests.support import record_files
from tests.support import tiny_pretraining


class CorruptRecordsTest(pretrain_case.PretrainCase):
    def setUp(self):
        super().setUp()
        tiny_pretraining.write_records(self.path("a.tfrecord"))

    def _damage(self):
        return record_files.damage(self.path("a.tfrecord"), 3)

    def pretrain(self, **flags):
        # Otherwise the records would be written again.
        flags |= {"input_file": self.path("a.tfrecord")}
        return super().pretrain(**flags)

    @pytest.mark.thorough
    def test_a_damaged_record_ends_the_run_or_is_skipped(self):
        flags = {"num_train_steps": 9, "iterations_per_loop": 9}
        offset = self._damage()
        place = f"a.tfrecord, record 3 at byte {offset}"
        with self.assertRaisesRegex(UserError, place):
            self.pretrain(**flags, output_dir=self.path("refused"))
        flags["max_corrupt_records"] = 1
        log = self.pretrain(**flags)
        lines = [line for line in log if "skipped, 1 of at most 1" in line]
        self.assertLen(lines, 1)
        self.assertIn(place, lines[0])

        # A resumed run skips the same record.
        flags["output_dir"] = self.path("two")
        self.pretrain(stop_at_step=5, **flags)
        self.pretrain(**flags)
        tensors = tf1_checkpoint.read(self.path("two"))
        for name, value in tf1_checkpoint.read(self.path("out")).items():
            self.assertAllEqual(tensors[name], value, name)

    @pytest.mark.slow
    def test_leaves_records_out_of_the_evaluation(self):
        self.pretrain(num_train_steps=1)
        self._damage()
        flags = {"do_train": False, "do_eval": True}
        with self.assertRaisesRegex(UserError, "a.tfrecord, record 3"):
            self.pretrain(**flags)
        log = self.pretrain(**flags, max_corrupt_records=2)
        self.assertIn("skipped, 1 of at most 2", "\n".join(log))
        self.assertTrue(os.path.exists(self.path("out", "eval_results.txt")))


if __name__ == "__main__":
    tf.test.main()

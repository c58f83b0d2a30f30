"""Tests of --overwrite_output_dir for pretraining data."""

import os

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.data import create as pretraining_data
from bert_tf.errors import UserError
from tests.support import record_case

_SHARDS = {"num_shards": 2, "generator": "streaming", "num_processes": 1}


class StartOverTest(record_case.RecordCase):
    @parameterized.parameters(
        ({}, _SHARDS),
        (_SHARDS, {}),
    )
    @pytest.mark.slow
    def test_another_data_set_is_replaced(self, before, after):
        pretraining_data.create(self._config(**before, random_seed=6))
        for name in ("notes.txt", "x.tfrecord.backup", "x-1.tfrecord"):
            self.write(f"out/{name}", "mine")
        pretraining_data.create(
            self._config(**after, overwrite_output_dir=True)
        )
        made = self._contents()
        for name in ("notes.txt", "x.tfrecord.backup", "x-1.tfrecord"):
            self.assertEqual(made.pop(name), b"mine")
        pretraining_data.create(
            self._config(**after, output_file=self.path("new/x.tfrecord"))
        )
        expected = self._contents("new")
        self.assertEqual(set(made), set(expected))
        for name in made:
            if name.endswith(".tfrecord"):
                self.assertEqual(made[name], expected[name])

    def test_files_that_no_run_wrote_stay(self):
        path = self.write("mine.tfrecord", "made by hand")
        with self.assertRaisesRegex(UserError, "No run has registered"):
            pretraining_data.create(
                self._config(output_file=path, overwrite_output_dir=True)
            )
        os.remove(path)
        pretraining_data.create(self._config(output_file=path))
        vocabulary = self.path("mine.tfrecord.vocab.txt")
        with self.assertRaisesRegex(UserError, "would remove --vocab_file"):
            pretraining_data.create(
                self._config(
                    output_file=path,
                    vocab_file=vocabulary,
                    overwrite_output_dir=True,
                )
            )
        self.assertTrue(os.path.exists(path))


if __name__ == "__main__":
    tf.test.main()

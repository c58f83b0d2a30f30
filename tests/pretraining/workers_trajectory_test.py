"""Tests that several workers train as one process does."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.io import files
from tests.support import killed_process
from tests.support import pretrain_case
from tests.support import tiny_pretraining
from tests.support import worker_processes

_STEPS = 50


class WorkersTrajectoryTest(pretrain_case.PretrainCase):
    @parameterized.parameters(
        # Dropout masks depend on the example, not on the worker.
        {
            "num_workers": 2,
            "dropout": 0.1,
            "micro_batch_size": "2",
            "unpad": "on",
        },
        # 7 examples for three workers: two rows of each step are blank.
        {
            "num_workers": 3,
            "dropout": 0.0,
            "micro_batch_size": "0",
            "unpad": "off",
        },
    )
    @pytest.mark.thorough
    def test_equals_one_device(
        self, num_workers, dropout, micro_batch_size, unpad
    ):
        config = dataclasses.replace(
            tiny_pretraining.CONFIG,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
        files.write_text(self.path("bert_config.json"), config.to_json())
        flags = tiny_pretraining.write_flags(
            self.folder,
            train_batch_size=7,
            micro_batch_size=micro_batch_size,
            learning_rate=1e-3,
            num_train_steps=_STEPS,
            iterations_per_loop=1,
            save_checkpoints_steps=_STEPS,
            xla="off",
        )
        with worker_processes.started(
            num_workers,
            *tiny_pretraining.command_line(
                "tests/support/pretrain_workers_program.py",
                **flags | {"output_dir": self.path("workers"), "unpad": unpad},
            ),
        ) as workers:
            logs = worker_processes.finish(workers)
        self.pretrain(**flags | {"unpad": "off"})

        expected = killed_process.read_metrics(self.path("out"))
        lines = killed_process.read_metrics(self.path("workers"))
        self.assertLen(lines, _STEPS)
        for line, other in zip(lines, expected, strict=True):
            self.assertAllClose(line, other, rtol=0, atol=1e-5)
        tensors = tf1_checkpoint.read(self.path("workers"))
        for name, value in tf1_checkpoint.read(self.path("out")).items():
            self.assertAllClose(tensors[name], value, 0, 1e-5, name)

        # All workers have the same weights, bit for bit.
        for index in range(num_workers):
            own = np.load(self.path(f"workers.worker{index}.npz"))
            for name in own.files:
                self.assertAllEqual(own[name], tensors[name], name)
        # Only the chief logs metrics.
        for index, log in enumerate(logs):
            self.assertEqual("Step 50 of 50" in log, index == 0, log)


if __name__ == "__main__":
    tf.test.main()

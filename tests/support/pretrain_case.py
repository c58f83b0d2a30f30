"""A base of test cases that pretrain tiny models in their own folder."""

import os
import shutil

import pytest

from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.commands import pretrain
from bert_tf.training import metrics as training_metrics
from tests.support import files_case
from tests.support import killed_process
from tests.support import made_once
from tests.support import tiny_pretraining


@pytest.mark.slow
class PretrainCase(files_case.FolderCase):
    """A base of test cases that pretrain."""

    def pretrain(self, **flags):
        """Runs pretraining and returns the lines of the log."""
        config = tiny_pretraining.make_config(self.folder, **flags)
        with self.assertLogs(level="INFO") as logs:
            pretrain.main(config)
        return [line.split(":", 2)[2] for line in logs.output]

    def copy_run(self, output_dir="out", **flags):
        """Copies the output of a run, which is made once for all tests."""
        name = "_".join(["pretraining", *(f"{x}={flags[x]}" for x in flags)])
        made = made_once.folder(
            name,
            lambda folder: pretrain.main(
                tiny_pretraining.make_config(folder, **flags)
            ),
        )
        shutil.copytree(os.path.join(made, "out"), self.path(output_dir))

    def metrics(self, output_dir="out"):
        return training_metrics.read(
            self.path(output_dir, training_metrics.METRICS_FILE)
        )

    def assert_same_run(self, one, other):
        """Compares the metrics and the newest checkpoints of two runs."""
        one, other = self.path(one), self.path(other)
        self.assertEqual(
            killed_process.read_metrics(one), killed_process.read_metrics(other)
        )
        tensors = tf1_checkpoint.read(other)
        for name, value in tf1_checkpoint.read(one).items():
            self.assertAllEqual(tensors[name], value, name)

"""A mix-in for test cases that pretrain tiny models in their own folder."""

import os

from bert_tf.pretraining.run import train_and_evaluate
from bert_tf.training import metrics as training_metrics
from tests.support import tiny_pretraining


class PretrainCase:
    """A mix-in for test cases that pretrain."""

    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def pretrain(self, **flags):
        """Runs pretraining and returns the lines of the log."""
        config = tiny_pretraining.make_config(self.folder, **flags)
        with self.assertLogs(level="INFO") as logs:
            train_and_evaluate(config)
        return [line.split(":", 2)[2] for line in logs.output]

    def metrics(self, output_dir="out"):
        return training_metrics.read(
            self.path(output_dir, training_metrics.METRICS_FILE)
        )

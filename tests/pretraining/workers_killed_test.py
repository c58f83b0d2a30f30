"""Tests that three workers stop when one dies or hangs, and can resume."""

import re
import shutil
import signal

import pytest
import tensorflow as tf

from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from tests.support import killed_process
from tests.support import pretrain_case
from tests.support import tiny_pretraining
from tests.support import worker_processes

_STEPS = 200
# Maximum time until the others stop, in seconds.
_PATIENCE = 180


class WorkersKilledTest(pretrain_case.PretrainCase):
    @pytest.mark.thorough
    def test_all_stop_and_resume_bit_for_bit(self):
        with self._started(3, "undisturbed") as workers:
            worker_processes.finish(workers)
        # The last worker, the chief, and one that hangs.
        step = 0
        for victim, number, name in (
            (2, signal.SIGKILL, "Worker 2 (at "),
            (0, signal.SIGKILL, "Worker 0 (the chief, at "),
            (1, signal.SIGSTOP, "Worker 1 (at "),
        ):
            with self._started(3, "out") as workers:
                killed_process.wait_for_step(
                    workers[0].process, self.path("out"), step + 40
                )
                workers[victim].kill(number)
                for index, worker in enumerate(workers):
                    if index != victim:
                        self._check_end(worker, name)
            step = killed_process.read_metrics(self.path("out"))[-1]["step"]
        shutil.copytree(self.path("out"), self.path("fewer"))
        with self._started(3, "out") as workers:
            worker_processes.finish(workers)
        self.assert_same_run("undisturbed", "out")

        # Fewer workers split the same batches differently.
        with self._started(2, "fewer") as workers:
            chiefs, _ = worker_processes.finish(workers)
        expected = tf1_checkpoint.read(self.path("undisturbed"))
        self.assertRegex(chiefs, "Resumed at step [0-9]")
        tensors = tf1_checkpoint.read(self.path("fewer"))
        for name, value in expected.items():
            self.assertAllClose(tensors[name], value, 0, 1e-5, name)

    def _started(self, count, output_dir):
        flags = tiny_pretraining.write_flags(
            self.folder,
            output_dir=self.path(output_dir),
            train_batch_size=7,
            learning_rate=1e-3,
            num_train_steps=_STEPS,
            iterations_per_loop=10,
            save_checkpoints_steps=20,
            keep_checkpoint_max=20,
            xla="off",
        )
        return worker_processes.started(
            count, *tiny_pretraining.command_line("run/pretrain.py", **flags)
        )

    def _check_end(self, worker, name):
        """Checks that a worker ends in time and names the lost worker."""
        self.assertEqual(worker.wait(_PATIENCE), 1, worker.log)
        # A slow worker may find that a second one has ended by then.
        self.assertRegex(worker.log, f"(?i)ERROR: .*{re.escape(name)}")
        self.assertIn("rerun the same command on all workers", worker.log)


if __name__ == "__main__":
    tf.test.main()

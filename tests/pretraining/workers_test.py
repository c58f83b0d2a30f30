"""Tests of several workers: equal results, lost workers, and SIGTERM."""

import dataclasses
import re
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.io import files
from bert_tf.training import checkpoints
from tests.support import killed_process
from tests.support import pretrain_case
from tests.support import record_files
from tests.support import tiny_pretraining
from tests.support import worker_processes

# Maximum time until the other workers stop, in seconds.
_PATIENCE = 180


class WorkersTest(pretrain_case.PretrainCase):
    def _started(
        self, count, output_dir="out", absent=(), script=None, **flags
    ):
        """Starts workers that pretrain."""
        flags = {"output_dir": self.path(output_dir), "xla": "off"} | flags
        return worker_processes.started(
            count,
            *tiny_pretraining.command_line(
                script or "run/pretrain.py",
                **tiny_pretraining.write_flags(self.folder, **flags),
            ),
            absent=absent,
        )

    def _assert_close(self, received, expected):
        tensors = tf1_checkpoint.read(self.path(received))
        for name, value in tf1_checkpoint.read(self.path(expected)).items():
            self.assertAllClose(tensors[name], value, 0, 1e-5, name)
        return tensors

    @parameterized.parameters(
        # Dropout masks depend on the example, so both splits draw the same.
        (2, 0.1, {"micro_batch_size": "2", "unpad": "on"}),
        # 7 examples for three workers, so two rows of each step are blank.
        (3, 0.0, {"micro_batch_size": "0", "unpad": "off"}),
    )
    @pytest.mark.thorough
    def test_trains_as_one_device(self, num_workers, dropout, parts):
        config = dataclasses.replace(
            tiny_pretraining.CONFIG,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
        files.write_text(self.path("bert_config.json"), config.to_json())
        flags = parts | {
            "train_batch_size": 7,
            "learning_rate": 1e-3,
            "num_train_steps": 50,
            "iterations_per_loop": 1,
            "save_checkpoints_steps": 50,
            "xla": "off",
        }
        program = "tests/support/pretrain_workers_program.py"
        with self._started(
            num_workers, "workers", script=program, **flags
        ) as workers:
            logs = worker_processes.finish(workers)
        self.pretrain(**flags | {"unpad": "off"})

        expected = killed_process.read_metrics(self.path("out"))
        lines = killed_process.read_metrics(self.path("workers"))
        self.assertLen(lines, 50)
        for line, other in zip(lines, expected, strict=True):
            self.assertAllClose(line, other, rtol=0, atol=1e-5)
        tensors = self._assert_close("workers", "out")
        # Workers must not drift apart, so all weights are equal bit for bit.
        for index in range(num_workers):
            own = np.load(self.path(f"workers.worker{index}.npz"))
            for name in own.files:
                self.assertAllEqual(own[name], tensors[name], name)
        # Only the chief logs metrics, or lines would appear once per worker.
        for index, log in enumerate(logs):
            self.assertEqual("Step 50 of 50" in log, index == 0, log)

    @pytest.mark.thorough
    def test_all_stop_when_one_is_lost_and_resume_bit_for_bit(self):
        flags = {
            "train_batch_size": 7,
            "learning_rate": 1e-3,
            "num_train_steps": 200,
            "iterations_per_loop": 10,
            "save_checkpoints_steps": 20,
            "keep_checkpoint_max": 20,
        }
        with self._started(3, "undisturbed", **flags) as workers:
            worker_processes.finish(workers)
        # A killed worker, a killed chief and a hang are noticed differently.
        step = 0
        for victim, number, name in (
            (2, signal.SIGKILL, "Worker 2 (at "),
            (0, signal.SIGKILL, "Worker 0 (the chief, at "),
            (1, signal.SIGSTOP, "Worker 1 (at "),
        ):
            with self._started(3, **flags) as workers:
                killed_process.wait_for_step(
                    workers[0].process, self.path("out"), step + 40
                )
                workers[victim].kill(number)
                for index, worker in enumerate(workers):
                    if index != victim:
                        self._check_end(worker, name)
            step = killed_process.read_metrics(self.path("out"))[-1]["step"]
        shutil.copytree(self.path("out"), self.path("fewer"))
        with self._started(3, **flags) as workers:
            worker_processes.finish(workers)
        self.assert_same_run("undisturbed", "out")

        # Two workers split batches differently, so sums round differently.
        with self._started(2, "fewer", **flags) as workers:
            chiefs, _ = worker_processes.finish(workers)
        self.assertRegex(chiefs, "Resumed at step [0-9]")
        self._assert_close("fewer", "undisturbed")

    def _check_end(self, worker, name):
        """Checks that a worker ends in time and names the lost worker."""
        self.assertEqual(worker.wait(_PATIENCE), 1, worker.log)
        # A slow worker may find two lost workers and name another one first.
        self.assertRegex(worker.log, f"(?i)ERROR: .*{re.escape(name)}")
        self.assertIn("rerun the same command on all workers", worker.log)

    @pytest.mark.slow
    def test_waiting_workers_stop_on_sigterm(self):
        with self._started(3, absent=[2]) as workers:
            for worker in workers:
                # From this line on, a worker handles SIGTERM while it waits.
                worker.wait_for("Waiting for ")
            workers[1].kill(signal.SIGTERM)
            logs = worker_processes.finish(workers)
        self.assertIn("another worker got SIGTERM", logs[0])
        self.assertIn("Stopped on SIGTERM", logs[1])

    @pytest.mark.thorough
    def test_all_stop_on_sigterm_and_one_resumes_alone(self):
        path = tiny_pretraining.write_records(self.path("a.tfrecord"))
        record_files.damage(path, 3)
        flags = {
            "input_file": path,
            "max_corrupt_records": 1,
            "num_train_steps": 100_000,
            "iterations_per_loop": 5,
            "save_checkpoints_steps": 1000,
        }
        with self._started(2, **flags) as workers:
            killed_process.wait_for_step(
                workers[0].process, self.path("out"), 20
            )
            workers[1].kill(signal.SIGTERM)
            logs = worker_processes.finish(workers)
        stops = [
            {*re.findall(r"Stopped at step (\d+) on SIGTERM", log)}
            for log in logs
        ]
        self.assertLen(stops[0], 1)
        self.assertEqual(stops[0], stops[1])
        for log in logs:
            self.assertIn("skipped, 1 of at most 1", log)
        self.assertIn("tokens/s", logs[0])
        self.assertNotIn("tokens/s", logs[1])
        steps = [line["step"] for line in self.metrics()]
        self.assertEqual(steps, sorted(set(steps)))
        step = int(stops[0].pop())
        store = checkpoints.CheckpointStore(self.path("out"))
        self.assertEqual(store.steps(), [step])
        log = "\n".join(self.pretrain(**flags, stop_at_step=step + 3))
        self.assertIn(f"Resumed at step {step}", log)
        self.assertIn("the number of workers was 2 and is 1 now", log)
        self.assertEqual(store.steps(), [step + 3, step])


if __name__ == "__main__":
    tf.test.main()

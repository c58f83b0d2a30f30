"""Tests that all workers stop when one gets SIGTERM."""

import os
import re
import signal
import time

import pytest
import tensorflow as tf

from bert_tf.training import checkpoints
from tests.support import pretrain_case
from tests.support import record_files
from tests.support import tiny_pretraining
from tests.support import worker_processes


class WorkersStoppedTest(pretrain_case.PretrainCase):
    def _wait_for_step(self, step):
        deadline = time.monotonic() + worker_processes.TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if any(line["step"] >= step for line in self.metrics()):
                return
            time.sleep(0.02)
        self.fail(f"Step {step} was never done.")

    @pytest.mark.slow
    def test_waiting_workers_stop(self):
        tiny_pretraining.write_records(self.path("a.tfrecord"))
        flags = {"input_file": self.path("a.tfrecord"), "num_train_steps": 5}
        command = tiny_pretraining.command_line(
            os.path.join("run", "pretrain.py"),
            **tiny_pretraining.write_flags(self.folder, **flags),
        )
        with worker_processes.started(3, *command, absent=[2]) as workers:
            for worker in workers:
                # Slow workers may also wait for each other; they listen now.
                worker.wait_for("Waiting for ")
            workers[1].kill(signal.SIGTERM)
            logs = worker_processes.finish(workers)
        self.assertIn("another worker got SIGTERM", logs[0])
        self.assertIn("Stopped on SIGTERM", logs[1])

    @pytest.mark.thorough
    def test_all_stop_and_one_resumes_alone(self):
        path = self.path("a.tfrecord")
        tiny_pretraining.write_records(path)
        record_files.damage(path, 3)
        flags = {
            "input_file": path,
            "max_corrupt_records": 1,
            "num_train_steps": 100_000,
            "iterations_per_loop": 5,
            "save_checkpoints_steps": 1000,
        }
        command = tiny_pretraining.command_line(
            os.path.join("run", "pretrain.py"),
            **tiny_pretraining.write_flags(self.folder, **flags),
            xla="off",
        )
        with worker_processes.started(2, *command) as workers:
            self._wait_for_step(20)
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
        # Only the chief logs the progress.
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

"""Tests that killed pretraining processes resume bit for bit."""

import os
import signal

import pytest
import tensorflow as tf

from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from tests.support import killed_process
from tests.support import tiny_pretraining

_SCRIPT = os.path.join("run", "pretrain.py")
_STEPS = 60


def _start(**flags):
    return killed_process.start(tiny_pretraining.command_line(_SCRIPT, **flags))


class PretrainResumeTest(tf.test.TestCase):
    @pytest.mark.thorough
    def test_killed_twice_equals_uninterrupted(self):
        folder = self.create_tempdir().full_path
        flags = tiny_pretraining.write_flags(
            folder,
            num_train_steps=_STEPS,
            iterations_per_loop=1,
            save_checkpoints_steps=7,
            unpad="on",
        )
        through = os.path.join(folder, "through")
        process = _start(**flags | {"output_dir": through})
        log, _ = process.communicate(timeout=killed_process.TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, 0, log)

        output_dir = flags["output_dir"]
        for step in (16, 34):
            process = _start(**flags)
            log = killed_process.kill_after(process, output_dir, step)
            self.assertEqual(process.returncode, -signal.SIGKILL, log)
        process = _start(**flags)
        log, _ = process.communicate(timeout=killed_process.TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, 0, log)

        self.assertRegex(log, "Resumed at step [1-9]")
        self.assertEqual(
            killed_process.read_metrics(output_dir),
            killed_process.read_metrics(through),
        )
        self.assertLen(killed_process.read_metrics(output_dir), _STEPS)
        state = tf1_checkpoint.read(output_dir)
        for name, value in tf1_checkpoint.read(through).items():
            self.assertAllEqual(state[name], value, name)


if __name__ == "__main__":
    tf.test.main()

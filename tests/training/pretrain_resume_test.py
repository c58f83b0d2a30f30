"""Pretraining that is killed and started again, as processes."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
import tensorflow as tf

from bert_tf.interop import tf1_checkpoint
from bert_tf.training import metrics_log
from tests import tiny_pretraining

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_SCRIPT = os.path.join("run", "pretrain.py")
_STEPS = 60
_TIMEOUT_SECONDS = 300
_SPEED = ("examples_per_second", "tokens_per_second")


def _start(**flags):
    return subprocess.Popen(
        [sys.executable, *tiny_pretraining.command_line(_SCRIPT, **flags)],
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": _ROOT, "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _lines(output_dir):
    lines = metrics_log.read(os.path.join(output_dir, metrics_log.METRICS_FILE))
    return [
        {name: value for name, value in line.items() if name not in _SPEED}
        for line in lines
    ]


def _kill_after(process, output_dir, step):
    """Kills a process without warning once it has done that step."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        # The file may just be written or replaced.
        with contextlib.suppress(OSError, tf.errors.OpError):
            if any(line["step"] >= step for line in _lines(output_dir)):
                break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    log, _ = process.communicate()
    return log


@pytest.mark.slow
class PretrainResumeTest(tf.test.TestCase):
    def test_killed_twice_equals_uninterrupted(self):
        folder = self.create_tempdir().full_path
        flags = tiny_pretraining.write_flags(
            folder,
            num_train_steps=_STEPS,
            iterations_per_loop=1,
            save_checkpoints_steps=7,
        )
        through = os.path.join(folder, "through")
        process = _start(**flags | {"output_dir": through})
        log, _ = process.communicate(timeout=_TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, 0, log)

        output_dir = flags["output_dir"]
        for step in (16, 34):
            process = _start(**flags)
            log = _kill_after(process, output_dir, step)
            self.assertEqual(process.returncode, -signal.SIGKILL, log)
        process = _start(**flags)
        log, _ = process.communicate(timeout=_TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, 0, log)

        self.assertRegex(log, "Resumed at step [1-9]")
        self.assertEqual(_lines(output_dir), _lines(through))
        self.assertLen(_lines(output_dir), _STEPS)
        state = tf1_checkpoint.read(output_dir)
        for name, value in tf1_checkpoint.read(through).items():
            self.assertAllEqual(state[name], value, name)

    def test_mistake_is_one_sentence_and_exit_status_1(self):
        folder = self.create_tempdir().full_path
        flags = tiny_pretraining.write_flags(folder, max_seq_length=17)
        process = _start(**flags)
        log, _ = process.communicate(timeout=_TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, 1, log)
        self.assertIn("ERROR: --max_seq_length must be at most", log)
        self.assertNotIn("Traceback", log)
        self.assertFalse(os.path.exists(flags["output_dir"]))


if __name__ == "__main__":
    tf.test.main()

"""Starts a script as a process and ends it in the middle of training."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import tensorflow as tf

from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.training import metrics as training_metrics
from tests.support.repository import ROOT

TIMEOUT_SECONDS = 300

_SPEED = ("examples_per_second", "tokens_per_second")


def start(command_line):
    """Starts a script, given its path and flags, in the repository."""
    return subprocess.Popen(
        [sys.executable, *command_line],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def assert_resumes(test, start, flags, num_steps):
    """Asserts that a run killed twice ends like an uninterrupted one.

    Args:
      test: The test case.
      start: Starts a process with flags.
      flags: The run's flags.
      num_steps: Its number of steps.

    Returns:
      The output directories of both runs.
    """
    output_dir = flags["output_dir"]
    through = f"{output_dir}_through"

    def finish(**flags):
        process = start(**flags)
        log, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        test.assertEqual(process.returncode, 0, log)
        return log

    finish(**flags | {"output_dir": through})
    for step in (16, 34):
        process = start(**flags)
        log = kill_after(process, output_dir, step)
        test.assertEqual(process.returncode, -signal.SIGKILL, log)
    test.assertRegex(finish(**flags), "Resumed at step [1-9]")
    lines = read_metrics(output_dir)
    test.assertEqual(lines, read_metrics(through))
    test.assertLen(lines, num_steps)
    state = tf1_checkpoint.read(output_dir)
    for name, value in tf1_checkpoint.read(through).items():
        test.assertAllEqual(state[name], value, name)
    return output_dir, through


def read_metrics(output_dir):
    """Returns the metrics lines of a run without the throughput."""
    lines = training_metrics.read(
        os.path.join(output_dir, training_metrics.METRICS_FILE)
    )
    return [
        {name: value for name, value in line.items() if name not in _SPEED}
        for line in lines
    ]


def kill_after(process, output_dir, step):
    """Kills a process once it has done a step; returns its output."""
    return end_after(process, output_dir, step, signal.SIGKILL)


def end_after(process, output_dir, step, signal_number):
    """Sends a process a signal once it has done a step; returns its output."""
    wait_for_step(process, output_dir, step)
    process.send_signal(signal_number)
    log, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    return log


def wait_for_step(process, output_dir, step):
    """Waits until a process has done a step, or has ended."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        # The process may be writing the file now, so reading may fail.
        with contextlib.suppress(OSError, tf.errors.OpError):
            if any(line["step"] >= step for line in read_metrics(output_dir)):
                break
        time.sleep(0.01)

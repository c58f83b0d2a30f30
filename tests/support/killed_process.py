"""Starts a script as a process and ends it in the middle of training."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import tensorflow as tf

from bert_tf.training import metrics as training_metrics

TIMEOUT_SECONDS = 300

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_SPEED = ("examples_per_second", "tokens_per_second")


def start(command_line):
    """Starts a script, given its path and flags, in the repository."""
    return subprocess.Popen(
        [sys.executable, *command_line],
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": _ROOT, "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


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
        # The process may be writing the file at this moment.
        with contextlib.suppress(OSError, tf.errors.OpError):
            if any(line["step"] >= step for line in read_metrics(output_dir)):
                break
        time.sleep(0.01)

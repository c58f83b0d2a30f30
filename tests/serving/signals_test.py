"""Tests for bert_tf.serving.signals: processes that hang when they stop."""

import signal
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

_PROGRAM = """
import os, sys, threading
from bert_tf.serving import signals

stopped = threading.Event()
signals.watch(stopped, float(sys.argv[1]))
print("ready", flush=True)
if sys.argv[2] == "stuck":
    os.read(os.pipe()[0], 1)  # In C: Python's own handlers do not run.
stopped.wait()
print("stopped", flush=True)
"""
_TIMEOUT_SECONDS = 60


class SignalsTest(parameterized.TestCase):
    @parameterized.parameters(
        (100, "waiting", [signal.SIGTERM], 0, "stopped"),
        (100, "waiting", [signal.SIGINT], 0, "stopped"),
        (0.1, "stuck", [signal.SIGTERM], 143, "took more than 0 seconds"),
        (
            *(100, "stuck", [signal.SIGINT, signal.SIGTERM]),
            *(143, "a second signal came"),
        ),
    )
    def test_signals(self, grace, state, numbers, status, message):
        with subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(grace), state],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            self.addCleanup(process.kill)
            self.assertEqual(process.stdout.readline(), "ready\n")
            for number in numbers:
                process.send_signal(number)
            log, _ = process.communicate(timeout=_TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, status, log)
        self.assertIn(message, log)


if __name__ == "__main__":
    absltest.main()

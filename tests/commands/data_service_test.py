"""Tests for run/data_service.py."""

import os
import signal
import threading

import pytest
import tensorflow as tf

from tests.support import forked_process
from tests.support import ports


@pytest.mark.slow
class DataServiceScriptTest(tf.test.TestCase):
    def test_ends_with_status_0_on_sigterm(self):
        port, worker_port = ports.free(2)
        path = os.path.join(self.create_tempdir().full_path, "log")
        with open(path, "wb") as log:
            process = forked_process.ForkedProcess(
                [
                    *("run/data_service.py", f"--port={port}"),
                    *(f"--worker_port={worker_port}", "--host=localhost"),
                ],
                dict(os.environ),
                log,
            )
        self.addCleanup(process.kill)
        while "Serving --tf_data_service" not in _read(path):
            self.assertIsNone(process.poll(), _read(path))
            threading.Event().wait(0.05)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(), 0, _read(path))


def _read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


if __name__ == "__main__":
    tf.test.main()

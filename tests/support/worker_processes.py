"""Starts the workers of a run as processes on this machine."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time

from tests.support import forked_process
from tests.support import ports
from tests.support.repository import ROOT

TIMEOUT_SECONDS = 300


def free_hosts(count):
    """Returns free addresses of this machine."""
    return tuple(f"127.0.0.1:{port}" for port in ports.free(count))


class Worker:
    """A worker process and its output.

    Args:
      arguments: The path of a script and its flags.
    """

    def __init__(self, arguments):
        # A file, because a pipe that nothing reads would fill up.
        self._log = tempfile.TemporaryFile()
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != "TF_CONFIG"
        }
        self.process = forked_process.ForkedProcess(
            arguments,
            environment
            | {
                "PYTHONPATH": str(ROOT),
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "CUDA_VISIBLE_DEVICES": "-1",
            },
            self._log,
        )

    @property
    def log(self):
        """The output so far."""
        # `read` would move the file position, where the process writes.
        number = self._log.fileno()
        size = os.fstat(number).st_size
        return os.pread(number, size, 0).decode(errors="replace")

    def wait_for(self, text):
        """Waits until the process has printed a text."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while text not in self.log:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{text!r} never came:\n{self.log}")
            time.sleep(0.02)

    def kill(self, number=signal.SIGKILL):
        """Sends the process a signal."""
        self.process.send_signal(number)

    def wait(self, timeout=TIMEOUT_SECONDS):
        """Waits until the process ends; returns its exit status."""
        return self.process.wait(timeout)

    def close(self):
        """Kills the process, if it has not ended yet."""
        self.process.kill()
        self.process.wait()
        self._log.close()


@contextlib.contextmanager
def started(count, *arguments, absent=()):
    """Yields workers that differ in --task_index; kills them at the end.

    Args:
      count: The number of workers.
      *arguments: The script and its flags.
      absent: Indices of workers that are not started.
    """
    flags = [
        f"--worker_hosts={','.join(free_hosts(count))}",
        "--distribution_strategy=multi_worker_mirrored",
    ]
    with contextlib.ExitStack() as stack:
        workers = []
        for index in sorted({*range(count)} - {*absent}):
            worker = Worker([*arguments, *flags, f"--task_index={index}"])
            stack.callback(worker.close)
            workers.append(worker)
        yield workers


def finish(workers):
    """Waits until all have ended successfully; returns their outputs."""
    for worker in workers:
        try:
            status = worker.wait()
        except subprocess.TimeoutExpired:
            status = "none yet"
        if status:
            logs = "\n".join(worker.log for worker in workers)
            raise AssertionError(f"Exit status {status}:\n{logs}")
    return [worker.log for worker in workers]

"""Starts the workers of a run as processes of this machine."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

TIMEOUT_SECONDS = 300

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


def free_hosts(count):
    """Returns addresses of this machine at which nobody listens."""
    with contextlib.ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(count)
        ]
        ports = [listener.getsockname()[1] for listener in listeners]
    return tuple(f"127.0.0.1:{port}" for port in ports)


class Worker:
    """A process, and what it prints.

    Args:
      arguments: What Python is to run.
    """

    def __init__(self, arguments):
        # Not a pipe: nobody reads while the workers run.
        self._log = tempfile.TemporaryFile()
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != "TF_CONFIG"
        }
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=_ROOT,
            env=environment
            | {
                "PYTHONPATH": _ROOT,
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "CUDA_VISIBLE_DEVICES": "-1",
            },
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    @property
    def log(self):
        """What it has printed so far."""
        # The process writes where the file's position is, so it stays there.
        number = self._log.fileno()
        size = os.fstat(number).st_size
        return os.pread(number, size, 0).decode(errors="replace")

    def wait_for(self, text):
        """Waits until it has printed a text."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while text not in self.log:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{text!r} never came:\n{self.log}")
            time.sleep(0.02)

    def kill(self, number=signal.SIGKILL):
        """Sends it a signal."""
        self.process.send_signal(number)

    def wait(self, timeout=TIMEOUT_SECONDS):
        """Waits until it has ended; returns its exit status."""
        return self.process.wait(timeout)

    def close(self):
        """Ends it, if it has not ended yet."""
        self.process.kill()
        self.process.wait()
        self._log.close()


@contextlib.contextmanager
def started(count, *arguments, absent=()):
    """Starts workers that differ in --task_index alone; ends them after.

    Args:
      count: How many.
      *arguments: The script and its flags.
      absent: Which of them are not started.
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
    """Waits until all have ended well; returns what each has printed."""
    for worker in workers:
        try:
            status = worker.wait()
        except subprocess.TimeoutExpired:
            status = "none yet"
        if status:
            logs = "\n".join(worker.log for worker in workers)
            raise AssertionError(f"Exit status {status}:\n{logs}")
    return [worker.log for worker in workers]

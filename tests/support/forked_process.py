"""Starts scripts as processes that are forked once TensorFlow is imported.

Run as a program, this module is the process that forks the scripts.
"""

import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


class ForkedProcess:
    """A script's process, with the methods of `subprocess.Popen`.

    Args:
      arguments: The path of a script and its flags.
      environment: The environment variables of the process.
      output: The open file for its standard output and standard error.
      error: Another open file for its standard error.
      folder: The folder to start in; by default the repository's root.

    Attributes:
      pid: The id of the process.
      returncode: The exit status, or None until `poll` or `wait` returns it.
    """

    def __init__(
        self, arguments, environment, output, error=None, folder=_ROOT
    ):
        self.returncode = None
        self._status, write_end = os.pipe()
        message = json.dumps([arguments, environment, folder]).encode()
        opened = [output.fileno(), (error or output).fileno(), write_end]
        socket.send_fds(_server(), [message], opened)
        os.close(write_end)
        self.pid = int(self._read_line())

    def _read_line(self):
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._status, 1)
            if not byte:
                raise RuntimeError("The forking process has ended.")
            line += byte
        return line

    def poll(self):
        """Returns the exit status, or None while the process runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout=None):
        """Waits until the process ends; returns its exit status."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            self.returncode = int(self._read_line())
            os.close(self._status)
        return self.returncode

    def send_signal(self, number):
        """Sends the process a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        """Kills the process, unless it has ended."""
        self.send_signal(signal.SIGKILL)


@functools.cache
def _server():
    """Starts the process that forks; returns the connection to it."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        subprocess.Popen(
            [sys.executable, __file__, str(its.fileno())],
            pass_fds=[its.fileno()],
            env=os.environ
            | {"PYTHONPATH": _ROOT, "CUDA_VISIBLE_DEVICES": "-1"},
        )
    return ours


def _main():
    # Importing TensorFlow starts no thread yet, so forking is safe.
    import tensorflow  # noqa: F401, ICN001

    # Otherwise each process copies all memory at its end, in a second.
    gc.freeze()
    connection = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, fds, _, _ = socket.recv_fds(connection, 1_000_000, 3)
        if not message:
            return
        if not os.fork():
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _fork_and_wait(*json.loads(message), *fds)
            return
        for number in fds:
            os.close(number)


def _fork_and_wait(arguments, environment, folder, output, error, status):
    """Runs a script in a child, and writes its id and its exit status."""
    process = os.fork()
    if process:
        os.write(status, b"%d\n" % process)
        _, ended = os.waitpid(process, 0)
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
        os._exit(0)
    os.close(status)
    os.dup2(output, 1)
    os.dup2(error, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    _main()

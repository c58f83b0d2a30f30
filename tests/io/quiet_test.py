"""Tests for bert_tf.io.quiet: TensorFlow's noise on standard error."""

import os
import pty
import signal
import subprocess
import sys
import textwrap

import tensorflow as tf
from absl import logging
from absl.testing import parameterized

from bert_tf.io import quiet

_CUINIT = (
    "2026-11-23 14:40:16.379142: E external/xla/cuda_platform.cc:51] failed "
    "call to cuInit: INTERNAL: UNKNOWN ERROR (303)\n"
)
_XLA = (
    "WARNING: All log messages before absl::InitializeLog() is called are "
    "written to STDERR\n"
    "I0000 00:00:1795444835.134971    8935 device_compiler.h:196] Compiled "
    "cluster using XLA!  This line is logged at most once.\n"
)
_OWN = "2026-11-23 14:40:16.379142: E tensorflow/core/x.cc:51] Out of memory.\n"


def _start(code, stderr):
    """Starts a program that drops noise; `say` writes as C++ does."""
    start = """
        import os, sys, time
        from bert_tf.io import quiet

        def say(text):
            os.write(2, text.encode())

        quiet.drop_noise()
        """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(start) + textwrap.dedent(code)],
        cwd=os.path.dirname(os.path.dirname(os.path.dirname(__file__))),
        stderr=stderr,
    )


def _run(code):
    """Returns the status of a program and what it wrote to a pipe."""
    process = _start(code, subprocess.PIPE)
    _, written = process.communicate(timeout=60)
    return process.returncode, written.decode()


def _run_on_terminal(code):
    """Returns the status of a program and what it wrote to a terminal."""
    ours, theirs = pty.openpty()
    process = _start(code, theirs)
    os.close(theirs)
    written = b""
    while True:
        try:
            written += os.read(ours, 1 << 16)
        except OSError:  # All of its users are gone.
            break
    os.close(ours)
    text = written.decode().replace("\r\n", "\n")
    return process.wait(timeout=60), text


class DropNoiseTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(_run, _run_on_terminal)
    def test_drops_whole_known_lines_only(self, run):
        status, written = run(
            f"""
            say({_CUINIT!r} + "a\\n" + {_OWN!r} + "\\r35/46" + {_XLA!r})
            say({_CUINIT[:90]!r})
            time.sleep(0.02)
            say({_CUINIT[90:]!r})
            say("b " + {_CUINIT[:40]!r})
            sys.exit(3)
            """
        )
        self.assertEqual(status, 3)
        self.assertEqual(written, f"a\n{_OWN}\r35/46b {_CUINIT[:40]}")

    @parameterized.parameters(_run, _run_on_terminal)
    def test_a_traceback_and_an_abort_arrive_complete(self, run):
        last = f"F0000 check failed {'x' * 5000}\n"
        status, written = run(
            f"""
            import traceback
            say({_CUINIT!r})
            try:
                raise KeyError("lost")
            except KeyError:
                traceback.print_exc()
            time.sleep(0.1)
            say({last!r})
            os.abort()
            """
        )
        self.assertEqual(status, -signal.SIGABRT)
        self.assertStartsWith(written, "Traceback (most recent call last)")
        self.assertEndsWith(written, "KeyError: 'lost'\n" + last)

    def test_partial_lines_pass_at_once(self):
        process = _start("say('35/46'); sys.stdin.read()", subprocess.PIPE)
        self.addCleanup(process.stderr.close)
        self.assertEqual(os.read(process.stderr.fileno(), 100), b"35/46")
        process.kill()
        process.wait()
        # The filter has ended too.
        self.assertEqual(process.stderr.read(), b"")

    def test_a_terminal_stays_one_for_python(self):
        _, written = _run_on_terminal(
            "sys.stderr.write(str([sys.stderr.isatty(), os.isatty(2)]))"
        )
        self.assertEqual(written, "[True, False]")

    def test_does_not_wait_for_other_writers(self):
        status, written = _run(
            """
            import subprocess
            subprocess.Popen(["sleep", "1.5"])
            say("end")
            """
        )
        self.assertEqual((status, written), (0, "end"))


class BelowTest(tf.test.TestCase):
    def test_restores_the_verbosity(self):
        logging.set_verbosity(logging.INFO)
        with quiet.below(logging.ERROR):
            self.assertEqual(logging.get_verbosity(), logging.ERROR)
        self.assertEqual(logging.get_verbosity(), logging.INFO)


if __name__ == "__main__":
    tf.test.main()

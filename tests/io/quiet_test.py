"""Tests for bert_tf.io.quiet: TensorFlow's noise on standard error."""

import os
import pty
import select
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
_CONVERTER = (
    "W0000 00:00:1795457571.377805   32454 tf_tfl_flatbuffer_helpers.cc:364] "
    "Ignored output_format.\n"
    "I0000 00:00:1795457571.451998   32454 mlir_graph_optimization_pass.cc:437]"
    " MLIR V1 optimization pass is not enabled\n"
)
_OWN = "2026-11-23 14:40:16.379142: E tensorflow/core/x.cc:51] Out of memory.\n"

_MESSAGES = (
    "Could not find cuda drivers on your machine, GPU will not be used.",
    "Loaded cuDNN version 91002",
    "NodeDef mentions attribute use_unbounded_threadpool which is not in the "
    "op definition: Op<name=MapDataset; signature=>",
    "StreamExecutor device (0): Host, Default Version",
    "TF-TRT Warning: Could not find TensorRT",
    "This TensorFlow binary is optimized to use available CPU instructions.",
    "Unable to register cuFFT factory: Attempting to register factory",
    "XLA service 0x7f3c40005b10 initialized for platform Host",
    "computation placer already registered. Please check linkage",
    "oneDNN custom operations are on. You may see slightly different results.",
)
_OTHERS = (
    "To enable the following instructions: AVX2 FMA, in other operations, "
    "rebuild TensorFlow with the appropriate compiler flags.\n"
    "INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\n"
)


def _start(code, stderr, patience=60):
    """Starts a program that drops noise; `say` writes as C++ does."""
    start = f"""
        import os, sys, time
        from bert_tf.io import quiet

        def say(text):
            os.write(2, text.encode())

        quiet._PATIENCE = {patience}
        quiet.drop_noise()
        """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(start) + textwrap.dedent(code)],
        cwd=os.path.dirname(os.path.dirname(os.path.dirname(__file__))),
        stderr=stderr,
        start_new_session=True,
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
            say({_CUINIT!r} + {_CONVERTER!r} + "a\\n" + {_OWN!r})
            say("\\r35/46" + {_XLA!r})
            say({_CUINIT[:90]!r})
            time.sleep(0.02)
            say({_CUINIT[90:]!r})
            say("b " + {_CUINIT[:40]!r})
            sys.exit(3)
            """
        )
        self.assertEqual(status, 3)
        self.assertEqual(written, f"a\n{_OWN}\r35/46b {_CUINIT[:40]}")

    def test_drops_every_known_line(self):
        start = "2026-11-23 14:40:16.379142: I external/xla/any.cc:51] "
        lines = "".join(f"{start}{text}\n" for text in _MESSAGES) + _OTHERS
        self.assertEqual(_run(f"say({lines!r})"), (0, ""))

    def test_drops_a_known_line_that_is_written_in_parts(self):
        status, written = _run(
            """
            say("INFO: ")
            time.sleep(0.02)
            say("Created TensorFlow Lite XNNPACK delegate for CPU.\\n")
            say("INFO: Other.\\n")
            """
        )
        self.assertEqual((status, written), (0, "INFO: Other.\n"))

    def test_signals_are_for_the_program(self):
        status, written = _run(
            """
            import signal
            numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            for number in numbers:
                signal.signal(number, lambda *_: None)
                os.killpg(0, number)
            time.sleep(0.2)
            say("saved")
            """
        )
        self.assertEqual((status, written), (0, "saved"))

    def test_all_is_written_when_the_program_has_ended(self):
        text = "".join(f"line {number}\n" for number in range(8000))
        path = os.path.join(self.create_tempdir().full_path, "log")
        with open(path, "w") as file:
            process = _start(f"quiet._MAX_WAITS = 6000; say({text!r})", file)
            self.assertEqual(process.wait(timeout=60), 0)
        with open(path) as file:
            self.assertEqual(file.read(), text)

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

    # The second may become noise; it passes after a moment.
    @parameterized.parameters("35/46", _CUINIT[:60])
    def test_partial_lines_pass(self, text):
        code = f"say({text!r}); time.sleep(1000)"
        process = _start(code, subprocess.PIPE, patience=0.1)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        ready, _, _ = select.select([process.stderr], [], [], 30)
        self.assertEqual(ready, [process.stderr])
        received = os.read(process.stderr.fileno(), 100)
        self.assertEqual(received.decode(), text)
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

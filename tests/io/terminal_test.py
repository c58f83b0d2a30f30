"""Tests for bert_tf.io.terminal: the log lines of scripts, and noise."""

import logging as python_logging
import os
import re
import signal
import subprocess
import sys
from unittest import mock

import tensorflow as tf
from absl import logging
from absl.testing import flagsaver
from absl.testing import parameterized

from bert_tf.io import progress
from bert_tf.io import terminal
from tests.support.streams import Stream

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_PROGRAM = """
import sys
from bert_tf.io import terminal
terminal.drop_noise()
import tensorflow as tf

@tf.function(jit_compile=True)
def double(x):
    return x + x

double(tf.ones([3]))
sys.stderr.write("end of the program\\n")
sys.stderr.flush()
# TensorFlow aborts the process.
tf.expand_dims(tf.zeros([1] * 254), 0)
"""


class ShowLogTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        # tf.test.main sets it, for a second copy of each line.
        self.enter_context(flagsaver.flagsaver(alsologtostderr=False))
        handler = logging.get_absl_handler()
        python_handler = handler.python_handler
        before = (
            logging.get_verbosity(),
            handler.level,
            python_handler.formatter,
            python_handler.stream,
            python_handler.filters[:],
            handler in python_logging.getLogger().handlers,
        )

        def restore():
            logging.set_verbosity(before[0])
            handler.setLevel(before[1])
            handler.setFormatter(before[2])
            python_handler.stream = before[3]
            python_handler.filters[:] = before[4]
            if not before[5]:
                python_logging.getLogger().removeHandler(handler)

        self.addCleanup(restore)

    def _log(self, verbosity, is_terminal=False):
        """Shows a few lines; returns what standard error got."""
        with mock.patch("sys.stderr", Stream(is_terminal)) as stream:
            terminal.show_log(verbosity)
            for shown in ("sometimes", "sometimes", "always"):
                logging.info("Step: %s", shown, extra={terminal.SHOWN: shown})
            logging.debug("Details.")
            python_logging.getLogger("matplotlib.font_manager").info("Fonts.")
            logging.info("Read %d rows.", 3)
            logging.warning("No labels.")
        text = stream.getvalue()
        times = re.findall(r"(?m)^\d\d:\d\d:\d\d ", text)
        self.assertLen(times, text.count("\n"))
        return re.sub(r"(?m)^[\d:]+ ", "", text).splitlines()

    @parameterized.parameters(
        (1, ["DEBUG: Details.", "Read 3 rows.", "WARNING: No labels."]),
        (0, ["Read 3 rows.", "WARNING: No labels."]),
        (-1, ["WARNING: No labels."]),
        (-2, []),
    )
    def test_shows_the_lines_of_a_verbosity(self, verbosity, expected):
        self.assertEqual(self._log(verbosity, is_terminal=True), expected)

    def test_files_get_lines_of_steps_at_intervals(self):
        self.assertEqual(
            self._log(0)[:3],
            ["Step: sometimes", "Step: always", "Read 3 rows."],
        )

    def test_lines_appear_above_a_bar(self):
        with mock.patch("sys.stderr", Stream(True)) as stream:
            terminal.show_log(0)
            with progress.bar(46, "training", "step") as bar:
                bar.update(35)
                logging.info("Saved.")
        parts = stream.getvalue().split("\r")
        (line,) = [part for part in parts if "Saved" in part]
        self.assertRegex(line, r"^\d\d:\d\d:\d\d Saved\.\n$")
        self.assertIn("training 35/46 |", parts[-1])


class DropNoiseTest(tf.test.TestCase):
    def _run(self, **environment):
        """Returns what a program that is aborted wrote to standard error."""
        kept = os.environ | {"PYTHONPATH": _ROOT}
        kept.pop("TF_CPP_MIN_LOG_LEVEL", None)
        process = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env=kept | environment,
            capture_output=True,
            text=True,
        )
        self.assertEqual(process.returncode, -signal.SIGABRT)
        return process.stderr

    def test_nothing_but_errors_is_written(self):
        written = self._run()
        self.assertStartsWith(written, "end of the program\n")
        self.assertIn("Too many dimensions", written)

    def test_all_is_written_if_the_user_wants_it(self):
        written = self._run(TF_CPP_MIN_LOG_LEVEL="0")
        self.assertIn("Compiled cluster using XLA", written)


if __name__ == "__main__":
    tf.test.main()

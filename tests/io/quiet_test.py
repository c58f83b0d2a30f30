"""Tests for bert_tf.io.quiet: TensorFlow's noise on standard error."""

import os
import signal
import subprocess
import sys

import tensorflow as tf
from absl import logging

from bert_tf.io import quiet

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_PROGRAM = """
import sys
from bert_tf.io import quiet
quiet.drop_noise()
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


class BelowTest(tf.test.TestCase):
    def test_restores_the_verbosity(self):
        logging.set_verbosity(logging.INFO)
        with quiet.below(logging.ERROR):
            self.assertEqual(logging.get_verbosity(), logging.ERROR)
        self.assertEqual(logging.get_verbosity(), logging.INFO)


if __name__ == "__main__":
    tf.test.main()

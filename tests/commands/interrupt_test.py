"""Tests of Ctrl-C in the first moments of a script."""

import os
import pathlib
import subprocess
import sys

import tensorflow as tf
from absl.testing import parameterized

_ROOT = pathlib.Path(__file__).resolve().parents[2]
# Runs a script, and sends Ctrl-C when it imports a module.
_PROGRAM = """
import runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            signal.raise_signal(signal.SIGINT)

module, script = sys.argv.pop(1), sys.argv.pop(1)
sys.meta_path.insert(0, Finder())
run = runpy.run_path if script.endswith(".py") else runpy.run_module
run(script, run_name="__main__")
"""


class InterruptTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("absl.flags", ["run/models.py"]),
        ("bert_tf.commands.models", ["run/models.py"]),
        ("absl.flags", ["bert_tf", "models"]),
        # When the flags are parsed.
        ("bert_tf.recipes.releases", ["bert_tf", "models"]),
    )
    def test_ctrl_c_during_imports_is_one_word(self, module, command):
        finished = subprocess.run(
            [sys.executable, "-c", _PROGRAM, module, *command],
            capture_output=True,
            text=True,
            check=False,
            cwd=_ROOT,
            env=os.environ | {"PYTHONPATH": str(_ROOT)},
        )
        self.assertEqual(finished.stderr, "Interrupted.\n")
        self.assertEqual(finished.returncode, 130)
        self.assertEqual(finished.stdout, "")


if __name__ == "__main__":
    tf.test.main()

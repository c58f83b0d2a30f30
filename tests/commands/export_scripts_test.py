"""Tests of the scripts in export/, as users run them."""

import importlib
import pathlib
import re
import subprocess
import sys

import pytest
import tensorflow as tf
from absl.testing import parameterized

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SCRIPTS = ("savedmodel.py", "tflite.py", "verify.py")


def _run(script, *flags, path=_ROOT):
    return subprocess.run(
        [sys.executable, f"export/{script}", *flags],
        cwd=_ROOT,
        env={"PYTHONPATH": str(path), "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        check=False,
    )


class ScriptsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*_SCRIPTS)
    def test_holds_no_logic(self, script):
        door = (_ROOT / "export" / script).read_text(encoding="utf-8")
        (module,) = re.findall(r"import (\w+)\nfrom bert_tf.flags", door)
        self.assertEqual(
            door.split('"""\n', 1)[1],
            f"\nfrom bert_tf.commands import {module}\n"
            "from bert_tf.flags import cli\n\n"
            'if __name__ == "__main__":\n'
            f"    cli.run({module}.main)\n",
        )
        command = importlib.import_module(f"bert_tf.commands.{module}")
        self.assertIn(f"python export/{script}", command.__doc__)

    @pytest.mark.slow
    def test_missing_export_prints_one_sentence_with_status_1(self):
        result = _run(
            "verify.py", "--export_dir=nothing", "--model_dir=nothing"
        )
        self.assertEqual(result.returncode, 1)
        (line,) = [x for x in result.stderr.splitlines() if "ERROR: " in x]
        self.assertStartsWith(line, "ERROR: --export_dir must be")
        self.assertNotIn("Traceback", result.stderr)
        self.assertEqual(result.stdout, "")


if __name__ == "__main__":
    tf.test.main()

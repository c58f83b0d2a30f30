"""Tests of the scripts in export/, as users run them."""

import ast
import pathlib
import subprocess
import sys

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
    def test_help_answers_without_tensorflow(self, script):
        # A module of that name that cannot be imported stands in the way.
        folder = self.create_tempdir()
        folder.create_file("tensorflow.py", "raise SystemExit('imported')")
        result = _run(script, "--help", path=f"{folder.full_path}:{_ROOT}")
        self.assertNotIn("imported", result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertRegex(result.stdout, rf"export/{script}:\n *--")

    @parameterized.parameters(*_SCRIPTS)
    def test_holds_no_logic(self, script):
        text = (_ROOT / "export" / script).read_text(encoding="utf-8")
        tree = ast.parse(text)
        code = text.splitlines()[tree.body[0].end_lineno :]
        self.assertLessEqual(len(code), 18)
        self.assertIn(f"python export/{script}", ast.get_docstring(tree))

    def test_what_is_no_export_is_one_sentence_and_status_1(self):
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

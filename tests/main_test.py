"""Tests of `bert-tf`: its help, its commands and its errors."""

import importlib
import re

import tensorflow as tf
from absl.testing import parameterized

import bert_tf
from bert_tf import __main__ as program
from tests.support import scripts
from tests.support.repository import ROOT


def _subcommand(script):
    return f"bert-tf {script[1].replace('_', '-')}"


class MainTest(tf.test.TestCase, parameterized.TestCase):
    def _run(self, *words, cwd=None):
        # Importing TensorFlow fails.
        folder = self.create_tempdir()
        folder.create_file("tensorflow.py", "raise SystemExit('imported')")
        return scripts.python(
            *("-m", "bert_tf", *words),
            cwd=cwd or folder.full_path,
            variables={"PYTHONPATH": f"{folder.full_path}:{ROOT}"},
        )

    def test_help_has_a_line_for_each_command(self):
        result = self._run("-h")
        self.assertEqual(result.returncode, 0, result.stderr)
        for name in program.names():
            module = f"bert_tf.commands.{name.replace('-', '_')}"
            title = importlib.import_module(module).__doc__.split("\n")[0]
            with self.subTest(name):
                self.assertRegex(result.stdout, rf"(?m)^  {name}  +{title[:9]}")
                title = re.sub(r"run/(\w+)\.py", _subcommand, title)
                self.assertIn(title, " ".join(result.stdout.split()))
        self.assertNotIn("run/pretrain.py", result.stdout)
        self.assertIn("export-savedmodel", program.names())
        for line in result.stdout.splitlines():
            self.assertLessEqual(len(line), 80, line)

    def test_names_every_script_in_its_order(self):
        scripts = {path.stem for path in (ROOT / "run").glob("*.py")}
        names = {name.replace("-", "_") for name in program.names()}
        self.assertLessEqual(scripts - {"__init__"}, names)
        self.assertEqual(names, set(program._ORDER) & names)

    @parameterized.parameters(
        ("predict", "-h"), ("fill-mask", "--help"), ("help", "fill_mask")
    )
    def test_help_shows_the_flags_of_a_command(self, *words):
        result = self._run(*words)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("--model_dir=TEXT", result.stdout)
        self.assertIn("\n  bert-tf ", result.stdout)
        self.assertNotIn("run/", result.stdout)

    @parameterized.parameters((("--version",),), (("predict", "--version"),))
    def test_version_flag_prints_the_version(self, words):
        result = self._run(*words)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, f"bert_tf {bert_tf.__version__}\n")

    def test_version_of_an_export_is_a_number(self):
        result = self._run("export-savedmodel", "--version=3", "--model_dir=no")
        self.assertIn("--output_dir", result.stderr)
        self.assertNotIn("--version", result.stderr + result.stdout)

    @parameterized.parameters(
        ("predit", "ERROR: predit is no command .* did you mean predict\\?"),
        ("savedmodel", "ERROR: savedmodel is no .* mean export-savedmodel\\?"),
        ("classify", "did you mean finetune-classifier\\?"),
        ("zebra", "ERROR: zebra is no command of bert-tf. `bert-tf -h` lists"),
        ("--port=1", "ERROR: Expected a command before the flags"),
    )
    def test_unknown_command_is_one_sentence(self, word, message):
        result = self._run(word)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, message)
        self.assertNotIn("Traceback", result.stderr)

    def test_errors_of_flags_are_those_of_the_script(self):
        result = self._run("pretrain", "--flagfile=bse.flags")
        self.assertEqual(result.returncode, 1)
        self.assertStartsWith(
            result.stderr,
            "ERROR: --flagfile=bse.flags: no such file. The package has the "
            "recipes base.flags, ",
        )


if __name__ == "__main__":
    tf.test.main()

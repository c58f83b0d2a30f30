"""Tests of the scripts in run/."""

import ast
import re
import subprocess
import sys

import tensorflow as tf
from absl.testing import parameterized

from tests.support import repository

_SCRIPTS = sorted(
    path.name
    for path in (repository.ROOT / "run").glob("*.py")
    if path.stem != "__init__"
)


class ScriptsTest(tf.test.TestCase, parameterized.TestCase):
    def test_help_answers_without_tensorflow(self):
        # This stub makes the import fail. import-linter checks other scripts.
        folder = self.create_tempdir()
        folder.create_file("tensorflow.py", "raise SystemExit('imported')")
        result = subprocess.run(
            [sys.executable, "run/pretrain.py", "--help"],
            cwd=repository.ROOT,
            env={"PYTHONPATH": f"{folder.full_path}:{repository.ROOT}"},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("--input_file=TEXT (required)", result.stdout)

    @parameterized.parameters(_SCRIPTS)
    def test_is_a_door_to_one_module(self, name):
        door = (repository.ROOT / "run" / name).read_text(encoding="utf-8")
        module = name.removesuffix(".py")
        self.assertEqual(
            door.split('"""\n', 1)[1],
            "\nfrom bert_tf import commands\n\n"
            'if __name__ == "__main__":\n'
            f'    commands.run("{module}")\n',
        )
        path = repository.ROOT / "bert_tf" / "commands" / name
        text = path.read_text(encoding="utf-8")
        # A longer command would be a library, which belongs elsewhere.
        self.assertLessEqual(len(text.splitlines()), 400)
        docstring = ast.get_docstring(ast.parse(text))
        self.assertIn(f"python run/{name}", docstring)

    def test_a_page_shows_exactly_the_scripts(self):
        page = (repository.ROOT / "docs" / "scripts.md").read_text(
            encoding="utf-8"
        )
        shown = set(re.findall(r"python run/(\w+\.py)", page))
        self.assertEqual(shown, set(_SCRIPTS))


if __name__ == "__main__":
    tf.test.main()

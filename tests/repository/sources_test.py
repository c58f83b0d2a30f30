"""Tests of the repository's sources, the tests among them."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.support import repository
from tools import check_titles


class SourceTest(tf.test.TestCase):
    def test_contains_no_path_of_one_machine(self):
        pattern = re.compile(
            r"/(home|root|Users|tmp|work)/\w|https?://(?!127\.0\.0\.1)\d+\.\d+"
        )
        suffixes = (
            *(".py", ".sh", ".txt", ".in", ".md", ".flags", ".toml"),
            *(".json", ".yaml", ".yml", ".ipynb"),
        )
        for path in repository.files(*suffixes, "Makefile", "BUILD"):
            text = (repository.ROOT / path).read_text(encoding="utf-8")
            if path.name != "sources_test.py":
                self.assertIsNone(pattern.search(text), str(path))


class TestFilesTest(tf.test.TestCase):
    """Under Bazel a pytest-style file would run nothing and pass."""

    def test_runs_as_a_program(self):
        for path in sorted((repository.ROOT / "tests").rglob("*_test.py")):
            with self.subTest(str(path.relative_to(repository.ROOT))):
                self._check_test_file(path)

    def _check_test_file(self, path):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.assertIn(
            ast.unparse(tree.body[-1]).replace("'", '"'),
            [
                'if __name__ == "__main__":\n    tf.test.main()',
                'if __name__ == "__main__":\n    absltest.main()',
            ],
        )
        calls = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("tf.test.main", "absltest.main")
        ]
        self.assertLen(calls, 1, "It ends the program: no test below it runs.")
        classes = [
            node
            for node in tree.body
            if isinstance(node, ast.ClassDef)
            # A base from tests/support is a TestCase, too.
            and any(ast.unparse(b).endswith("Case") for b in node.bases)
        ]
        self.assertTrue(any(_test_functions(node.body) for node in classes))
        self.assertEmpty(
            _test_functions(tree.body),
            "Functions outside a class run under pytest only.",
        )

    def test_names_are_found_by_pytest_and_bazel(self):
        for path in (repository.ROOT / "tests").rglob("*.py"):
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef) and _test_functions(
                    node.body
                ):
                    self.assertEndsWith(path.name, "_test.py")


def _test_functions(body):
    return [
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test")
    ]


class PackedWeightsTest(tf.test.TestCase):
    def test_only_serving_and_prediction_assume_frozen_weights(self):
        self.assertEqual(
            {
                str(path.relative_to(repository.ROOT))
                for path in (repository.ROOT / "bert_tf").rglob("*.py")
                if "packed_weights.assume()" in path.read_text("utf-8")
            },
            {
                "bert_tf/commands/predict.py",
                "bert_tf/export/served_model.py",
                "bert_tf/serving/precision.py",
            },
        )


class TitlesTest(tf.test.TestCase, parameterized.TestCase):
    def test_refuses_clauses_without_a_head(self):
        folder = self.create_tempdir()
        path = folder.create_file(
            "module.py",
            '"""What of it is there."""\n\n\n'
            'def f():\n    """Writes what it reads."""\n\n\n'
            'class C:\n    """Of a file."""\n',
        )
        self.assertEqual(
            list(check_titles.bad_titles(pathlib.Path(path.full_path))),
            [(1, "What of it is there."), (8, "Of a file.")],
        )


# Logical devices can be set only before TensorFlow's runtime starts.
_IMPORT_ALL = """
import importlib, pkgutil
import bert_tf
for module in pkgutil.walk_packages(bert_tf.__path__, "bert_tf."):
    if "beam" not in module.name and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
import tensorflow as tf
cpu, = tf.config.list_physical_devices("CPU")
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
assert len(tf.config.list_logical_devices("CPU")) == 2
"""


class ImportTest(tf.test.TestCase):
    @pytest.mark.slow
    def test_imports_do_not_start_the_runtime(self):
        result = subprocess.run(
            [sys.executable, "-c", _IMPORT_ALL],
            cwd=repository.ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    tf.test.main()

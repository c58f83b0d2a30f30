"""Tests of the repository's sources, the tests among them."""

import ast
import pathlib
import re

import pytest
import tensorflow as tf

from tests.support import repository
from tests.support import scripts
from tools import check_prose


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
                "bert_tf/serving/preflight.py",
            },
        )


_BAD_PROGRAM = '''"""What of it is there."""

# Those of all its parts.
# A comment names its consequence, so it is read once.


def test_labels():
    """Writes what it reads."""


def test_labels_are_sorted():
    """Of {words}."""
    return 1  # Perhaps.
'''


class ProseTest(tf.test.TestCase):
    def _bad_prose(self, text):
        path = self.create_tempfile("module_test.py", text).full_path
        return list(check_prose.bad_prose(pathlib.Path(path)))

    def test_finds_titles_comments_names_and_sentences(self):
        words = " ".join(["word"] * 35)
        self.assertEqual(
            sorted(self._bad_prose(_BAD_PROGRAM.format(words=words))),
            [
                (1, "What of it is there."),
                (
                    3,
                    "# Those of all its parts.\n"
                    "A comment names its consequence, so it is read once.",
                ),
                (7, "test_labels"),
                (11, f"Of {words}."),
                (12, f"Of {words}"),
            ],
        )

    def test_finds_comments_that_are_fragments(self):
        for comment in (
            "Those of its parts.",
            "Not words, which are less.",
            "Perhaps.",
        ):
            program = f"x = 1\n# {comment}\ny = 2\n"
            self.assertEqual(
                self._bad_prose(program), [(2, f"# {comment}")], comment
            )
        self.assertEmpty(self._bad_prose("# noqa: E501\n# https://x.y\n"))

    def test_sentences_end_with_their_paragraph_and_code_is_none(self):
        words = " ".join(["word"] * 20)
        for text in (
            f"{words}.\n{words}.",
            f"{words}\n\n{words}",
            f"- {words}\n- {words}",
            f"{words}\n\n    {words} {words}",
        ):
            self.assertEmpty(list(check_prose.long_sentences(text)), text)
        text = f"Title.\n\nSee e.g. {words}\n{words}"
        self.assertEqual(
            [line for line, _ in check_prose.long_sentences(text)], [3]
        )

    def test_pages_have_phrases_and_sentences_outside_of_code(self):
        words = 20 * "word "
        page = (
            "One.\n\n```bash\n# that of\n```\n\nThe score and that of ours.\n"
            f"\n{words}one: {words}two\n"
        )
        self.assertEqual(
            list(check_prose.bad_page(page)),
            [(7, "that of"), (9, f"{words}one: {words}two")],
        )

    def test_a_module_has_one_name_where_none_else_takes_it(self):
        texts = {
            "a.py": "from bert_tf import errors\n",
            "b.py": "from bert_tf import errors\n",
            "c.py": "from bert_tf import errors as e\n",
            "d.py": "from bert_tf import errors as e\nerrors = []\n",
        }
        folder = pathlib.Path(self.create_tempdir().full_path)
        for name, text in texts.items():
            (folder / name).write_text(text)
        self.assertEqual(
            [x for x, _ in check_prose.bad_aliases(sorted(folder.iterdir()))],
            [f"{folder / 'c.py'}:1"],
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
        result = scripts.python("-c", _IMPORT_ALL, cwd=repository.ROOT)
        self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    tf.test.main()

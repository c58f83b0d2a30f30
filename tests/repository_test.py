"""Tests of the repository as a whole: scripts, pins, README, sources."""

import ast
import contextlib
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import tensorflow as tf
import yaml
from absl import flags
from absl.testing import parameterized
from packaging import requirements

import bert_tf
from bert_tf import errors
from bert_tf.flags import cli
from bert_tf.flags.pretrain import PretrainConfig
from bert_tf.io import files
from tests.support import tiny_model
from tools import check_titles
from tools import release

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_SCRIPTS = sorted(
    path.name
    for path in (_ROOT / "run").glob("*.py")
    if path.stem != "__init__"
)
_DISTRIBUTIONS = {
    "absl": "absl-py",
    "sklearn": "scikit-learn",
    "tensorflow_serving": "tensorflow-serving-api",
}
_FLAG_FILES = sorted(path.name for path in _ROOT.glob("*.flags"))


def _files(*suffixes):
    """Yields the repository's files, relative to its root."""
    for folder, subfolders, names in os.walk(_ROOT):
        folder = pathlib.Path(folder).relative_to(_ROOT)
        subfolders[:] = [
            name
            for name in subfolders
            if not (name.startswith(".") or name.startswith("bazel-"))
            and str(folder / name) not in ("build", "data", "dist", "output")
        ]
        for name in names:
            if name.endswith(suffixes):
                yield folder / name


def _pins(name):
    lines = (_ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _requirements_of_the_wheel():
    """Returns the requirements of the wheel, and those of each extra."""
    text = (_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    read = requirements.Requirement
    extras = project["optional-dependencies"].items()
    return (
        [read(line) for line in project["dependencies"]],
        {name: [read(line) for line in lines] for name, lines in extras},
    )


class TestFilesTest(tf.test.TestCase):
    """Under Bazel a pytest-style file would run nothing and pass."""

    def test_runs_as_a_program(self):
        for path in sorted((_ROOT / "tests").rglob("*_test.py")):
            with self.subTest(str(path.relative_to(_ROOT))):
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
        classes = [
            node
            for node in tree.body
            if isinstance(node, ast.ClassDef)
            and any(ast.unparse(b).endswith("TestCase") for b in node.bases)
        ]
        self.assertTrue(any(_test_functions(node.body) for node in classes))
        self.assertEmpty(
            _test_functions(tree.body),
            "Functions outside a class run under pytest only.",
        )

    def test_names_are_found_by_pytest_and_bazel(self):
        for path in (_ROOT / "tests").rglob("*.py"):
            if re.search(r"^class .*TestCase\)", path.read_text("utf-8"), re.M):
                self.assertEndsWith(path.name, "_test.py")


def _test_functions(body):
    return [
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test")
    ]


def _changed_flags(first, second):
    """Returns the names of the flags in which two configurations differ."""
    return {
        field
        for field in vars(first)
        if getattr(first, field) != getattr(second, field)
    }


class PackedWeightsTest(tf.test.TestCase):
    def test_only_serving_and_prediction_assume_frozen_weights(self):
        self.assertEqual(
            {
                str(path.relative_to(_ROOT))
                for path in (_ROOT / "bert_tf").rglob("*.py")
                if "packed_weights.assume()" in path.read_text("utf-8")
            },
            {
                "bert_tf/commands/predict.py",
                "bert_tf/export/served_model.py",
                "bert_tf/serving/precision.py",
            },
        )


class FlagFilesTest(tf.test.TestCase, parameterized.TestCase):
    def _parse(self, *args):
        values = flags.FlagValues()
        read_config = cli.define_flags(PretrainConfig, values)
        values(["pretrain.py", *args])
        return read_config()

    def setUp(self):
        super().setUp()
        # Nested flag files have paths from the root.
        self.enter_context(contextlib.chdir(_ROOT))

    @parameterized.parameters(_FLAG_FILES)
    def test_parses_into_an_existing_configuration(self, name):
        config = self._parse(f"--flagfile={name}")
        bert_config = files.read_bert_config(config.bert_config_file)
        self.assertLessEqual(
            config.max_seq_length, bert_config.max_position_embeddings
        )
        self.assertTrue(config.do_train and config.do_eval)
        # The original masks round(15%), and at least as many must fit.
        self.assertEqual(
            config.max_predictions_per_seq,
            -(-config.max_seq_length * 15 // 100),
        )

    @parameterized.parameters("base", "large", "tiny")
    def test_phase_2_continues_phase_1(self, name):
        first = self._parse(f"--flagfile={name}.flags")
        second = self._parse(f"--flagfile={name}_phase2.flags")
        self.assertEqual(first.stop_at_step * 10, first.num_train_steps * 9)
        self.assertEqual(second.stop_at_step, second.num_train_steps)
        self.assertEqual(
            _changed_flags(first, second),
            {
                "input_file",
                "max_seq_length",
                "max_predictions_per_seq",
                "stop_at_step",
            },
        )

    def test_lamb_phase_2_begins_where_phase_1_ends(self):
        first = self._parse("--flagfile=lamb.flags")
        second = self._parse("--flagfile=lamb_phase2.flags")
        self.assertEqual(first.stop_at_step, first.num_train_steps)
        self.assertEqual(second.schedule_start_step, first.num_train_steps)
        self.assertEqual(second.stop_at_step, second.num_train_steps)
        self.assertEqual(
            _changed_flags(first, second),
            {
                "input_file",
                "max_seq_length",
                "max_predictions_per_seq",
                "train_batch_size",
                "learning_rate",
                "num_warmup_steps",
                "num_train_steps",
                "schedule_start_step",
                "stop_at_step",
            },
        )

    def test_base_is_the_recipe_of_the_paper(self):
        config = self._parse("--flagfile=base.flags")
        self.assertEqual(config.train_batch_size, 256)
        self.assertEqual(config.learning_rate, 1e-4)
        self.assertEqual(config.num_warmup_steps, 10000)
        self.assertEqual(config.num_train_steps, 1000000)
        self.assertEqual(config.optimizer, "bert_adam")
        self.assertEqual(config.weight_decay_rate, 0.01)
        self.assertEqual(config.input_file, "data/pretraining/*.tfrecord")
        self.assertEqual(config.vocab_file, "data/vocab.txt")

    def test_flags_after_the_file_override_it(self):
        config = self._parse("--flagfile=base.flags", "--num_train_steps=1")
        self.assertEqual(config.num_train_steps, 1)


class ScriptsTest(tf.test.TestCase, parameterized.TestCase):
    def test_help_answers_without_tensorflow(self):
        # Importing TensorFlow fails. import-linter checks the other scripts.
        folder = self.create_tempdir()
        folder.create_file("tensorflow.py", "raise SystemExit('imported')")
        result = subprocess.run(
            [sys.executable, "run/pretrain.py", "--help"],
            cwd=_ROOT,
            env={"PYTHONPATH": f"{folder.full_path}:{_ROOT}"},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("--input_file=TEXT (required)", result.stdout)

    @parameterized.parameters(_SCRIPTS)
    def test_holds_no_logic(self, name):
        door = (_ROOT / "run" / name).read_text(encoding="utf-8")
        module = name.removesuffix(".py")
        self.assertEqual(
            door.split('"""\n', 1)[1],
            "\nfrom bert_tf import commands\n\n"
            'if __name__ == "__main__":\n'
            f'    commands.run("{module}")\n',
        )
        path = _ROOT / "bert_tf" / "commands" / name
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        code = text.splitlines()[tree.body[0].end_lineno :]
        self.assertLessEqual(len(code), 16)
        self.assertIn(f"python run/{name}", ast.get_docstring(tree))

    def test_a_page_shows_exactly_the_scripts(self):
        page = (_ROOT / "docs" / "scripts.md").read_text(encoding="utf-8")
        shown = set(re.findall(r"python run/(\w+\.py)", page))
        self.assertEqual(shown, set(_SCRIPTS))


class ReadmeTest(tf.test.TestCase):
    @pytest.mark.slow
    def test_notebook_example_runs(self):
        readme = (_ROOT / "README.md").read_text(encoding="utf-8")
        example = re.search(r"```python\n(.*?)```", readme, re.S).group(1)
        folder = self.create_tempdir().full_path
        # A path of that name comes before the released model.
        tiny_model.write(os.path.join(folder, "bert-base-uncased"))
        names = {}
        with contextlib.chdir(folder):
            exec(example, names)
        self.assertEqual(names["model"].labels, ("bad", "good"))
        self.assertLen(example.splitlines(), 5)
        loss = names["model"].history.history["loss"]
        self.assertLen(loss, 2)
        self.assertTrue(np.isfinite(loss).all())

    def test_notebook_next_to_the_clone_finds_the_library(self):
        # A folder named bert_tf, like the clone's, is not a package.
        folder = self.create_tempdir()
        folder.mkdir("bert_tf")
        variables = {k: os.environ[k] for k in os.environ if k != "PYTHONPATH"}
        found = subprocess.run(
            [
                sys.executable,
                "-c",
                "from importlib import util; print(util.find_spec('bert_tf'))",
            ],
            check=True,
            capture_output=True,
            text=True,
            cwd=folder.full_path,
            env=variables,
        ).stdout
        self.assertIn(os.path.join("bert_tf", "__init__.py"), found)

    def test_every_folder_and_page_is_named(self):
        readme = (_ROOT / "README.md").read_text(encoding="utf-8")
        self.assertLessEqual(readme.count("\n"), 150)
        named = readme.split("## What is where")[1]
        for path in (_ROOT / "docs").glob("*.md"):
            self.assertIn(path.name, named)
        for folder in ("bert_tf", "run", "export", "notebooks", "tests"):
            self.assertIn(f"{folder}/", named)


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


class RequirementsTest(tf.test.TestCase):
    def test_every_direct_dependency_is_pinned(self):
        for name in (
            "requirements.in",
            "requirements-docs.txt",
            "requirements-test.txt",
            "requirements-test-no-deps.txt",
        ):
            for line in _pins(name):
                self.assertRegex(line, r"^[a-z0-9-]+==[0-9][0-9.]*$")

    def test_requirements_are_the_pins_and_the_project(self):
        self.assertEqual(
            _pins("requirements.txt"), [*_pins("requirements.in"), "-e ."]
        )

    def test_lock_holds_every_pin_with_hashes_and_no_host(self):
        lock = (_ROOT / "requirements_lock.txt").read_text(encoding="utf-8")
        for line in _pins("requirements.in") + _pins("requirements-test.txt"):
            self.assertRegex(lock, rf"(?m)^{re.escape(line)} \\\n +--hash=")
        self.assertNotRegex(lock, r"://|--(extra-)?index-url|--find-links")

    def test_wheel_takes_the_pins(self):
        pins = dict(pin.split("==") for pin in _pins("requirements.in"))
        pins |= dict(
            pin.split("==")
            for pin in _pins("requirements-beam.txt")
            if pin.startswith("apache-beam")
        )
        base, extras = _requirements_of_the_wheel()
        for requirement in [*base, *itertools.chain(*extras.values())]:
            if requirement.name in pins:
                self.assertIn(pins[requirement.name], requirement.specifier)
            self.assertNotIn("==", str(requirement.specifier))
        both = [x for x in base if re.match("tensorflow(-text)?$", x.name)]
        self.assertLen(both, 2)
        for requirement in both:
            self.assertIn(">=2.20", str(requirement))
            self.assertIn("<2.21", str(requirement))

    def test_imports_are_in_the_wheel_or_an_extra(self):
        base, extras = _requirements_of_the_wheel()
        names = {x.name for x in base}
        self.assertEqual(
            set(extras),
            {
                "all",
                "beam",
                "corpus",
                "gpu",
                "interop",
                "parquet",
                "serve",
                "tflite",
            },
        )
        for package, extra in errors.EXTRAS.items():
            name = package.replace("_", "-")
            self.assertNotIn(name, names)
            self.assertIn(name, [x.name for x in extras[extra]])
        names |= {x.replace("_", "-") for x in errors.EXTRAS}
        # TensorFlow brings these, in versions that fit it.
        names |= {"google", "grpc", "tensorboard", "bert-tf"}
        # Imported only to read a pytorch_model.bin.
        names.add("torch")
        for path in _files(".py"):
            if path.parts[0] == "bert_tf":
                for module in _imported(path) - sys.stdlib_module_names:
                    name = _DISTRIBUTIONS.get(module, module.replace("_", "-"))
                    self.assertIn(name, names, str(path))

    def test_imports_of_the_library_are_required(self):
        required = {pin.split("==")[0] for pin in _pins("requirements.in")}
        # TensorFlow brings these, in versions that fit it.
        required |= {"google", "grpc", "tensorboard"}
        # Imported only to read a pytorch_model.bin.
        required.add("torch")
        # For --runner only; see requirements-beam.txt.
        required.add("apache-beam")
        # tf-models-official brings it; a pin would exclude Apache Beam.
        required.add("pyarrow")
        ours = {"bert-tf", "export", "run"}
        for path in _files(".py"):
            if path.parts[0] not in ("bert_tf", "export", "run"):
                continue
            for module in _imported(path) - sys.stdlib_module_names:
                name = _DISTRIBUTIONS.get(module, module.replace("_", "-"))
                self.assertIn(name, required | ours, str(path))


class ReleaseTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.create_tempdir().full_path)
        for name in release._PLACES:
            (self.root / name).parent.mkdir(exist_ok=True)
            shutil.copy(_ROOT / name, self.root / name)
        self.changelog = self.root / "CHANGELOG.md"

    def test_sets_version_and_section(self):
        self.changelog.write_text("# C\n\n## [Unreleased]\n\n- A.\n")
        names = release.prepare(self.root, "9.8.7", "2030-01-02")
        self.assertEqual(
            self.changelog.read_text(),
            "# C\n\n## [Unreleased]\n\n## [9.8.7] - 2030-01-02\n\n- A.\n",
        )
        init, citation, page, _ = ((self.root / x).read_text() for x in names)
        self.assertIn('\n__version__ = "9.8.7"', init)
        self.assertEqual(yaml.safe_load(citation)["version"], "9.8.7")
        self.assertIn("dist/bert_tf-9.8.7-py3-none-any.whl", page)
        # Again: nothing changes.
        before = self.changelog.read_text()
        release.prepare(self.root, "9.8.7", "2031-01-02")
        self.assertEqual(self.changelog.read_text(), before)

    def test_refuses_an_empty_changelog_and_a_bad_version(self):
        self.changelog.write_text("## [Unreleased]\n\n## [0.0.1] - 2030\n- B")
        with self.assertRaisesRegex(SystemExit, "must list the changes"):
            release.prepare(self.root, "9.8.7", "2030-01-02")
        with self.assertRaisesRegex(SystemExit, "Received: 'v1'"):
            release.prepare(self.root, "v1", "2030-01-02")

    def test_every_place_has_the_version(self):
        for name in release._PLACES:
            text = (_ROOT / name).read_text(encoding="utf-8")
            self.assertIn(bert_tf.__version__, text, name)


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
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(result.returncode, 0, result.stderr)


class SourceTest(tf.test.TestCase):
    def test_contains_no_path_of_one_machine(self):
        pattern = re.compile(
            r"/(home|root|Users|tmp|work)/\w|https?://(?!127\.0\.0\.1)\d+\.\d+"
        )
        suffixes = (
            *(".py", ".sh", ".txt", ".in", ".md", ".flags", ".toml"),
            *(".json", ".yaml", ".yml", ".ipynb"),
        )
        for path in _files(*suffixes, "Makefile", "BUILD"):
            text = (_ROOT / path).read_text(encoding="utf-8")
            if path.name != "repository_test.py":
                self.assertIsNone(pattern.search(text), str(path))

    def test_modules_stay_small(self):
        for path in _files(".py"):
            lines = (_ROOT / path).read_text(encoding="utf-8").count("\n")
            if path.parts[0] in ("bert_tf", "export"):
                self.assertLessEqual(lines, 450, str(path))


def _imported(path):
    """Returns the top-level packages that a file imports."""
    names = set()
    for node in ast.walk(ast.parse((_ROOT / path).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    return names


if __name__ == "__main__":
    tf.test.main()

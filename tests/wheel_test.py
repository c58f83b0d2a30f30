"""Tests of the wheel outside a clone, with newest and lowest dependencies."""

import contextlib
import os
import shutil
import sys
import tempfile
import tomllib

import pytest
import tensorflow as tf

from tests.support import environments
from tests.support.repository import ROOT

_PROGRAM = ROOT / "tests" / "support" / "installed_program.py"
# Users have these packages, so the wheel's dependencies must fit the newest.
_NEIGHBORS = ("pandas", "jupyter")
# Tests that new digits or names in TensorFlow could break: tokenizer, model,
# records, optimizer, KerasHub. All tests would take a quarter of an hour. Two
# are left out: tf-models-official has no release for TensorFlow 2.21, so skip
# tests/tasks/squad/metrics_test.py and OfficialTest of
# tests/checkpoints/model_garden/model_test.py.
_FAST = (
    *("text", "modeling", "keras_backend_test.py"),
    *("training/optimizer_test.py", "data/generators/original_test.py"),
    *("checkpoints/keras_hub_test.py", "inference/extract_features_test.py"),
)


@pytest.mark.environment
class WheelTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.packages, cls.extras = _dependencies()
        cls.source = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.source)
        _copy_sources(cls.source)

    def _use(self, python, folder, **variables):
        """Runs the program; its server imports the packages in `folder`."""
        with contextlib.chdir(self.create_tempdir().full_path):
            return environments.run(
                *(python, str(_PROGRAM), folder),
                env=environments.clean_environment() | variables,
            )

    def test_works_beside_other_packages_in_an_empty_folder(self):
        newest = environments.newest_python()
        python = environments.make(
            "wheel", *self.packages, *_NEIGHBORS, python=newest
        )
        environments.install(python, "--reinstall", "--no-deps", self.source)
        environments.run(python, "-m", "pip", "check")
        # The environment is cached, so the extra gets a folder of its own.
        extra = self.create_tempdir().full_path
        environments.install(python, "--target", extra, *self.extras["serve"])
        self.assertIn("> bert-tf serve", self._use(python, extra))

    def test_works_with_the_lowest_versions(self):
        # The folder is first in PYTHONPATH. TensorFlow is not installed there:
        # this environment has the lowest version.
        wanted = [*self.packages, *self.extras["serve"], *self.extras["tflite"]]
        wanted = [x for x in wanted if not x.startswith("tensor")]
        folder = self.create_tempdir().full_path
        install = (sys.executable, "--target", folder, "--no-deps")
        environments.install(
            *(*install, "--resolution=lowest-direct", "--only-binary=:all:"),
            *wanted,
        )
        self.assertIn("keras-3.13.0.dist-info", os.listdir(folder))
        environments.install(*install, self.source)
        log = self._use(sys.executable, folder, PYTHONPATH=folder)
        self.assertIn("> bert-tf export-tflite", log)


@pytest.mark.environment
class NewestVersionsTest(tf.test.TestCase):
    def test_fast_tests_of_goldens_pass(self):
        packages, extras = _dependencies()
        for extra in ("corpus", "interop", "parquet", "serve", "tflite"):
            packages += extras[extra]
        python = environments.make(
            *("newest", *packages, "pandas", "-r", "requirements-test.txt"),
            python=environments.newest_python(),
        )
        environments.install(
            python, "--no-deps", "-r", "requirements-test-no-deps.txt"
        )
        shown = environments.run(python, "-m", "pip", "show", "tensorflow")
        self.assertIn("Version: 2.21", shown)
        environments.run(
            *(python, "-m", "pytest", "-q", "-n2", "--dist=worksteal"),
            *("-m", "not slow and not thorough and not environment"),
            *(f"tests/{x}" for x in _FAST),
            cwd=ROOT,
        )


def _dependencies():
    """Returns the wheel's dependencies, and the dependencies by extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project = project["project"]
    return project["dependencies"], project["optional-dependencies"]


def _copy_sources(source):
    """Copies the sources; a build would leave folders in the clone."""
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "bert_tf",
        os.path.join(source, "bert_tf"),
        ignore=shutil.ignore_patterns("__pycache__"),
    )


if __name__ == "__main__":
    tf.test.main()

"""Tests of the wheel, without the clone: in its newest and lowest versions."""

import contextlib
import os
import pathlib
import re
import shutil
import tempfile
import tomllib

import pytest
import tensorflow as tf

from tests.support import environments

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PROGRAM = _ROOT / "tests" / "support" / "installed_program.py"
# The wheel's dependencies must fit these, in their newest versions.
_NEIGHBORS = ("pandas", "jupyter")


@pytest.mark.environment
class WheelTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))
        project = project["project"]
        cls.packages = project["dependencies"]
        cls.extras = project["optional-dependencies"]
        cls.python = environments.make("wheel", *cls.packages, *_NEIGHBORS)
        source = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, source)
        _copy_sources(source)
        environments.install(cls.python, "--reinstall", "--no-deps", source)

    def _use(self, folder, **variables):
        """Runs the program, its server with the packages in a folder."""
        with contextlib.chdir(self.create_tempdir().full_path):
            return environments.run(
                *(self.python, str(_PROGRAM), folder),
                env=environments.clean_environment() | variables,
            )

    def test_works_beside_other_packages_in_an_empty_folder(self):
        environments.run(self.python, "-m", "pip", "check")
        # The environment is kept, so the extra is installed beside it.
        extra = self.create_tempdir().full_path
        environments.install(
            self.python, "--target", extra, *self.extras["serve"]
        )
        self.assertIn("> bert-tf serve", self._use(extra))

    def test_works_with_the_lowest_versions(self):
        # They come before those of the environment. TensorFlow's range is one
        # release, which is large.
        wanted = [*self.packages, *self.extras["serve"], *self.extras["tflite"]]
        lowest = [re.sub(r">=([^,]*).*", r"==\1", x) for x in wanted]
        lowest = [x for x in lowest if not x.startswith("tensorflow")]
        self.assertIn("keras==3.13", lowest)
        folder = self.create_tempdir().full_path
        environments.install(
            self.python, "--target", folder, "--no-deps", *lowest
        )
        log = self._use(folder, PYTHONPATH=folder)
        self.assertIn("> bert-tf export-tflite", log)


def _copy_sources(source):
    """Copies the sources; a build leaves folders in them."""
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(_ROOT / name, source)
    shutil.copytree(
        _ROOT / "bert_tf",
        os.path.join(source, "bert_tf"),
        ignore=shutil.ignore_patterns("__pycache__"),
    )


if __name__ == "__main__":
    tf.test.main()

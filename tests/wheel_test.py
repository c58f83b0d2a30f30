"""Tests of the wheel, installed beside other packages, without the clone."""

import contextlib
import os
import pathlib
import shutil
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
    def test_works_beside_other_packages_in_an_empty_folder(self):
        project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))
        project = project["project"]
        python = environments.make(
            "wheel", *project["dependencies"], *_NEIGHBORS
        )
        folder = self.create_tempdir().full_path
        pip = (python, "-m", "pip", "install", "--quiet")
        environment = environments.clean_environment()
        environments.run(
            *(*pip, "--force-reinstall", "--no-deps", self._copy_sources()),
            env=environment,
        )
        environments.run(python, "-m", "pip", "check")
        # The environment is kept, so the extra is installed beside it.
        extra = os.path.join(folder, "extra")
        packages = project["optional-dependencies"]["serve"]
        environments.run(*pip, "--target", extra, *packages, env=environment)
        work = os.path.join(folder, "work")
        os.mkdir(work)
        with contextlib.chdir(work):
            output = environments.run(
                *(python, str(_PROGRAM), extra), env=environment
            )
        self.assertIn("> bert-tf serve", output)

    def _copy_sources(self):
        """Returns a copy of the sources; a build leaves folders in them."""
        source = os.path.join(self.create_tempdir().full_path, "source")
        os.mkdir(source)
        for name in ("LICENSE", "README.md", "pyproject.toml"):
            shutil.copy(_ROOT / name, source)
        shutil.copytree(
            _ROOT / "bert_tf",
            os.path.join(source, "bert_tf"),
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        return source


if __name__ == "__main__":
    tf.test.main()

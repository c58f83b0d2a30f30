"""Tests of the README."""

import contextlib
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.support import repository
from tests.support import tiny_model


class ReadmeTest(tf.test.TestCase):
    @pytest.mark.slow
    def test_notebook_example_runs(self):
        readme = (repository.ROOT / "README.md").read_text(encoding="utf-8")
        example = re.search(r"```python\n(.*?)```", readme, re.S).group(1)
        folder = self.create_tempdir().full_path
        # This local path takes precedence over the released model's name.
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
        # Like the clone, this folder named bert_tf is no package.
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
        readme = (repository.ROOT / "README.md").read_text(encoding="utf-8")
        self.assertLessEqual(readme.count("\n"), 150)
        named = readme.split("## What is where")[1]
        for path in (repository.ROOT / "docs").glob("*.md"):
            self.assertIn(path.name, named)
        for folder in ("bert_tf", "run", "export", "notebooks", "tests"):
            self.assertIn(f"{folder}/", named)


if __name__ == "__main__":
    tf.test.main()

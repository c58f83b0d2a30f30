"""Tests of the preparation of a release."""

import pathlib
import shutil

import tensorflow as tf
import yaml

import bert_tf
from tests.support import repository
from tools import release


class ReleaseTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.create_tempdir().full_path)
        for name in release._PLACES:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository.ROOT / name, self.root / name)
        self.changelog = self.root / "CHANGELOG.md"

    def test_sets_version_and_section(self):
        self.changelog.write_text("# C\n\n## [Unreleased]\n\n- A.\n")
        names = release.prepare(self.root, "9.8.7", "2030-01-02")
        self.assertEqual(
            self.changelog.read_text(),
            "# C\n\n## [Unreleased]\n\n## [9.8.7] - 2030-01-02\n\n- A.\n",
        )
        init, citation, bazel, page, bug, _ = (
            (self.root / x).read_text() for x in names
        )
        self.assertIn('\n__version__ = "9.8.7"', init)
        self.assertEqual(yaml.safe_load(citation)["version"], "9.8.7")
        self.assertIn('\n    version = "9.8.7",\n', bazel)
        self.assertIn("dist/bert_tf-9.8.7-py3-none-any.whl", page)
        self.assertIn("        bert_tf 9.8.7, Python", bug)
        # A second call must change nothing.
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
            text = (repository.ROOT / name).read_text(encoding="utf-8")
            self.assertIn(bert_tf.__version__, text, name)


if __name__ == "__main__":
    tf.test.main()

"""Tests for export.artifact: version directories."""

import os
import subprocess
import sys

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.export import artifact as artifacts


class VersionDirectoryTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.create_tempdir().full_path, "a", "served")

    def _write(self, version, contents):
        with artifacts.write_version(self.path, version) as temporary:
            with open(os.path.join(temporary, "file"), "w") as file:
                file.write(contents)

    def _read(self, version):
        path = os.path.join(self.path, str(version), "file")
        with open(path, encoding="utf-8") as file:
            return file.read()

    def test_the_next_version_follows_the_highest(self):
        self.assertEqual(artifacts.choose_version(None, [self.path]), 1)
        self._write(1, "one")
        self._write(9, "nine")
        os.makedirs(os.path.join(self.path, "12.tmp-1-2"))
        os.makedirs(os.path.join(self.path, "name"))
        self.assertEqual(artifacts.choose_version(None, [self.path]), 10)
        self.assertEqual(artifacts.choose_version(4, [self.path]), 4)
        other = os.path.join(self.path, "other")
        os.makedirs(os.path.join(other, "0011"))
        both = [self.path, other]
        self.assertEqual(artifacts.choose_version(None, both), 12)
        for taken in (9, 11):
            with self.assertRaisesRegex(
                UserError, f"--version={taken} exists .* version 12"
            ):
                artifacts.choose_version(taken, both)

    def test_a_failed_export_leaves_no_files(self):
        with self.assertRaises(KeyboardInterrupt):
            with artifacts.write_version(self.path, 3) as temporary:
                os.makedirs(os.path.join(temporary, "variables"))
                raise KeyboardInterrupt
        self.assertFalse(os.path.exists(self.path))

    def test_leftover_versions_of_processes_that_are_gone_are_removed(self):
        gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
        gone.wait()
        for name in (f"1.tmp-{gone.pid}-0a1b2c3d", "1.tmp-1-0a1b2c3d"):
            os.makedirs(os.path.join(self.path, name, "variables"))
        self._write(2, "two")
        self.assertCountEqual(os.listdir(self.path), ["1.tmp-1-0a1b2c3d", "2"])

    def test_keeps_versions_of_other_processes(self):
        with self.assertRaisesRegex(UserError, "meanwhile"):
            with artifacts.write_version(self.path, 1):
                self._write(1, "theirs")
        self.assertEqual(self._read(1), "theirs")
        self.assertEqual(os.listdir(self.path), ["1"])


if __name__ == "__main__":
    tf.test.main()

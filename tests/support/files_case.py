"""Test cases that have a folder of their own and write files into it."""

import bz2
import csv
import gzip
import lzma
import os
import pathlib

import tensorflow as tf
import zstandard
from absl.testing import parameterized

COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


class FolderCase(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path

    def path(self, *names):
        return os.path.join(self.folder, *names)


class FilesCase(FolderCase):
    """A test case whose folder is a `pathlib.Path`, with files in it."""

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.folder)

    def write(self, name, contents):
        """Writes text or bytes, compressed by its ending; returns the path.

        Creates missing folders.
        """
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(contents, str):
            contents = contents.encode()
        compress = COMPRESS.get(os.path.splitext(name)[1], bytes)
        path.write_bytes(compress(contents))
        return str(path)

    def write_csv(self, name, *rows):
        """Writes a file of comma-separated values; returns its path."""
        path = self.folder / name
        with open(path, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
        return str(path)

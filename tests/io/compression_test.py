"""Tests of streaming decompression."""

import os

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.io import compression
from tests.support.files_case import COMPRESS


class CompressionTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.contents = os.urandom(150_000) + b"\nlast\n" + bytes(200_000)

    def _write(self, name, contents):
        return self.create_tempfile(name, contents).full_path

    @parameterized.parameters(*COMPRESS)
    def test_reads_several_streams(self, ending):
        compress = COMPRESS[ending]
        stored = compress(self.contents) + compress(b"second")
        path = self._write(f"a.txt{ending}", stored)
        counts = []
        with compression.open_decompressed(
            path, lambda block: counts.append(len(block))
        ) as file:
            self.assertEqual(file.read(), self.contents + b"second")
        self.assertEqual(sum(counts), len(stored))

    @parameterized.parameters(*COMPRESS)
    def test_refuses_truncated_and_damaged_files(self, ending):
        stored = COMPRESS[ending](self.contents)
        path = self._write(f"a{ending}", stored[:-9])
        with self.assertRaisesRegex(
            UserError, f"a{ending} is not .* ends at byte {len(stored) - 9},"
        ):
            list(compression.read_blocks(path))
        path = self._write(f"b{ending}", b"no such format " * 9)
        with self.assertRaisesRegex(UserError, "from byte 0; download"):
            list(compression.read_blocks(path))
        path = self._write(f"c{ending}", b"")
        with self.assertRaisesRegex(UserError, "ends at byte 0"):
            list(compression.read_blocks(path))

    def test_reads_other_files_as_they_are(self):
        path = self._write("a.txt", self.contents)
        self.assertEqual(b"".join(compression.read_blocks(path)), self.contents)
        with self.assertRaisesRegex(UserError, "cannot be read"):
            list(compression.read_blocks(f"{path}.none"))


if __name__ == "__main__":
    tf.test.main()

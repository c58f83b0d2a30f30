"""Tests of streaming decompression and of lines of text."""

import gzip
import os
import pathlib

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.io import compression
from bert_tf.io import text_files
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


class TextLinesTest(tf.test.TestCase, parameterized.TestCase):
    def _write(self, name, contents):
        path = pathlib.Path(self.create_tempdir().full_path) / name
        path.write_bytes(contents)
        return str(path)

    @parameterized.parameters(
        (b"", []),
        (b"one\ntwo", [(1, "one"), (2, "two")]),
        (
            b"\xef\xbb\xbfone\r\n\r\n three\r\n",
            [(1, "one"), (2, ""), (3, " three")],
        ),
        # A byte order mark within the text and other line ends are kept.
        ("a\x0b\ufeff\u2028b\rc\n".encode(), [(1, "a\x0b\ufeff\u2028b\rc")]),
    )
    def test_lines_are_read_plain_and_gzipped(self, contents, expected):
        for name, stored in (
            ("a.txt", contents),
            ("a.txt.gz", gzip.compress(contents)),
        ):
            path = self._write(name, stored)
            self.assertEqual(list(text_files.read_lines(path)), expected)

    @parameterized.parameters(
        (b"one\rtwo\r", "a.txt ends its lines with CR alone"),
        ("é\rtwo".encode(), "a.txt ends its lines with CR alone"),
        ("one\ntwo".encode("utf-16-le"), "line 1 .* as UTF-16 and"),
        (gzip.compress(b"a"), "a.txt is compressed; rename it to end in .gz"),
        (COMPRESS[".xz"](b"a"), "a.txt is compressed; rename it to .*xz"),
        (b"PK\x03\x04", "an archive or a spreadsheet; .*save it as CSV"),
        ("één\nnaïef\n".encode("latin-1"), "a.txt, line 1 is not UTF-8"),
        (b"good\nnot \xff good\n", "line 2 .* at byte 4"),
    )
    def test_rejects_files_of_other_formats(self, contents, message):
        path = self._write("a.txt", contents)
        with self.assertRaisesRegex(UserError, message):
            list(text_files.read_lines(path))

    def test_last_line_may_end_in_cr(self):
        path = self._write("a.TXT.GZ", gzip.compress(b"one\r"))
        self.assertEqual(list(text_files.read_lines(path)), [(1, "one")])


if __name__ == "__main__":
    tf.test.main()

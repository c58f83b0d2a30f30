"""Tests for bert_tf.io.archives."""

import contextlib
import gzip
import io
import os
import stat
import tarfile
import tracemalloc
import zipfile
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.io import archives
from bert_tf.io import files


class ArchivesTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.archive = os.path.join(self.folder, "x.archive")
        self.target = os.path.join(self.folder, "in", "target")
        os.makedirs(self.target)

    def _write(self, kind, entries, compression=zipfile.ZIP_STORED):
        """Writes an archive of name to contents; None is a link."""
        if kind == "zip":
            with zipfile.ZipFile(self.archive, "w") as file:
                for name, contents in entries.items():
                    info = zipfile.ZipInfo("x")
                    info.filename = name
                    if contents is None:
                        info.external_attr = (stat.S_IFLNK | 0o777) << 16
                        contents = b"/etc/passwd"
                    file.writestr(info, contents, compression)
            return
        with tarfile.open(self.archive, "w:gz") as file:
            for name, contents in entries.items():
                info = tarfile.TarInfo(name)
                info.size = len(contents or b"")
                if contents is None:
                    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                elif name.endswith("/"):
                    info.type = tarfile.DIRTYPE
                file.addfile(info, io.BytesIO(contents or b""))

    def _replace(self, old, new):
        contents = files.read_bytes(self.archive)
        files.write_bytes(self.archive, contents.replace(old, new))

    def _refused(self, message):
        with self.assertRaisesRegex(UserError, message):
            archives.unpack(self.archive, self.target)
        self.assertCountEqual(os.listdir(self.folder), ["in", "x.archive"])
        self.assertEqual(
            os.listdir(os.path.join(self.folder, "in")), ["target"]
        )

    @parameterized.parameters("zip", "tar.gz")
    def test_unpacks(self, kind):
        entries = {"m/a.txt": b"one", "m/sub/b.txt": b"three", "c": b""}
        self._write(kind, entries)
        archives.unpack(self.archive, self.target)
        for name, contents in entries.items():
            self.assertEqual(
                files.read_bytes(os.path.join(self.target, name)), contents
            )

    @parameterized.product(
        kind=("zip", "tar.gz"),
        name=("../a", "/var/a", "m/../../a", "m//a", "C:/a", "m\\..\\a"),
    )
    def test_paths_outside(self, kind, name):
        self._write(kind, {name: b"one"})
        self._refused("path outside its folder.*Received: ")

    def test_a_name_with_a_zero_byte(self):
        self._write("zip", {"m/a?b": b"one"})
        self._replace(b"m/a?b", b"m/a\0b")
        self._refused("path outside its folder.*Received: ")

    @parameterized.product(
        kind=("zip", "tar.gz"), name=("./a", "a/b", "./a/b/c")
    )
    def test_a_name_that_is_taken(self, kind, name):
        self._write(kind, {"a": b"one", name: b"two"})
        with self.assertRaisesRegex(UserError, "not a whole archive"):
            archives.unpack(self.archive, self.target)

    @parameterized.parameters(
        (6, 8, 1, "not a whole archive.*encrypted"),
        (8, 10, 99, "unknown compression"),
    )
    def test_an_unreadable_zip(self, local, central, value, message):
        self._write("zip", {"a": b"one"})
        contents = bytearray(files.read_bytes(self.archive))
        contents[local] = value
        contents[contents.index(b"PK\1\2") + central] = value
        files.write_bytes(self.archive, contents)
        self._refused(message)

    def test_names_that_begin_at_the_current_folder(self):
        with tarfile.open(self.archive, "w:gz") as file:
            with contextlib.chdir(self.create_tempdir().full_path):
                os.mkdir("m")
                files.write_text("m/a", "one")
                file.add(".")
        archives.unpack(self.archive, self.target)
        with open(os.path.join(self.target, "m", "a")) as file:
            self.assertEqual(file.read(), "one")

    @parameterized.parameters("zip", "tar.gz")
    def test_links(self, kind):
        self._write(kind, {"m/link": None})
        self._refused("a link, a device.*'m/link'")

    @parameterized.parameters("zip", "tar.gz")
    def test_damaged(self, kind):
        self._write(kind, {"m/a.txt": os.urandom(3000)})
        with open(self.archive, "r+b") as file:
            file.truncate(1500)
        self._refused("not a whole archive")

    def test_no_archive(self):
        files.write_text(self.archive, "<html>")
        self._refused("not a whole archive .*BadGzipFile")

    @parameterized.parameters("zip", "tar.gz")
    def test_bomb(self, kind):
        entries = {"a": b"x" * 600, "b": bytes(1 << 20)}
        self._write(kind, entries, zipfile.ZIP_DEFLATED)
        with (
            mock.patch.object(archives, "_LEAST_LIMIT", 5000),
            mock.patch.object(archives, "_MAX_RATIO", 0),
        ):
            self._refused("unpacks to more than 5000 bytes")
        sizes = [entry.stat().st_size for entry in os.scandir(self.target)]
        self.assertCountEqual(sizes, [600, 0])

    @parameterized.product(
        kind=("zip", "tar.gz"), names=(("a", "b", "c"), ("a/", "b/", "c/"))
    )
    def test_many_members(self, kind, names):
        self._write(kind, dict.fromkeys(names, b""))
        with mock.patch.object(archives, "_MAX_MEMBERS", 3):
            other = self.create_tempdir().full_path
            archives.unpack(self.archive, other)
            self.assertCountEqual(os.listdir(other), ["a", "b", "c"])
        with mock.patch.object(archives, "_MAX_MEMBERS", 2):
            self._refused("more than 2 files and folders")

    @parameterized.product(
        kind=("zip", "tar.gz"),
        name=("n" * 300, "/".join("d" * 1200), "\u00df" * 120),
    )
    def test_long_names(self, kind, name):
        self._write(kind, {name: b"one"})
        self._refused("too long, or in too many folders")

    @parameterized.parameters(*b"xgLKX")
    def test_a_header_of_gigabytes(self, kind):
        """It is refused before it is read."""
        info = tarfile.TarInfo("m")
        info.type, info.size = bytes([kind]), 3 << 30
        with gzip.open(self.archive, "wb", 1) as file:
            file.write(info.tobuf())
            file.write(bytes(archives._MAX_HEADER_BYTES + 1))
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        self._refused("has headers of more than 2097152 bytes")
        self.assertLess(tracemalloc.get_traced_memory()[1], 1 << 24)

    @parameterized.parameters("zip", "tar.gz")
    def test_headers_of_many_members(self, kind):
        self._write(kind, {f"{x:0100}": b"" for x in range(99)})
        with mock.patch.object(archives, "_MAX_HEADER_BYTES", 9999):
            self._refused("has headers of more than 9999 bytes")

    @parameterized.parameters(zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    def test_compressions_without_a_bound(self, method):
        with zipfile.ZipFile(self.archive, "w", method) as file:
            file.writestr("a", bytes(1 << 20))
        self._refused("unknown compression")

    def test_a_size_that_is_a_lie(self):
        with zipfile.ZipFile(self.archive, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("a", bytes(1 << 20))
        size = (1 << 20).to_bytes(4, "little")
        self._replace(size, (9).to_bytes(4, "little"))
        self._refused("not a whole archive")

    @parameterized.parameters("0,9", "a,b")
    def test_sparse_files(self, parts):
        info = tarfile.TarInfo("s")
        info.pax_headers = {
            "GNU.sparse.map": parts,
            "GNU.sparse.size": str(1 << 40),
        }
        with tarfile.open(
            self.archive, "w:gz", format=tarfile.PAX_FORMAT
        ) as file:
            file.addfile(info)
        self._refused("a link, a device|not a whole archive")

    def test_a_name_that_is_not_utf_8(self):
        self._write("zip", {"m\u00df": b"one"})
        self._replace("m\u00df".encode(), b"m\xff\xff")
        self._refused("not a whole archive")


if __name__ == "__main__":
    tf.test.main()

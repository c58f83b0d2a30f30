"""Tests for bert_tf.io.download and bert_tf.io.archives."""

import base64
import contextlib
import gzip
import hashlib
import io
import itertools
import os
import socket
import stat
import tarfile
import threading
import tracemalloc
import urllib.request
import zipfile
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.io import archives
from bert_tf.io import download
from bert_tf.io import files
from tests.support import files_case
from tests.support import model_server

CONTENTS = bytes(i * i % 251 for i in range(5000))


class DownloadCase(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.path = os.path.join(self.folder, "model.zip")
        self.server = self.enter_context(model_server.ModelServer())
        self.url = f"{self.server.url}/a/model.zip"
        self.page = self.server.add("/a/model.zip", CONTENTS)
        self.enter_context(mock.patch.object(download, "_PAUSE_SECONDS", 0))

    def _fetch(self, **kwargs):
        return download.fetch(self.url, self.path, **kwargs)

    def _assert_whole(self):
        with open(self.path, "rb") as file:
            self.assertEqual(file.read(), CONTENTS)
        self.assertEqual(os.listdir(self.folder), ["model.zip"])

    def _refused(self, message, left=(), **kwargs):
        with self.assertRaisesRegex(UserError, message):
            self._fetch(**kwargs)
        if left is not None:
            self.assertCountEqual(os.listdir(self.folder), left)


class DownloadTest(DownloadCase):
    def test_whole_file_is_fetched_with_its_hash(self):
        sizes = []
        fetched = self._fetch(on_start=sizes.append)
        self._assert_whole()
        self.assertEqual(sizes, [5000])
        digest = hashlib.sha256(CONTENTS).hexdigest()
        self.assertEqual(
            fetched, {"etag": f'"{digest}"', "bytes": 5000, "sha256": digest}
        )

    def test_resumes_where_the_connection_broke(self):
        self.page.stops = [1200, 700]
        sizes = []
        self._fetch(on_start=sizes.append)
        self._assert_whole()
        self.assertEqual(
            self.server.gets("/a/model.zip"),
            [None, "bytes=1200-", "bytes=1900-"],
        )
        self.assertEqual(sizes, [5000])

    def test_a_later_call_resumes(self):
        self.page.stops = [1200, 0, 0, 0]
        kept = ("model.zip.partial", "model.zip.partial.json")
        self._refused("broke off after 1200 of 5000 bytes .*same comm", kept)
        self._fetch()
        self._assert_whole()
        self.assertEqual(self.server.gets("/a/model.zip")[-1], "bytes=1200-")

    @parameterized.product(
        before=(CONTENTS[::-1], CONTENTS * 2, CONTENTS[:4000]),
        has_conditions=(True, False),
    )
    def test_starts_over_if_the_file_has_changed(self, before, has_conditions):
        old = self.server.add("/a/model.zip", before)
        old.stops = [len(before) - 10, 0, 0, 0]
        with self.assertRaises(UserError):
            self._fetch()
        self.server.add("/a/model.zip", CONTENTS, has_conditions=has_conditions)
        self._fetch()
        self._assert_whole()

    def test_another_address_starts_over(self):
        self.page.stops = [1200, 0, 0, 0]
        with self.assertRaises(UserError):
            self._fetch()
        self.url = f"{self.server.url}/b.zip"
        self.server.add("/b.zip", CONTENTS)
        self._fetch()
        self._assert_whole()
        self.assertEqual(self.server.gets("/b.zip"), [None])

    def test_starts_over_without_ranges(self):
        self.page.has_ranges = False
        self.page.stops = [1200]
        self._fetch()
        self._assert_whole()

    @parameterized.parameters(
        ('"1"', "Mon, 1", '"1"'),
        ('W/"1"', "Mon, 1", "Mon, 1"),
        ('W/"1"', "", None),
        ("", "Mon, 1", "Mon, 1"),
        ("", "", None),
    )
    def test_resumes_the_same_version(self, etag, date, condition):
        self.page.headers = {"ETag": etag, "Last-Modified": date}
        self.page.stops = [1200]
        self._fetch()
        self._assert_whole()
        self.assertEqual(
            self.server.gets("/a/model.zip"), [None, "bytes=1200-"]
        )
        self.assertEqual(self.server.conditions, [None, condition])

    @parameterized.parameters((True, 3600), (False, 1200))
    def test_three_truncated_answers_are_refused(self, has_ranges, size):
        self.page.has_ranges = has_ranges
        self.page.stops = [1200] * 9
        self._refused(
            f"broke off after {size} of 5000",
            ("model.zip.partial", "model.zip.partial.json"),
        )
        self.assertLen(self.server.requests, 3)

    def test_reuses_a_complete_file_that_was_not_renamed(self):
        with mock.patch.object(os, "replace", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                self._fetch()
        self._fetch()
        self._assert_whole()
        self.assertLen(self.server.requests, 1)

    @parameterized.parameters(
        (404, "no such file .status 404"),
        (401, "refuses access .status 401"),
        (418, "answered with status 418"),
        (503, "cannot be fetched .status 503"),
    )
    def test_error_status_is_explained(self, status, message):
        self.page.status = status
        self._refused(message)

    def test_unreachable_server_is_explained(self):
        self.url = "http://127.0.0.1:9/model.zip"
        self._refused("cannot be fetched .*refused.*check the connection")

    def test_hash_must_match_argument_and_headers(self):
        self._refused("SHA256 0{64}. Received: [1-9a-f]", sha256="0" * 64)
        right = hashlib.sha256(CONTENTS).hexdigest().upper()
        self.assertEqual(self._fetch(sha256=right)["sha256"], right.lower())
        os.remove(self.path)
        md5 = base64.b64encode(hashlib.md5(b"other").digest()).decode()
        self.page.headers = {"x-goog-hash": f"crc32c=AAAAAA==,md5={md5}"}
        self._refused("damaged or another one: expected the MD5")
        self.page.headers = {"ETag": f'"{hashlib.md5(b"other").hexdigest()}"'}
        self._refused("damaged or another one: expected the MD5")
        # Starlette's ETag looks like an MD5 but is none, so it must not count.
        self.page.headers["Server"] = "uvicorn"
        self._fetch()
        self._assert_whole()

    @parameterized.parameters(
        "http://example.com/x.zip", "ftp://localhost/x.zip", "https:///x.zip"
    )
    def test_unsafe_addresses_are_refused(self, url):
        self.url = url
        self._refused("Expected an https:// address")

    def test_redirects_are_followed_to_safe_addresses(self):
        headers = {"Location": self.url}
        self.server.pages["/b"] = model_server.Page(status=302, headers=headers)
        self.url = f"{self.server.url}/b"
        self._fetch()
        self._assert_whole()
        os.remove(self.path)
        headers["Location"] = "http://example.com/x.zip"
        self._refused("Expected an https:// address .*example.com")


class HostileServerTest(DownloadCase):
    def setUp(self):
        super().setUp()
        # Each call of the clock takes a second, so the time limit is reached.
        clock = mock.Mock(**{"monotonic.side_effect": itertools.count()})
        self.enter_context(mock.patch.object(download, "time", clock))

    def _answer(self, head, piece=None):
        """Answers with a head, then repeats a piece without end."""
        head = head.encode("latin-1").replace(b"\n", b"\r\n")
        pieces = [] if piece is None else itertools.repeat(piece)
        self.page.raw = lambda: itertools.chain([head], pieces)

    @parameterized.parameters("abc", "-5", "+3", "3, 3", "9" * 30, "\xb2")
    def test_refuses_a_wrong_length(self, length):
        self._answer(f"HTTP/1.1 200 OK\nContent-Length: {length}\n\nabc")
        self._refused("it states the length ")

    @parameterized.parameters(
        (
            "206 Partial\nContent-Range: bytes 5-7/8",
            "not what was asked for.*206",
        ),
        ("204 No Content", "not what was asked for.*204"),
        ("302 Found\nLocation: http://[::1", "Invalid IPv6"),
        ("302 Found\nLocation: file:///etc/passwd", "status 302"),
        ("200 OK\nTransfer-Encoding: chunked\n\nzz", "cannot be fetched"),
        ("", "cannot be fetched"),
    )
    def test_refuses_a_wrong_answer(self, head, message):
        self._answer(f"HTTP/1.1 {head}\n\n")
        self._refused(message, None)

    @parameterized.parameters(
        ("", b"x" * 65536),
        (
            "Transfer-Encoding: chunked\n",
            b"%x\r\n%s\r\n" % (1 << 16, b"x" * (1 << 16)),
        ),
        (f"Content-Length: {1 << 40}\n", b"x"),
    )
    def test_refuses_a_body_without_end(self, headers, piece):
        self._answer(f"HTTP/1.1 200 OK\n{headers}\n", piece)
        self.enter_context(
            mock.patch.object(download, "_MAX_UNSTATED_BYTES", 1 << 20)
        )
        self._refused("is larger than [0-9]+ bytes, so it is no model")

    @parameterized.parameters(
        ("", b"HTTP/1.1 100 Continue\r\n\r\n", "less than 65536 bytes in 60 s"),
        ("HTTP/1.1 200 OK\nA: ", b"x", "less than 65536 b|more than 65536 b"),
        ("HTTP/1.1 200 OK\n", b"A: b\r\n" * 200, "more than 100 headers"),
        ("HTTP/1.1 302 OK\nLocation: /a/model.zip\n\n", b"x", "status 302"),
    )
    def test_refuses_an_answer_without_end(self, head, piece, message):
        self._answer(head, piece)
        self._refused(message)

    def test_refuses_a_byte_now_and_then(self):
        """The socket's time limit never expires; the file's limit does."""

        def pieces():
            yield b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
            for _ in range(99):
                event.wait(0.01)
                yield b"x"

        event = threading.Event()
        self.page.raw = pieces
        self._refused("broke off after .* of 100000 bytes .less than", None)

    @parameterized.parameters(
        *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0.0.0.0"),
        *("10.0.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
        *("[::1]", "[fe80::1]", "[fd00::1]", "[::ffff:10.0.0.1]"),
        *("[64:ff9b::7f00:1]", "[2002:a00:1::]", "localhost"),
    )
    def test_public_hosts_may_not_redirect_to_private_networks(self, host):
        redirect = download._Redirects().redirect_request
        for source, refused in (("8.8.8.8", True), ("10.1.1.1", False)):
            request = urllib.request.Request(f"https://{source}/x.zip")
            arguments = (request, mock.Mock(), 302, "", {}, f"https://{host}/")
            if refused:
                with self.assertRaisesRegex(UserError, "not followed"):
                    redirect(*arguments)
            else:
                self.assertIsNotNone(redirect(*arguments))

    def test_one_private_address_makes_a_name_private(self):
        found = [(0, 0, 0, "", (x, 0)) for x in ("8.8.8.8", "10.0.0.1")]
        for count, expected in ((1, True), (2, False)):
            with mock.patch.object(
                socket, "getaddrinfo", return_value=found[:count]
            ):
                self.assertEqual(download._is_public("a.example"), expected)


class ArchivesTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        self.archive = self.path("x.archive")
        self.target = self.path("in", "target")
        os.makedirs(self.target)

    def _write(self, kind, entries, compression=zipfile.ZIP_STORED):
        """Writes an archive of a dict, name to contents; None makes a link."""
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
        self.assertEqual(os.listdir(self.path("in")), ["target"])

    @parameterized.parameters("zip", "tar.gz")
    def test_archive_unpacks_to_its_files(self, kind):
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
    def test_paths_outside_the_folder_are_refused(self, kind, name):
        self._write(kind, {name: b"one"})
        self._refused("path outside its folder.*Received: ")

    def test_refuses_a_name_with_a_zero_byte(self):
        self._write("zip", {"m/a?b": b"one"})
        self._replace(b"m/a?b", b"m/a\0b")
        self._refused("path outside its folder.*Received: ")

    @parameterized.product(
        kind=("zip", "tar.gz"), name=("./a", "a/b", "./a/b/c")
    )
    def test_refuses_a_name_that_is_taken(self, kind, name):
        self._write(kind, {"a": b"one", name: b"two"})
        with self.assertRaisesRegex(UserError, "not a whole archive"):
            archives.unpack(self.archive, self.target)

    @parameterized.parameters(
        (6, 8, 1, "not a whole archive.*encrypted"),
        (8, 10, 99, "unknown compression"),
    )
    def test_refuses_an_unreadable_zip(self, local, central, value, message):
        self._write("zip", {"a": b"one"})
        contents = bytearray(files.read_bytes(self.archive))
        contents[local] = value
        contents[contents.index(b"PK\1\2") + central] = value
        files.write_bytes(self.archive, contents)
        self._refused(message)

    def test_names_may_begin_at_the_current_folder(self):
        with tarfile.open(self.archive, "w:gz") as file:
            with contextlib.chdir(self.create_tempdir().full_path):
                os.mkdir("m")
                files.write_text("m/a", "one")
                file.add(".")
        archives.unpack(self.archive, self.target)
        with open(os.path.join(self.target, "m", "a")) as file:
            self.assertEqual(file.read(), "one")

    @parameterized.parameters("zip", "tar.gz")
    def test_links_in_archives_are_refused(self, kind):
        self._write(kind, {"m/link": None})
        self._refused("a link, a device.*'m/link'")

    @parameterized.parameters("zip", "tar.gz")
    def test_damaged_archives_are_refused(self, kind):
        self._write(kind, {"m/a.txt": os.urandom(3000)})
        with open(self.archive, "r+b") as file:
            file.truncate(1500)
        self._refused("not a whole archive")

    def test_file_that_is_no_archive_is_refused(self):
        files.write_text(self.archive, "<html>")
        self._refused("not a whole archive .*BadGzipFile")

    @parameterized.parameters("zip", "tar.gz")
    def test_bomb_stops_at_the_size_limit(self, kind):
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
    def test_too_many_members_are_refused(self, kind, names):
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
    def test_too_long_names_are_refused(self, kind, name):
        self._write(kind, {name: b"one"})
        self._refused("too long, or in too many folders")

    @parameterized.parameters(*b"xgLKX")
    def test_refuses_a_header_of_gigabytes(self, kind):
        """A header of 3 GiB is refused before its contents are read."""
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
    def test_refuses_headers_of_many_members(self, kind):
        self._write(kind, {f"{x:0100}": b"" for x in range(99)})
        with mock.patch.object(archives, "_MAX_HEADER_BYTES", 9999):
            self._refused("has headers of more than 9999 bytes")

    @parameterized.parameters(zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    def test_refuses_compressions_without_a_bound(self, method):
        with zipfile.ZipFile(self.archive, "w", method) as file:
            file.writestr("a", bytes(1 << 20))
        self._refused("unknown compression")

    def test_refuses_a_size_that_is_a_lie(self):
        with zipfile.ZipFile(self.archive, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("a", bytes(1 << 20))
        size = (1 << 20).to_bytes(4, "little")
        self._replace(size, (9).to_bytes(4, "little"))
        self._refused("not a whole archive")

    @parameterized.parameters("0,9", "a,b")
    def test_sparse_files_are_refused(self, parts):
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

    def test_refuses_a_name_that_is_not_utf_8(self):
        self._write("zip", {"m\u00df": b"one"})
        self._replace("m\u00df".encode(), b"m\xff\xff")
        self._refused("not a whole archive")


if __name__ == "__main__":
    tf.test.main()

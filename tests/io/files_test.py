"""Tests for bert_tf.io.files."""

import hashlib
import os
import stat
import subprocess
import sys
import threading
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.io import files
from bert_tf.io import stored_files
from bert_tf.text import vocabulary as vocabulary_lib
from tests.support import files_case


def _ended_process():
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


class _Interruption(BaseException):
    """Simulates Ctrl-C, which is not an `Exception`."""


class ExpandGlobsTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        for name in ("b.txt", "a.txt", "c.gz"):
            files.write_text(self.path(name), name)
        os.mkdir(self.path("d.txt"))

    def _expand(self, *patterns):
        patterns = ",".join(self.path(p) for p in patterns)
        found = files.expand_globs(patterns)
        return [os.path.relpath(path, self.folder) for path in found]

    def test_matches_are_sorted_without_folders(self):
        self.assertEqual(self._expand("*.txt"), ["a.txt", "b.txt"])

    def test_patterns_keep_their_order_and_duplicates_count_once(self):
        self.assertEqual(
            self._expand("c.gz", "b.txt", "*.txt"), ["c.gz", "b.txt", "a.txt"]
        )

    def test_spaces_around_commas_do_not_matter(self):
        pattern = f"{self.folder}/a.txt , {self.folder}/b.txt"
        self.assertLen(files.expand_globs(pattern), 2)

    @parameterized.parameters("*.json", "a.txt,*.json")
    def test_rejects_a_pattern_without_match(self, patterns):
        patterns = ",".join(f"{self.folder}/{p}" for p in patterns.split(","))
        with self.assertRaisesRegex(UserError, "--here matches no file"):
            files.expand_globs(patterns, "--here")

    @parameterized.parameters("", ",", "{}/a.txt,")
    def test_rejects_an_empty_pattern(self, patterns):
        with self.assertRaisesRegex(UserError, "Received: ''"):
            files.expand_globs(patterns.format(self.folder))


class AtomicFileTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.path = os.path.join(self.folder, "new", "deep", "file.txt")

    def test_makes_folders_and_leaves_nothing_else(self):
        files.write_text(self.path, "käse\n")
        self.assertEqual(files.read_bytes(self.path), "käse\n".encode())
        self.assertEqual(os.listdir(os.path.dirname(self.path)), ["file.txt"])

    @parameterized.parameters(ValueError, KeyboardInterrupt, _Interruption)
    def test_keeps_the_earlier_file_when_the_body_raises(self, error):
        files.write_text(self.path, "earlier")
        with self.assertRaises(error):
            with files.atomic_file(self.path) as temporary:
                with open(temporary, "w", encoding="utf-8") as file:
                    file.write("half")
                raise error
        self.assertEqual(files.read_bytes(self.path), b"earlier")
        self.assertEqual(os.listdir(os.path.dirname(self.path)), ["file.txt"])

    def test_refuses_devices_and_streams(self):
        pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(pipe)
        stream = os.path.join(self.folder, "stdout")
        os.symlink("/proc/self/fd/1", stream)
        for path in (pipe, stream, "/dev/null"):
            with self.assertRaisesRegex(UserError, "a device or a stream"):
                files.require_no_stream(path)
        for path in (pipe, stream):
            with self.assertRaisesRegex(UserError, f"{path} is a device or"):
                files.write_text(path, "x")
        self.assertCountEqual(os.listdir(self.folder), ["pipe", "stdout"])
        self.assertTrue(stat.S_ISFIFO(os.stat(pipe).st_mode))
        self.assertTrue(os.path.islink(stream))

    def test_temporary_files_are_recognized_by_name(self):
        with files.atomic_file(self.path) as temporary:
            self.assertTrue(files.is_temporary(temporary))
            files.write_text(temporary, "")
        with files.atomic_directory(f"{self.path}.d/") as temporary:
            self.assertTrue(files.is_temporary(f"{temporary}/"))
        for name in (self.path, "model/", "a.tmp-1", "model.ckpt-12.json"):
            self.assertFalse(files.is_temporary(name))


class AtomicDirectoryTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.parent = self.create_tempdir().full_path
        self.path = os.path.join(self.parent, "model")

    def _write(self, *names, error=None):
        with files.atomic_directory(self.path) as temporary:
            for name in names:
                files.write_text(os.path.join(temporary, name), name)
            if error:
                raise error

    def test_replaces_the_whole_earlier_directory(self):
        self._write("a", "sub/b")
        self._write("c")
        self.assertEqual(os.listdir(self.path), ["c"])
        self.assertEqual(os.listdir(self.parent), ["model"])

    def test_keeps_the_earlier_directory_when_the_body_raises(self):
        self._write("a", "sub/b")
        with self.assertRaises(_Interruption):
            self._write("c", error=_Interruption())
        self.assertEqual(sorted(os.listdir(self.path)), ["a", "sub"])
        self.assertEqual(os.listdir(self.parent), ["model"])

    def test_leaves_no_folder_when_the_body_raises(self):
        self.path = os.path.join(self.parent, "new", "deep", "model/")
        with self.assertRaises(_Interruption):
            self._write("c", error=_Interruption())
        self.assertEqual(os.listdir(self.parent), [])
        self._write("c")
        self.assertEqual(os.listdir(self.path), ["c"])

    def test_keeps_the_earlier_directory_when_it_cannot_be_replaced(self):
        self._write("a")
        # Some file systems cannot exchange two directories in one step.
        self.enter_context(
            mock.patch.object(files, "_exchange", return_value=False)
        )
        rename, calls = os.replace, []

        def fail_at_the_second(source, target):
            calls.append(target)
            if len(calls) == 2:
                raise PermissionError("no")
            rename(source, target)

        with self.assertRaises(PermissionError):
            with files.atomic_directory(self.path) as temporary:
                files.write_text(os.path.join(temporary, "c"), "c")
                self.enter_context(
                    mock.patch.object(os, "replace", fail_at_the_second)
                )
        self.assertEqual(os.listdir(self.parent), ["model"])
        self.assertEqual(os.listdir(self.path), ["a"])

    def test_all_files_reach_the_disk_before_the_name(self):
        synced = []

        def sync(path):
            synced.append((path, os.path.exists(self.path)))

        with files.atomic_directory(self.path) as temporary:
            files.write_text(os.path.join(temporary, "a"), "a")
            files.write_text(os.path.join(temporary, "sub/b"), "b")
            self.enter_context(mock.patch.object(files, "sync", sync))
        self.assertSameElements(
            synced,
            [
                (os.path.join(temporary, "a"), False),
                (os.path.join(temporary, "sub"), False),
                (os.path.join(temporary, "sub", "b"), False),
                (temporary, False),
                (self.parent, True),
            ],
        )


class ReadTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.create_tempdir().full_path, "x.json")

    def test_json_round_trip_keeps_letters_readable(self):
        values = {"a": [1, 2.5, None], "ß": "中"}
        files.write_json(self.path, values)
        self.assertEqual(files.read_json(self.path), values)
        self.assertIn("中".encode(), files.read_bytes(self.path))

    def test_rejects_large_files_before_they_are_read(self):
        with open(self.path, "wb") as file:
            file.truncate(1 << 40)
        with mock.patch.object(stored_files, "MAX_BYTES", 1000):
            with self.assertRaisesRegex(UserError, "larger than 1000 bytes"):
                files.read_json(self.path)
            with self.assertRaisesRegex(UserError, "larger than 1000 bytes"):
                vocabulary_lib.Vocabulary.from_file(self.path)

    @parameterized.parameters("[1]", "null", '"a"')
    def test_rejects_json_other_than_an_object(self, text):
        files.write_text(self.path, text)
        with self.assertRaisesRegex(UserError, "x.json must hold one JSON obj"):
            files.read_json_object(self.path)
        files.write_text(self.path, '{"a": [1]}')
        self.assertEqual(files.read_json_object(self.path), {"a": [1]})

    def test_sha256_reads_files_longer_than_one_chunk(self):
        contents = b"abc" * (6 << 20)
        files.write_bytes(self.path, contents)
        expected = hashlib.sha256(contents).hexdigest()
        self.assertEqual(files.sha256(self.path), expected)

    def test_require_file_refuses_all_but_files(self):
        files.write_bytes(self.path, b"x")
        self.assertEqual(files.require_file(self.path, "--a"), self.path)
        for path in (self.path + "x", os.path.dirname(self.path), ""):
            with self.assertRaisesRegex(UserError, "--a(: no such| takes a)"):
                files.require_file(path, "--a")

    def test_bert_config_errors_name_the_file(self):
        files.write_bytes(self.path, b'{"vocab_size": "\xff"}')
        with self.assertRaisesRegex(UserError, "x.json is not valid JSON"):
            files.read_bert_config(self.path)
        os.remove(self.path)
        with self.assertRaisesRegex(UserError, "--bert_config_file.*x.json"):
            files.read_bert_config(self.path)
        files.write_text(self.path, '{"vocab_size": 7, "depth": 2}')
        with self.assertRaisesRegex(UserError, "x.json: depth"):
            files.read_bert_config(self.path)
        files.write_text(self.path, '{"vocab_size": 7}')
        self.assertEqual(files.read_bert_config(self.path).vocab_size, 7)


class LeftoversTest(files_case.FolderCase):
    def _make(self, name):
        path = self.path(name)
        os.mkdir(path)
        files.write_text(os.path.join(path, "weights"), "many")
        return path

    def test_next_write_removes_what_processes_that_are_gone_left(self):
        gone, alive = _ended_process(), os.getppid()
        self._make(f"model.tmp-{gone}-0a1b2c3d")
        # Another container's process may have had the id of this process.
        self._make(f"model.tmp-{os.getpid()}-0a1b2c3d")
        kept = [
            f"model.tmp-{alive}-0a1b2c3d",
            f"models.tmp-{gone}-0a1b2c3d",
            f"model.tmp-{gone}-mine",
        ]
        for name in kept:
            self._make(name)
        path = self.path("model")
        with files.atomic_directory(path) as temporary:
            # This process is writing its temporary directory, so it must stay.
            files.clear_temporaries(self.folder, "model")
            files.write_text(os.path.join(temporary, "weights"), "new")
        self.assertCountEqual(os.listdir(self.folder), [*kept, "model"])

    def test_files_and_links_are_removed_and_targets_stay(self):
        gone = _ended_process()
        target = self._make("target")
        link = self.path(f"a.tmp-{gone}-00000000")
        os.symlink(target, link)
        files.write_text(f"{self.folder}/b.tmp-{gone}-00000000", "half")
        files.write_text(f"{self.folder}/c.tmp-{10**30}-00000000", "half")
        files.clear_temporaries(self.folder)
        self.assertEqual(os.listdir(self.folder), ["target"])
        self.assertEqual(os.listdir(target), ["weights"])
        files.clear_temporaries(self.path("missing"))


class ExchangeTest(tf.test.TestCase):
    def test_reader_never_finds_the_directory_missing(self):
        path = os.path.join(self.create_tempdir().full_path, "model")
        stop, missing, seen = threading.Event(), [], set()

        def read():
            while not stop.is_set():
                try:
                    seen.update(os.listdir(path))
                except FileNotFoundError as error:
                    missing.append(error)

        def write(name):
            with files.atomic_directory(path) as temporary:
                with open(os.path.join(temporary, name), "wb"):
                    pass

        write("0")
        reader = threading.Thread(target=read)
        reader.start()
        try:
            for number in range(40):
                write(str(number))
                # Wait here, or a slow reader might see none of the directories.
                while number in (19, 39) and str(number) not in seen:
                    self.assertEmpty(missing)
                    self.assertTrue(reader.is_alive())
        finally:
            stop.set()
            reader.join()
        self.assertEmpty(missing)
        self.assertGreater(len(seen), 1)
        self.assertEqual(os.listdir(path), ["39"])


if __name__ == "__main__":
    tf.test.main()

"""Tests for bert_tf.io.temporaries."""

import os
import subprocess
import sys
import threading

import tensorflow as tf

from bert_tf.io import files
from bert_tf.io import temporaries
from tests.support import files_case


def _ended_process():
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


class LeftoversTest(files_case.FolderCase):
    def _make(self, name):
        path = os.path.join(self.folder, name)
        os.mkdir(path)
        files.write_text(os.path.join(path, "weights"), "many")
        return path

    def test_next_write_removes_what_processes_that_are_gone_left(self):
        gone, alive = _ended_process(), os.getppid()
        self._make(f"model.tmp-{gone}-0a1b2c3d")
        self._make(f"model.tmp-{os.getpid()}-0a1b2c3d")  # Of a container.
        kept = [
            f"model.tmp-{alive}-0a1b2c3d",
            f"models.tmp-{gone}-0a1b2c3d",
            f"model.tmp-{gone}-mine",
        ]
        for name in kept:
            self._make(name)
        path = os.path.join(self.folder, "model")
        with files.atomic_directory(path) as temporary:
            # A path of this process stays.
            temporaries.clear(self.folder, "model")
            files.write_text(os.path.join(temporary, "weights"), "new")
        self.assertCountEqual(os.listdir(self.folder), [*kept, "model"])

    def test_files_and_links_are_removed_and_targets_stay(self):
        gone = _ended_process()
        target = self._make("target")
        link = os.path.join(self.folder, f"a.tmp-{gone}-00000000")
        os.symlink(target, link)
        files.write_text(f"{self.folder}/b.tmp-{gone}-00000000", "half")
        files.write_text(f"{self.folder}/c.tmp-{10**30}-00000000", "half")
        temporaries.clear(self.folder)
        self.assertEqual(os.listdir(self.folder), ["target"])
        self.assertEqual(os.listdir(target), ["weights"])
        temporaries.clear(os.path.join(self.folder, "missing"))


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
                # The reader sees two, however slow it is.
                while number in (19, 39) and str(number) not in seen:
                    self.assertEmpty(missing)
                    self.assertTrue(reader.is_alive())
        finally:
            stop.set()
            reader.join()
        self.assertEmpty(missing)
        self.assertGreater(len(seen), 1)
        self.assertEqual(os.listdir(path), ["39"])

    def test_errors_are_raised(self):
        folder = self.create_tempdir().full_path
        with self.assertRaises(FileNotFoundError):
            temporaries.exchange(folder, f"{folder}/missing")
        self.assertFalse(temporaries.exchange("gs://a/b", "gs://a/c"))


if __name__ == "__main__":
    tf.test.main()

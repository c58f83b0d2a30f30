"""Tests for bert_tf.io.locks and bert_tf.io.worker_processes."""

import errno
import fcntl
import operator
import os
import pickle
import subprocess
import sys
import tempfile
from unittest import mock

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.io import locks
from bert_tf.io import worker_processes

# Holds a lock until its standard input ends.
_HOLDER = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


class LocksTestCase(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.parent = self.create_tempdir().full_path
        self.path = os.path.join(self.parent, "out")

    def hold(self, path):
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", _HOLDER, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        process.stdout.readline()
        return process


class OneWriterTest(LocksTestCase):
    def test_second_writer_is_refused_until_the_first_is_killed(self):
        os.mkdir(self.path)
        holder = self.hold(self.path)
        with self.assertRaisesRegex(
            UserError,
            f"^Another process writes {self.path}; wait "
            "until it has finished, or choose another --output_dir.$",
        ):
            with locks.one_writer(self.path, "--output_dir"):
                self.fail("Entered.")
        holder.kill()
        holder.wait()
        with locks.one_writer(self.path, "--output_dir"):
            pass
        self.assertEmpty(os.listdir(self.path))

    def test_missing_folder_exists_inside_and_empty_ones_are_removed(self):
        path = os.path.join(self.path, "deep")
        with locks.one_writer(path, "--output_dir"):
            self.assertEmpty(os.listdir(path))
        self.assertEmpty(os.listdir(self.parent))
        with locks.one_writer(path, "--output_dir"):
            os.mkdir(os.path.join(path, "kept"))
        self.assertEqual(os.listdir(path), ["kept"])

    def test_folder_that_was_replaced_meanwhile_is_locked(self):
        os.mkdir(self.path)
        flock, replaced = fcntl.flock, []

        def replace_first(file, operation):
            if not replaced:
                replaced.append(os.rename(self.path, f"{self.path}.old"))
            flock(file, operation)

        self.enter_context(mock.patch.object(fcntl, "flock", replace_first))
        with locks.one_writer(self.path, "--output_dir"):
            with self.assertRaisesRegex(UserError, "Another process"):
                with locks.one_writer(self.path, "--output_dir"):
                    self.fail("Entered.")

    def test_file_is_no_folder(self):
        with open(self.path, "w", encoding="utf-8"):
            pass
        with self.assertRaisesRegex(UserError, "could not be written"):
            with locks.one_writer(self.path, "--output_dir"):
                self.fail("Entered.")

    def test_file_system_without_locks_is_warned_of(self):
        error = OSError(errno.ENOLCK, "No locks available")
        self.enter_context(mock.patch.object(fcntl, "flock", side_effect=error))
        with self.assertLogs(level="WARNING") as logs:
            with locks.one_writer(self.path, "--output_dir"):
                pass
        self.assertIn("without locks (No locks available)", logs.output[0])
        with self.assertRaisesRegex(UserError, "with locks. .*No locks avail"):
            with locks.exclusive(os.path.join(self.path, "x"), "fetches"):
                self.fail("Entered.")

    def test_remote_folders_are_not_locked(self):
        with locks.one_writer("gs://bucket/out", "--output_dir"):
            with locks.one_writer("gs://bucket/out", "--output", True):
                pass
        self.assertFalse(os.path.exists("gs:"))

    def test_lock_beside_an_output_is_removed(self):
        path = os.path.join(self.path, "model/")
        with locks.one_writer(path, "--output", True):
            (name,) = os.listdir(self.path)
            self.assertEqual(name, "model.lock")
            with self.assertRaisesRegex(
                UserError, "Another process.* choose another --output.$"
            ):
                with locks.one_writer(path, "--output", True):
                    self.fail("Entered.")
        self.assertEmpty(os.listdir(self.parent))


class LocalCopyTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.shared = self.create_tempdir("shared")
        self.shared.create_file("a", "one")
        self.shared.create_file("b", "two")
        self.temporary = self.create_tempdir("temporary").full_path
        self.enter_context(
            mock.patch.object(tempfile, "tempdir", self.temporary)
        )

    def test_is_made_once_and_removed_by_the_last_user(self):
        first = locks.LocalCopy(self.shared.full_path)
        second = pickle.loads(pickle.dumps(first))
        path = first.open()
        self.assertCountEqual(os.listdir(path), ["a", "b"])
        self.assertNotEqual(path, self.shared.full_path)
        with open(os.path.join(path, "a"), "w") as file:
            file.write("changed, as one can tell")
        self.assertEqual(second.open(), path)
        first.close()
        with open(os.path.join(path, "a")) as file:
            self.assertEqual(file.read(), "changed, as one can tell")
        second.close()
        self.assertFalse(os.path.exists(path))
        # The last user removed the copy, so `open` makes a new one.
        with open(os.path.join(second.open(), "a")) as file:
            self.assertEqual(file.read(), "one")
        second.close()
        second.close()
        self.assertEmpty(os.listdir(self.temporary))

    def test_instances_have_separate_copies(self):
        copies = [locks.LocalCopy(self.shared.full_path) for _ in range(2)]
        paths = [copy.open() for copy in copies]
        self.assertNotEqual(*paths)
        for copy in copies:
            copy.close()


_PARENT = """
import time
from bert_tf.io import worker_processes
with worker_processes.pool(1) as pool:
    print(pool.submit(bool, 1).result(), flush=True)
    pool.submit(time.sleep, 600).result()
"""


class FinishedTest(tf.test.TestCase):
    def test_takes_few_tasks_ahead_and_finishes_all(self):
        taken = []

        def tasks():
            for number in range(20):
                taken.append(number)
                yield number, 100

        results = {}
        with worker_processes.pool(2) as pool:
            for task, result in worker_processes.finished(
                pool, 2, operator.add, tasks()
            ):
                if not results:
                    # At most two tasks a worker are taken in advance.
                    self.assertLessEqual(len(taken), 4)
                results[task] = result
        self.assertEqual(results, {(n, 100): n + 100 for n in range(20)})

    def test_workers_end_with_a_process_that_is_killed(self):
        with subprocess.Popen(
            [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True
        ) as parent:
            self.assertEqual(parent.stdout.readline(), "True\n")
            parent.kill()
            # The worker holds the pipe open, so this returns once it has ended.
            parent.communicate(timeout=60)

    def test_the_work_is_done_by_other_processes(self):
        with worker_processes.pool(1) as pool:
            [(_, pid)] = worker_processes.finished(pool, 1, os.getpid, [()])
        self.assertNotEqual(pid, os.getpid())


if __name__ == "__main__":
    tf.test.main()

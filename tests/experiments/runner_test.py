"""Tests for bert_tf.experiments.runner, with light programs as jobs."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from unittest import mock

import tensorflow as tf

from bert_tf.experiments import runner
from tests.support import full_disk
from tests.support import runner_program

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_TIMEOUT_SECONDS = 60


def _start(test, out, part="1/1"):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.runner_program", out, part],
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": _ROOT},
        stderr=subprocess.DEVNULL,
    )
    test.addCleanup(process.kill)
    return process


def _exists(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().split()[2] != "Z"
    except FileNotFoundError:
        return False


class RunnerTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self._root = self.create_tempdir().full_path
        self._out = os.path.join(self._root, "out")
        # So that no program waits for ever after a failure.
        self.addCleanup(self._write, "go")

    def _write(self, name, text=""):
        with open(
            os.path.join(self._root, name), "w", encoding="utf-8"
        ) as file:
            file.write(text)

    def _read(self, name):
        with open(os.path.join(self._out, name), encoding="utf-8") as file:
            return json.load(file)

    def _starts(self):
        path = os.path.join(self._root, "starts.txt")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            return [line.split() for line in file.read().splitlines()]

    def _wait(self, condition):
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def test_runs_what_cells_need_once_and_repeats_nothing(self):
        self._write("go")
        calls = []
        first = runner_program.make_runner(
            self._out, on_cell=lambda: calls.append(1)
        )
        commits = [f"commit{i}" for i in range(6)]
        with mock.patch.object(
            runner.results, "current_commit", side_effect=commits
        ):
            self.assertEmpty(first.run())
        self.assertLen(calls, 4)
        names = [name for name, _ in self._starts()]
        order = ["first", "cell0", "cell1", "second", "cell2", "cell3"]
        self.assertEqual(names, order)
        self.assertEmpty(runner_program.make_runner(self._out).run())
        self.assertLen(self._starts(), 6)

        cell = self._read("cells/cell2.json")
        self.assertEqual((cell["score"], cell["metric"]), (25.0, "accuracy"))
        self.assertEqual(cell["scores"], {"accuracy": 0.25, "loss": 2.0})
        self.assertEqual((cell["seed"], cell["majority"]), (7, 50.0))
        # That of the files when the fifth job began.
        self.assertEqual(cell["commit"], "commit4")
        # Also the command of what it needs.
        self.assertLen(cell["commands"], 2)
        self.assertIn(f"{self._out}/pretraining/second", cell["commands"][0])
        self.assertIn(f"{self._out}/runs/cell2", cell["commands"][1])

    def test_no_time_is_estimated_for_what_only_finished_cells_needed(self):
        jobs = runner_program.make_jobs()
        clock = runner.Clock(self._out, jobs, ["cell0", "cell1", "cell2"])
        # The pretraining "second" has been removed: cell2 needs it no more.
        self.assertEqual(
            clock.remaining({"cell0", "cell2"}.__contains__),
            runner.estimate(jobs["first"]) + runner.estimate(jobs["cell1"]),
        )

    def test_progress_in_a_file_is_a_line_for_each_change(self):
        job = runner_program.make_jobs()["first"]
        with mock.patch.object(runner.terminal, "SECONDS_BETWEEN_LINES", 0.0):
            shown = runner_program.make_runner(self._out)
            stream = self.enter_context(
                contextlib.redirect_stderr(io.StringIO())
            )
            with runner.progress.bar(4, "experiments", "cell") as shown._bar:
                for step, left in ((100, 2), (100, 2), (200, 1)):
                    line = f"Step {step} of 300: 9 tokens/s, 00:0{left} left."
                    self._write("log", line)
                    state = runner._state(os.path.join(self._root, "log"))
                    shown._show(f"{job.title}{state}")
        lines = stream.getvalue().splitlines()
        self.assertLen(lines, 3)  # The first one is of no job.
        self.assertEndsWith(lines[1], ", first (step 100 of 300, 00:02 left)")
        self.assertEndsWith(lines[2], ", first (step 200 of 300, 00:01 left)")

    def test_failed_cell_is_recorded_and_tried_again_by_the_next_run(self):
        self._write("go")
        self._write("fails.txt", "cell1")
        runner = runner_program.make_runner(self._out)
        self.assertEqual(runner.run(), ["cell1"])
        failed = self._read("cells/cell1.failed.json")
        self.assertEqual(
            failed["last_lines"][-3:],
            [
                "Reading the data.",
                "ERROR: The data are broken.",
                "Exit status 1.",
            ],
        )
        self.assertIn("runs/cell1", failed["command"])
        self.assertTrue(os.path.exists(failed["log"]))
        self._write("fails.txt")
        self.assertEmpty(runner_program.make_runner(self._out).run())
        path = os.path.join(self._out, "cells", "cell1.failed.json")
        self.assertFalse(os.path.exists(path))

    def test_failed_pretraining_fails_its_cells_but_no_others(self):
        self._write("go")
        self._write("fails.txt", "first")
        runner = runner_program.make_runner(self._out)
        self.assertEqual(runner.run(), ["cell0", "cell1"])
        names = [name for name, _ in self._starts()]
        self.assertEqual(names, ["first", "second", "cell2", "cell3"])
        failed = self._read("cells/cell0.failed.json")
        self.assertIn("pretraining/first", failed["command"])

    def test_killed_run_ends_its_program_and_resumes(self):
        process = _start(self, self._out)
        self._wait(self._starts)
        ((name, pid),) = self._starts()
        self.assertEqual(name, "first")
        process.send_signal(signal.SIGKILL)
        process.wait()
        self._wait(lambda: not _exists(pid))
        self._write("go")
        self.assertEmpty(runner_program.make_runner(self._out).run())
        names = [name for name, _ in self._starts()]
        order = ["first", "cell0", "cell1", "second", "cell2", "cell3"]
        self.assertEqual(names, ["first", *order])

    def test_sigterm_ends_the_program_too(self):
        process = _start(self, self._out)
        self._wait(self._starts)
        ((_, pid),) = self._starts()
        process.send_signal(signal.SIGTERM)
        process.wait(_TIMEOUT_SECONDS)
        # The kernel may end it only once the runner has ended.
        self._wait(lambda: not _exists(pid))

    def test_two_shards_make_each_pretraining_once(self):
        # Of cells 0 to 3, each shard needs both pretrainings.
        processes = [_start(self, self._out, part) for part in ("1/2", "2/2")]
        # One makes the first, the other does not wait but makes the second.
        self._wait(lambda: len(self._starts()) == 2)
        names = sorted(name for name, _ in self._starts())
        self.assertEqual(names, ["first", "second"])
        self._write("go")
        for process in processes:
            self.assertEqual(process.wait(_TIMEOUT_SECONDS), 0)
        names = sorted(name for name, _ in self._starts())
        cells = [f"cell{i}" for i in range(4)]
        self.assertEqual(names, [*cells, "first", "second"])
        folder = os.path.join(self._out, "cells")
        self.assertLen(os.listdir(folder), 4)

    def test_ends_after_the_cell_that_passes_the_minutes(self):
        self._write("go")
        clock = self.enter_context(
            mock.patch.object(runner.time, "monotonic", return_value=0.0)
        )

        def pass_minutes():
            clock.return_value += 60 * 2.0

        first = runner_program.make_runner(self._out, on_cell=pass_minutes)
        self.assertLen(first.run(max_minutes=1), 3)
        names = [name for name, _ in self._starts()]
        self.assertEqual(names, ["first", "cell0"])
        second = runner_program.make_runner(self._out)
        self.assertLen(second.run(max_minutes=0), 3)
        self.assertEmpty(runner_program.make_runner(self._out).run())

    def test_full_disk_fails_cells_and_not_the_run(self):
        with full_disk.mount(self, 2) as folder:
            with (
                contextlib.suppress(OSError),
                open(os.path.join(folder, "go"), "wb", buffering=0) as file,
            ):
                while file.write(bytes(4096)):  # Until all space is used.
                    pass
            runner = runner_program.make_runner(os.path.join(folder, "out"))
            self.assertLen(runner.run(), 4)
            self.assertLen(runner.failed, 6)


if __name__ == "__main__":
    tf.test.main()

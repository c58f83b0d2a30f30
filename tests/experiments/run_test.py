"""Tests for run/experiments.py: its loop with light programs, and for real."""

import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from unittest import mock

import pytest
import tensorflow as tf

from bert_tf.commands.experiments import ExperimentsConfig
from bert_tf.errors import UserError
from bert_tf.experiments import run
from tests.support import experiment_inputs
from tests.support import runner_program

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_ALL = "table5,table6,table7,table8,figure5,stability"
_ORDER = ["first", "cell0", "cell1", "second", "cell2", "cell3"]
_TIMEOUT_SECONDS = 60
_REAL_SECONDS = 1000


def _start(*words, **options):
    environment = {"PYTHONPATH": _ROOT, "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=_ROOT,
        env=os.environ | environment,
        text=True,
        **options,
    )


def _exists(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().split()[2] != "Z"
    except FileNotFoundError:
        return False


class LoopTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self._root = pathlib.Path(self.create_tempdir().full_path)
        self._out = self._root / "out"
        # So that no program waits for ever after a failure.
        self.addCleanup(self._write, "go")

    def _write(self, name, text=""):
        (self._root / name).write_text(text)

    def _read(self, name):
        return json.loads((self._out / name).read_text())

    def _run(self, **flags):
        runner_program.make_runner(str(self._out)).run(**flags)

    def _start(self):
        module = ("-m", "tests.support.runner_program", str(self._out))
        process = _start(*module, stderr=subprocess.DEVNULL)
        self.addCleanup(process.kill)
        return process

    def _starts(self):
        """Returns the name and the process of each program so far."""
        path = self._root / "starts.txt"
        text = path.read_text() if path.exists() else ""
        return [line.split() for line in text.splitlines()]

    def _names(self):
        return [name for name, _ in self._starts()]

    def _wait(self, condition):
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def test_makes_what_cells_need_once_and_repeats_nothing(self):
        self._write("go")
        commits = [f"commit{i}" for i in range(6)]
        with mock.patch.object(run, "current_commit", side_effect=commits):
            self._run()
        self.assertEqual(self._names(), _ORDER)
        self._run()
        self.assertLen(self._starts(), 6)
        cell = self._read("cells/cell2.json")
        self.assertEqual((cell["score"], cell["metric"]), (25.0, "accuracy"))
        self.assertEqual(cell["scores"], {"accuracy": 0.25, "loss": 2.0})
        self.assertEqual((cell["seed"], cell["majority"]), (7, 50.0))
        # That of the files when the fifth step began.
        self.assertEqual(cell["commit"], "commit4")
        # Also the command of what it needs.
        first, second = cell["commands"]
        self.assertIn(f"{self._out}/pretraining/second", first)
        self.assertIn(f"{self._out}/runs/cell2", second)

    def test_failed_cell_is_recorded_and_tried_again_by_the_next_run(self):
        self._write("go")
        self._write("fails.txt", "cell1")
        with self.assertRaisesRegex(UserError, "1 of 4 cells.*cell1.*again"):
            self._run()
        failed = self._read("cells/cell1.failed.json")
        self.assertEqual(failed["error"], "Exit status 1.")
        self.assertIn("runs/cell1", failed["command"])
        with open(failed["log"], encoding="utf-8") as log:
            self.assertIn("Reading the data.\nERROR: The data are", log.read())
        self._write("fails.txt")
        self._run()
        self.assertFalse((self._out / "cells/cell1.failed.json").exists())

    def test_killed_run_ends_its_program_and_resumes(self):
        for number in (signal.SIGKILL, signal.SIGTERM):
            before, process = len(self._starts()), self._start()
            self._wait(lambda n=before: len(self._starts()) > n)
            name, pid = self._starts()[-1]
            self.assertEqual(name, "first")
            process.send_signal(number)
            process.wait(_TIMEOUT_SECONDS)
            self._wait(lambda p=pid: not _exists(p))
        self._write("go")
        self._run()
        self.assertEqual(self._names(), ["first", "first", *_ORDER])

    def test_two_processes_share_a_folder(self):
        processes = [self._start(), self._start()]
        # One makes the first, the other does not wait but makes the second.
        self._wait(lambda: len(self._starts()) == 2)
        self.assertCountEqual(self._names(), ["first", "second"])
        self._write("go")
        for process in processes:
            self.assertEqual(process.wait(_TIMEOUT_SECONDS), 0)
        self.assertCountEqual(self._names(), _ORDER)
        self.assertLen(list((self._out / "cells").iterdir()), 4)

    def test_ends_after_the_cell_that_passes_the_minutes(self):
        self._write("go")
        with mock.patch.object(run.time, "monotonic", return_value=0.0) as now:

            def pass_minutes(folder):
                del folder
                now.return_value += 60 * 2.0

            with mock.patch.object(run.report, "write", pass_minutes):
                self._run(max_minutes=1)
            self.assertEqual(self._names(), ["first", "cell0"])
            self._run(max_minutes=0)
        self.assertLen(self._starts(), 2)
        self._run()
        self.assertEqual(self._names(), _ORDER)


class CommandTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self._folder = self.create_tempdir().full_path
        self._out = os.path.join(self._folder, "out")
        self._corpus = experiment_inputs.write_corpus(self._folder)
        self._config = ExperimentsConfig(
            experiments=_ALL,
            scale="smoke",
            corpus=self._corpus,
            data_dir=experiment_inputs.write_tasks(self._folder),
            output_dir=self._out,
        )

    def _print(self, **flags):
        values = {**vars(self._config), **flags}
        with contextlib.redirect_stdout(io.StringIO()) as output:
            run.run(ExperimentsConfig(**values))
        return output.getvalue()

    def test_dry_run_prints_commands_and_touches_nothing(self):
        plan = self._print(dry_run=True)
        self.assertFalse(os.path.exists(self._out))
        self.assertLen(re.findall("^# .*-seed", plan, flags=re.M), 9)
        self.assertRegex(plan, "# 11 cells and 10 steps .*; 0 cells are done")
        self.assertNotIn("{", plan)
        self.assertNotIn(self._folder + "/tmp", plan)
        # Finished cells, and what only they need, are left out.
        os.makedirs(os.path.join(self._out, "cells"))
        for cell in re.findall(r"^# (\S*masks_0_0_100\S*seed\S*)", plan, re.M):
            with open(os.path.join(self._out, f"cells/{cell}.json"), "w"):
                pass
        plan = self._print(dry_run=True)
        self.assertNotIn("masks_0_0_100", plan)
        self.assertIn("# 10 cells and 8 steps", plan)

    def test_list_names_what_is_found_and_what_is_not(self):
        os.makedirs(os.path.join(self._config.data_dir, "MRPC"))
        with self.assertLogs(level="WARNING") as logs:
            text = self._print(list=True)
        self.assertRegex(logs.output[0], r"MRPC lacks \S*train")
        for words in (
            r"pairs +classification, accuracy: .*b.tsv",
            r"squad +not found: squad/train-v1.1.json",
            r"table7 .*\n +needs --corpus or --pretrained_mod",
            "triviaqa/qa/wikipedia-train.json",
        ):
            self.assertRegex(text, words)

    def test_refuses_another_corpus_or_scale_in_the_folder(self):
        run.make_plan(self._config, self._out)
        # The same text under another name is the same corpus.
        moved = shutil.copy(self._corpus, os.path.join(self._folder, "b.txt"))
        self._print(corpus=moved, dry_run=True)
        moved = self.create_tempdir().full_path
        other = experiment_inputs.write_corpus(moved, first=9)
        message = f"and --corpus={self._corpus}. Received: .*{other}"
        with self.assertRaisesRegex(UserError, message):
            self._print(corpus=other)
        with self.assertRaisesRegex(UserError, "=smoke .*--scale=small"):
            self._print(scale="small", tasks="pairs,names")

    def test_an_unusable_corpus_is_not_remembered(self):
        path = pathlib.Path(self._folder, "corpus.txt")
        good = path.read_text()
        path.write_text("One text.\n")
        with self.assertRaisesRegex(UserError, "at least two documents"):
            run.make_plan(self._config, self._out)
        path.write_text(good)
        run.make_plan(self._config, self._out)

    def test_wrong_flags_are_refused_in_one_sentence(self):
        for flags, message in (
            ({"experiments": "table9"}, "--experiments must.*'table9'"),
            ({"experiments": None}, "--experiments and --output_dir"),
            ({"output_dir": "a,b"}, "--output_dir must.*comma.*'a,b'"),
            ({"num_seeds": 0}, "--num_seeds"),
            ({"max_minutes": -1.0}, "--max_minutes"),
        ):
            values = {**vars(self._config), **flags}
            with self.assertRaisesRegex(UserError, message):
                ExperimentsConfig(**values)


class RealTest(tf.test.TestCase):
    @pytest.mark.thorough
    def test_killed_run_is_finished_by_two_processes_and_by_hand_the_same(self):
        folder = self.create_tempdir().full_path
        self._out = os.path.join(folder, "out")
        command = [
            os.path.join(_ROOT, "run", "experiments.py"),
            f"--experiments={_ALL}",
            "--scale=smoke",
            f"--corpus={experiment_inputs.write_corpus(folder)}",
            f"--data_dir={experiment_inputs.write_tasks(folder)}",
            f"--output_dir={self._out}",
        ]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = _start(*command, **pipes)
        deadline = time.monotonic() + _REAL_SECONDS
        while not self._names("pretraining"):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self.assertEmpty(self._names("cells"))
        for process in [_start(*command, **pipes) for _ in range(2)]:
            _, log = process.communicate(timeout=_REAL_SECONDS)
            self.assertEqual(process.returncode, 0, log)
        cells = self._names("cells")
        self.assertLen([x for x in cells if "perplexity" in x], 2)
        self.assertLen(cells, 11)
        report = self._read("report.json")
        self.assertEqual(report["num_finished"], 11)
        plots = [x for x in self._names(".") if x.endswith(".png")]
        self.assertLen(plots, 6)
        pair = next(x for x in cells if x.startswith("pairs-"))
        self.assertIn("test_score", self._read(f"cells/{pair}"))
        # Nothing is left to do.
        _, log = _start(*command, **pipes).communicate()
        self.assertIn("11 of 11 cells are done", log)
        name = next(x for x in cells if x.startswith("names-"))
        self._check_by_hand(self._read(f"cells/{name}"), folder)

    def _names(self, folder):
        return [x.name for x in pathlib.Path(self._out, folder).glob("*")]

    def _read(self, name):
        return json.loads(pathlib.Path(self._out, name).read_text("utf-8"))

    def _check_by_hand(self, cell, folder):
        """Repeats a cell's commands in another folder."""
        other = os.path.join(folder, "by_hand")
        commands = "\n".join(cell["commands"])
        for part in ("vocabulary", "records", "pretraining", "runs"):
            commands = commands.replace(
                f"{self._out}/{part}/", f"{other}/{part}/"
            )
        start = f"{sys.executable} "
        commands = re.sub(r"^python ", start, commands, flags=re.M)
        subprocess.run(
            ["bash", "-e", "-c", commands],
            check=True,
            cwd=_ROOT,
            env=os.environ | {"PYTHONPATH": _ROOT},
            capture_output=True,
        )
        path = os.path.join(other, "runs", cell["id"], "eval_results.json")
        with open(path, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["dev"], cell["scores"])


if __name__ == "__main__":
    tf.test.main()

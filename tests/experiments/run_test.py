"""Tests for run/experiments.py: the smallest scale, for real."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import tensorflow as tf

from tests.support import experiment_inputs

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_SCRIPT = os.path.join(_ROOT, "run", "experiments.py")
_ALL = "table5,table6,table7,table8,figure5,stability"
_TIMEOUT_SECONDS = 1000


def _command(*flags):
    return [sys.executable, _SCRIPT, *flags]


def _options():
    return {
        "cwd": _ROOT,
        "env": os.environ | {"PYTHONPATH": _ROOT, "TF_CPP_MIN_LOG_LEVEL": "2"},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }


def _run(*flags):
    return subprocess.run(_command(*flags), check=False, **_options())


class ExperimentsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self._folder = self.create_tempdir().full_path
        self._out = os.path.join(self._folder, "out")
        self._flags = (
            f"--experiments={_ALL}",
            "--scale=smoke",
            f"--corpus={experiment_inputs.write_corpus(self._folder)}",
            f"--data_dir={experiment_inputs.write_tasks(self._folder)}",
            f"--output_dir={self._out}",
        )

    def _names(self, folder):
        path = os.path.join(self._out, folder)
        return sorted(os.listdir(path)) if os.path.isdir(path) else []

    def _cell(self, name):
        path = os.path.join(self._out, "cells", name)
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def _kill_in_pretraining(self):
        process = subprocess.Popen(_command(*self._flags), **_options())
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not self._names("pretraining"):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        process.communicate()

    @pytest.mark.thorough
    def test_killed_run_is_finished_by_two_shards_and_by_hand_the_same(self):
        self._kill_in_pretraining()
        self.assertEmpty(self._names("cells"))
        shards = [
            subprocess.Popen(
                _command(*self._flags, f"--shard={i}/2"), **_options()
            )
            for i in (1, 2)
        ]
        for shard in shards:
            _, log = shard.communicate(timeout=_TIMEOUT_SECONDS)
            self.assertEqual(shard.returncode, 0, log)
        cells = self._names("cells")
        self.assertLen([x for x in cells if "perplexity" in x], 2)
        self.assertLen(cells, 11)
        path = os.path.join(self._out, "report.json")
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual(report["num_finished"], 11)
        for table in report["tables"]:
            path = os.path.join(self._out, f"{table['name']}.png")
            self.assertTrue(os.path.exists(path))
        pair = next(x for x in cells if x.startswith("pairs-"))
        self.assertIn("test_score", self._cell(pair))
        with open(os.path.join(self._out, "report.md")) as file:
            self.assertIn("| test |", file.read())
        # Nothing is left to do.
        again = _run(*self._flags)
        self.assertIn("11 of 11 cells are done", again.stderr)
        self._check_by_hand(next(x for x in cells if x.startswith("names-")))
        for name in ("steps", "pretraining"):
            shutil.rmtree(os.path.join(self._out, name))
        plan = _run(*self._flags, "--dry_run").stdout
        self.assertRegex(plan, "# pretraining-.*: not needed again")
        self.assertIn("minutes, of which 0 are left.", plan)

    def _check_by_hand(self, name):
        """Repeats a cell's commands in another folder."""
        cell = self._cell(name)
        other = os.path.join(self._folder, "by_hand")
        commands = "\n".join(cell["commands"])
        for part in ("vocabulary", "records", "pretraining", "runs"):
            commands = commands.replace(
                f"{self._out}/{part}/", f"{other}/{part}/"
            )
        commands = re.sub(
            r"^python ", f"{sys.executable} ", commands, flags=re.M
        )
        done = subprocess.run(
            ["bash", "-e", "-c", commands], check=False, **_options()
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        path = os.path.join(other, "runs", cell["id"], "eval_results.json")
        with open(path, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["dev"], cell["scores"])

    def test_dry_run_prints_commands_and_runs_none(self):
        done = _run(*self._flags, "--dry_run")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLen(re.findall("^# .*-seed", done.stdout, flags=re.M), 9)
        self.assertRegex(done.stdout, "# 11 cells and 10 jobs .* minutes")
        self.assertEmpty(self._names("logs"))
        # Beside a run with other flags, its report stays as it is.
        self.assertEmpty(self._names("tables"))
        self.assertContainsSubset(
            ["corpus"], [x.partition("-")[0] for x in self._names("data")]
        )

    def test_list_names_what_is_found_and_what_is_not(self):
        done = _run("--list", self._flags[3])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"pairs +classification, accuracy\n")
        self.assertRegex(done.stdout, r"squad +squad/ with train-v1.1.json")

    def test_wrong_flags_are_refused_in_one_sentence(self):
        done = _run("--experiments=table9", "--output_dir=x")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"ERROR: --experiments must.*'table9'\.")
        done = _run("--experiments=table5", "--output_dir=x", "--shard=3/2")
        self.assertRegex(done.stderr, "ERROR: --shard must be i/n.*'3/2'")
        done = _run("--experiments=table5", "--output_dir=a,b")
        self.assertRegex(done.stderr, "ERROR: --output_dir must.*comma.*'a,b'")


if __name__ == "__main__":
    tf.test.main()

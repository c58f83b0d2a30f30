"""Plans and runs the experiments of the flags, and writes the report.

A step is locked while its program runs, so several machines can run the same
command on one folder. The lock is on the step's log. The program holds the log
open, so the lock lasts as long as the program, even if this process is killed.
A file marks each finished step, so that no command repeats the step.
"""

import contextlib
import datetime
import itertools
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO
from typing import Any

from absl import logging

import bert_tf
from bert_tf import errors
from bert_tf.errors import UserError
from bert_tf.experiments import data
from bert_tf.experiments import plan as plans
from bert_tf.experiments import report
from bert_tf.experiments.plan import CELL
from bert_tf.experiments.plan import HERE
from bert_tf.experiments.plan import Command
from bert_tf.experiments.plan import Plan
from bert_tf.experiments.plan import Step
from bert_tf.flags import cli
from bert_tf.flags.options import Flags
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.io import text_files

_CLONE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_WAIT_SECONDS = 2.0
# Starts a program to which Linux sends SIGTERM if this process is killed. A
# `preexec_fn` could do the same, but aborts in a process with gRPC's threads.
_END_WITH_PARENT = """import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"""
# Unused files of a finished cell, which are removed to save disk space.
_REMOVED = ("model", "best", "summaries", "checkpoint", "model.ckpt-*")


def run(config: Flags) -> None:
    """Runs the experiments; --list and --dry_run only print."""
    if config.list:
        sys.stdout.write(plans.describe(config))
        return
    if config.dry_run:
        # Write nothing to --output_dir; step ids do not depend on the folder.
        with tempfile.TemporaryDirectory() as folder:
            plan, _ = make_plan(config, folder)
        sys.stdout.write(Runner(config.output_dir, plan).describe())
        return
    # Lock the folder, as several machines may start at once.
    with locks.exclusive(f"{config.output_dir}/data", "writes"):
        plan, built = make_plan(config, config.output_dir)
        for table in built:
            path = f"{config.output_dir}/tables/{table['name']}.json"
            data.write_json(path, table)
    Runner(config.output_dir, plan).run(config.max_minutes)


def make_plan(config: Flags, folder: str) -> tuple[Plan, list]:
    """Returns the plan and its tables; writes the commands' input files."""
    scale = data.read_recipe(f"scales/{config.scale}")
    found = data.find_tasks(config.data_dir)
    chosen = plans.choose_tasks(config, scale, found)
    sums = data.find_corpus(config.corpus) if config.corpus else {}
    identity = _check_identity(config, sums)
    name = data.corpus_name(sums, scale) if sums else None
    if name and folder == config.output_dir:
        data.split_corpus([*sums], os.path.join(folder, "data", name), scale)
    plan, built = Plan(scale, folder, name), []
    for experiment, tasks in chosen.items():
        # "stability" trains each task on several subsets, such as 1000 rows.
        limits = scale.get(experiment, {}).get("rows", [None])
        prepared = []
        for rows, task in itertools.product(limits, tasks):
            train, dev = scale["rows"].get(task.kind, (None, None))
            prepared.append(data.prepare(task, folder, rows or train, dev))
        built.append(plans.build(experiment, plan, prepared, config))
    # Write this file last: after an error, scale and corpus may still change.
    data.write_json(os.path.join(folder, "experiments.json"), identity)
    return plan, built


def _check_identity(config: Flags, sums: dict[str, str]) -> dict:
    """Returns scale and corpus, which must not change in --output_dir."""
    path = os.path.join(config.output_dir, "experiments.json")
    now = {"scale": config.scale, "corpus": sums}
    earlier = text_files.read_json(path) if os.path.exists(path) else now
    before = earlier["corpus"] or sums
    texts = [sorted(x.values()) for x in (before, sums or before)]
    if earlier["scale"] != config.scale or texts[0] != texts[1]:
        raise UserError(
            f"--output_dir={config.output_dir} has experiments of --scale="
            f"{earlier['scale']} and --corpus={','.join(before)}. Received: "
            f"--scale={config.scale} and --corpus={','.join(sums)}; give the "
            "same scale and text, or another --output_dir."
        )
    return now | {"corpus": before}


class Runner:
    """Runs the cells of a plan and the steps that they need, in a folder."""

    def __init__(self, output_dir: str, plan: Plan) -> None:
        self._output_dir = output_dir
        self._plan = plan
        # The command, log and error of each failed step, by id.
        self._failed: dict[str, dict[str, str]] = {}

    def run(self, max_minutes: float | None = None) -> None:
        """Runs the cells, and rewrites the report after each cell."""
        minutes = float("inf") if max_minutes is None else max_minutes
        signal.signal(signal.SIGTERM, _stop)
        self._loop(time.monotonic() + 60 * minutes)
        folder, cells = self._output_dir, self._plan.cells
        report.write(folder)
        logging.info("%s. Report: %s/report.md", self._progress(), folder)
        if failed := [x for x in cells if x in self._failed]:
            raise UserError(
                f"{len(failed)} of {len(cells)} cells have failed, as "
                f"{failed[0]}; see {folder}/cells/*.failed.json. The same "
                "command tries them again."
            )

    def _loop(self, deadline: float) -> None:
        """Runs the steps; waits for steps that other processes run."""
        waiting = self._with_needs(self._plan.cells, True)
        while waiting:
            busy = []
            for step in waiting:
                if time.monotonic() >= deadline:
                    return
                needs = step.needs
                if failed := [x for x in needs if x in self._failed]:
                    self._fail(step, **self._failed[failed[0]])
                elif not (all(map(self._is_done, needs)) and self._make(step)):
                    busy.append(step)
                    continue
                if step.kind == CELL:
                    report.write(self._output_dir)
            if busy == waiting:
                text = "Another process makes %s."
                logging.log_every_n_seconds(logging.INFO, text, 60, busy[0].id)
                time.sleep(_WAIT_SECONDS)
            waiting = busy

    def _path(self, step: str, ending: str = ".json") -> str:
        """Returns the path of a step's file; .json marks a finished step."""
        is_cell = self._plan.steps[step].kind == CELL
        folder = "cells" if is_cell else "steps"
        return f"{self._output_dir}/{folder}/{step}{ending}"

    def _is_done(self, step: str) -> bool:
        return os.path.exists(self._path(step))

    def _progress(self) -> str:
        done = sum(map(self._is_done, self._plan.cells))
        return f"{done} of {len(self._plan.cells)} cells are done"

    def _make(self, step: Step) -> bool:
        """Runs a step and records failure; False if another process runs it."""
        path, shell = f"{self._output_dir}/logs/{step.id}.log", ""
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "ab") as log:
                if not locks.try_lock(log):
                    return False
                if self._is_done(step.id):
                    return True
                state = self._progress()
                logging.info("%s. Next: %s, log %s", state, step.id, path)
                # Read the commit for each step, as the code may have changed.
                begin, commit = time.monotonic(), current_commit()
                for number, command in enumerate(step.commands, start=1):
                    shell = self._shell(step, command)
                    # Skip a command that an earlier, killed run has finished.
                    marker = self._path(step.id, f".command{number}.done")
                    if not os.path.exists(marker):
                        log.write(f"$ {shell}\n".encode())
                        log.flush()
                        self._call(step, command, log)
                    if number < len(step.commands):
                        files.write_bytes(marker, b"")
                self._record(step, commit, begin)
        except (OSError, ValueError) as error:  # UserError is a ValueError.
            self._fail(step, shell, path, str(error))
        return True

    def _call(self, step: Step, command: Command, log: IO[bytes]) -> None:
        script, _ = command
        start = [path := os.path.join(_CLONE, script)]
        if not os.path.exists(path):
            start = ["-m", "bert_tf", errors.command(script)]
        words = self._words(step, command)
        with subprocess.Popen(
            [sys.executable, "-c", _END_WITH_PARENT, *start, *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as process:
            try:
                status = process.wait()
            except BaseException:  # This process has to stop.
                process.terminate()  # The program saves a checkpoint first.
                raise
        if status:
            raise UserError(f"Exit status {status}.")

    def _record(self, step: Step, commit: str, begin: float) -> None:
        now = datetime.datetime.now(datetime.UTC)
        values = {"id": step.id, **(self._score(step) if step.score else {})}
        values["commands"] = [
            self._shell(x, command)
            for x in self._with_needs([step.id])
            for command in x.commands
        ]
        values["commit"] = commit
        values["seconds"] = round(time.monotonic() - begin, 1)
        values["finished"] = now.isoformat(timespec="seconds")
        data.write_json(self._path(step.id), values)
        pathlib.Path(self._path(step.id, ".failed.json")).unlink(True)
        if step.kind == CELL and step.commands:
            here = pathlib.Path(self._fill(step, step.here))
            for path in [x for name in _REMOVED for x in here.rglob(name)]:
                shutil.rmtree(path, ignore_errors=True)
                # Ignore errors: a file that stays only wastes space.
                with contextlib.suppress(OSError):
                    path.unlink()

    def _fail(self, step: Step, command: str, log: str, error: str) -> None:
        """Reports and records a failed step; other steps continue."""
        values = {"command": command, "log": log, "error": error}
        self._failed[step.id] = values
        message = "%s has failed: %s\n  %s\nThe others continue. Log: %s"
        logging.error(message, step.id, error, command, log)
        with contextlib.suppress(OSError):  # The disk may be full.
            path = self._path(step.id, ".failed.json")
            data.write_json(path, {"id": step.id, **values})

    def _score(self, step: Step) -> dict[str, Any]:
        """Returns the score of a cell and all results of its command."""
        how, path = step.score, self._fill(step, step.score.path)
        if path.endswith(".json"):
            splits = text_files.read_json(path)
        else:
            pairs = (x.split(" = ") for _, x in text_files.read_lines(path))
            splits = {"": {name: float(value) for name, value in pairs}}
        names = [x for x in splits if x.startswith(how.split)]
        found = splits[names[0]] if names else {}
        if not isinstance(found.get(how.metric), int | float):
            found = ", ".join(found) or "nothing"
            raise UserError(f"{path} must hold {how.metric}, but has {found}.")
        values = {
            "score": how.factor * found[how.metric],
            "metric": how.metric,
            "scores": found,
            "seed": how.seed,
            "majority": how.majority,
        }
        if how.metric in (test := splits.get("test", {})):
            values["test_score"] = how.factor * test[how.metric]
        return values

    def describe(self) -> str:
        """Returns the commands of unfinished cells and of their steps."""
        to_do, lines = self._with_needs(self._plan.cells, True), []
        for step in to_do:
            reads = f"# reads what {', '.join(step.needs)} wrote"
            commands = [self._shell(step, x) for x in step.commands]
            lines += [f"# {step.id}", *(commands or [reads]), ""]
        cells = sum(x.kind == CELL for x in to_do)
        return "\n".join(lines) + (
            f"\n# {cells} cells and {len(to_do) - cells} steps that they need "
            f"are to run; {len(self._plan.cells) - cells} cells are done.\n"
        )

    def _with_needs(
        self, steps: Sequence[str], skips_done: bool = False
    ) -> list[Step]:
        """Returns the steps and all steps that they need, in order."""
        found: dict[str, Step] = {}
        for step in map(self._plan.steps.get, steps):
            if not (skips_done and self._is_done(step.id)):
                needed = self._with_needs(step.needs, skips_done)
                found |= {x.id: x for x in (*needed, step)}
        return [*found.values()]

    def _fill(self, step: Step, text: str) -> str:
        """Replaces placeholders with paths."""
        places = {HERE: step.here, data.OUT: self._output_dir}
        for name, path in {**places, **self._plan.places}.items():
            text = text.replace(name, path)
        return text

    def _words(self, step: Step, command: Command) -> list[str]:
        return [self._fill(step, word) for word in cli.words(command[1])]

    def _shell(self, step: Step, command: Command) -> str:
        """Returns a command for a shell in the folder of the clone."""
        words = shlex.join(self._words(step, command))
        return f"{errors.program(command[0])} {words}"


def current_commit() -> str:
    """Returns the commit of the code, with "-dirty" if files have changed."""
    words = ("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    if os.path.exists(os.path.join(_CLONE, ".git")):
        # If git is missing or fails, return the version instead.
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            git = ["git", "-C", _CLONE, *words]
            return subprocess.check_output(git, text=True).strip()
    return f"bert_tf {bert_tf.__version__}"


def _stop(number: int, frame: Any) -> None:
    del frame
    signal.signal(number, signal.SIG_IGN)
    raise errors.Preempted("Stopped; the same command resumes.")

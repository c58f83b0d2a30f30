"""Runs the experiments of the flags: plans their cells, makes them, reports.

A step is locked while its program runs: several machines may run the same
command on one folder. The program inherits the lock, which so ends with it even
if this process is killed. Finished steps have a file and are not repeated.
"""

import contextlib
import ctypes
import datetime
import glob
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import logging

import bert_tf
from bert_tf import errors
from bert_tf.errors import Preempted
from bert_tf.errors import UserError
from bert_tf.experiments import corpus
from bert_tf.experiments import data
from bert_tf.experiments import report
from bert_tf.experiments import tables
from bert_tf.experiments.plan import CELL
from bert_tf.experiments.plan import HERE
from bert_tf.experiments.plan import Command
from bert_tf.experiments.plan import Plan
from bert_tf.experiments.plan import Step
from bert_tf.flags.experiments import STABILITY
from bert_tf.flags.experiments import ExperimentsConfig
from bert_tf.io import locks
from bert_tf.io import progress
from bert_tf.io import terminal
from bert_tf.io import text_files

_CLONE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_FAILED = ".failed.json"
_NUM_LAST_LINES = 12
_LOG_BYTES = 4096
_POLL_SECONDS = 0.5
_WAIT_SECONDS = 2.0
# A program that is asked to stop saves a checkpoint.
_STOP_SECONDS = 120.0
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
# Parts of a finished cell that nothing reads.
_REMOVED = ("model", "best", "summaries", "checkpoint", "model.ckpt-*")


def run(config: ExperimentsConfig) -> None:
    """Runs the experiments, or prints what the flags ask for.

    Raises:
      UserError: If something is missing, --output_dir is of another corpus or
        scale, or cells have failed.
      Preempted: If the process was asked to stop.
    """
    if config.list:
        scale = data.read_recipe(f"scales/{config.scale}")
        found = data.find_tasks(config.data_dir)
        sys.stdout.write(tables.describe(scale, found, config))
        return
    if config.dry_run:
        # Ids do not depend on the folder in which files are written.
        with tempfile.TemporaryDirectory() as folder:
            plan, _ = make_plan(config, folder)
        sys.stdout.write(Runner(config.output_dir, plan).describe())
        return
    # One process at a time, as several machines may begin at once.
    with locks.exclusive(os.path.join(config.output_dir, "data"), "writes"):
        plan, built = make_plan(config, config.output_dir)
        for table in built:
            name = f"tables/{table['name']}.json"
            data.write_json(os.path.join(config.output_dir, name), table)
    Runner(config.output_dir, plan).run(config.max_minutes)


def make_plan(
    config: ExperimentsConfig, folder: str
) -> tuple[Plan, list[dict[str, Any]]]:
    """Returns the plan and its tables, and writes the files of commands.

    Args:
      config: The flags.
      folder: The folder for the files: --output_dir, or a temporary one, in
        which the corpus is not divided.
    """
    scale = data.read_recipe(f"scales/{config.scale}")
    found = data.find_tasks(config.data_dir)
    chosen = tables.choose_tasks(config, scale, found)
    sums = corpus.find_files(config.corpus) if config.corpus else {}
    identity = _check_identity(config, sums)
    name = corpus.folder_name(sums, scale) if sums else None
    if name and folder == config.output_dir:
        corpus.split([*sums], os.path.join(folder, "data", name), scale)
    plan, built = Plan(scale, folder, name, config.num_seeds), []
    for experiment, tasks in chosen.items():
        prepared = []
        is_small = experiment == STABILITY
        for rows in scale[STABILITY]["rows"] if is_small else (None,):
            for task in tasks:
                train, dev = plan.max_rows(task.kind)
                prepared.append(data.prepare(task, folder, rows or train, dev))
        built.append(tables.build(experiment, plan, prepared, config))
    # After the corpus was found to be usable.
    data.write_json(os.path.join(folder, "experiments.json"), identity)
    return plan, built


def _check_identity(
    config: ExperimentsConfig, sums: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the scale and the corpus of --output_dir, which stay the same."""
    path = os.path.join(config.output_dir, "experiments.json")
    earlier = text_files.read_json(path) if os.path.exists(path) else {}
    scale = earlier.get("scale", config.scale)
    before = earlier.get("corpus") or sums
    flag, old, new = "--scale", scale, config.scale
    if sums and sorted(before.values()) != sorted(sums.values()):
        flag, old, new = "--corpus", ", ".join(before), ", ".join(sums)
    if flag == "--corpus" or old != new:
        other = " with other contents" if old == new else ""
        raise UserError(
            f"--output_dir={config.output_dir} has experiments of {flag}="
            f"{old}. Received: {flag}={new}{other}; give another --output_dir."
        )
    return {"scale": scale, "corpus": dict(before)}


class Runner:
    """Makes the cells of a plan, and what they need.

    Args:
      output_dir: The folder of the experiments.
      plan: The plan.
    """

    def __init__(self, output_dir: str, plan: Plan) -> None:
        self._output_dir = output_dir
        self._plan = plan
        # Failed steps: the command, its log and the last lines of that.
        self._failed: dict[str, dict[str, Any]] = {}
        self._deadline = float("inf")
        self._bar: progress.Bar | None = None
        self._next_line = 0.0

    def run(self, max_minutes: float | None = None) -> None:
        """Runs the cells, and rewrites the report after each.

        Raises:
          UserError: If cells have failed.
          Preempted: If the process was asked to stop.
        """
        if max_minutes is not None:
            self._deadline = time.monotonic() + 60 * max_minutes
        cells = self._plan.cells
        earlier = signal.signal(signal.SIGTERM, _stop)
        try:
            done = sum(map(self._is_done, cells))
            self._bar = progress.bar(len(cells), "experiments", "cell", done)
            with self._bar:
                self._loop(cells)
        finally:
            signal.signal(signal.SIGTERM, earlier)
        report.write(self._output_dir)
        left = [x for x in cells if not self._is_done(x)]
        logging.info(
            "%d of %d cells are done. Report: %s",
            len(cells) - len(left),
            len(cells),
            os.path.join(self._output_dir, "report.md"),
        )
        if failed := [x for x in left if x in self._failed]:
            folder = os.path.join(self._output_dir, "cells")
            raise UserError(
                f"{len(failed)} of {len(cells)} cells have failed, as "
                f"{failed[0]}; see {folder}/*{_FAILED}. The same command "
                "tries them again."
            )

    def _loop(self, cells: Sequence[str]) -> None:
        """Makes the cells; those of other processes are looked at again."""
        waiting = self._with_needs(cells, self._is_done)
        while waiting:
            busy = []
            for step in waiting:
                if time.monotonic() >= self._deadline:
                    return
                if failed := [x for x in step.needs if x in self._failed]:
                    self._fail(step, **self._failed[failed[0]])
                elif not all(map(self._is_done, step.needs)):
                    busy.append(step)
                    continue
                elif not self._make(step):
                    self._show(f"another process makes {step.id}")
                    busy.append(step)
                    continue
                if step.kind == CELL:
                    report.write(self._output_dir)
            if busy == waiting:
                time.sleep(_WAIT_SECONDS)
            waiting = busy

    def _path(self, step: str, ending: str = ".json") -> str:
        """Returns the file that a finished step has."""
        is_cell = self._plan.steps[step].kind == CELL
        folder = "cells" if is_cell else "steps"
        return os.path.join(self._output_dir, folder, step + ending)

    def _is_done(self, step: str) -> bool:
        return os.path.exists(self._path(step))

    def _make(self, step: Step) -> bool:
        """Makes a step and records its result; False if another process does.

        A failure is recorded, too.
        """
        shell, log = (
            "",
            os.path.join(self._output_dir, "logs", f"{step.id}.log"),
        )
        path = os.path.join(self._output_dir, "locks", f"{step.id}.lock")
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.makedirs(os.path.dirname(log), exist_ok=True)
            with open(path, "ab") as lock:
                if not locks.try_lock(lock):
                    return False
                if self._is_done(step.id):
                    return True
                # Read for each step, as the files may change while others run.
                begin, commit = time.monotonic(), current_commit()
                for number, command in enumerate(step.commands, start=1):
                    shell = self._shell(step, command)
                    # Done by a run that was killed since.
                    marker = f"steps/{step.id}.command{number}.done"
                    marker = os.path.join(self._output_dir, marker)
                    if not os.path.exists(marker):
                        self._call(step, command, log, lock.fileno())
                    if number < len(step.commands):
                        data.write_bytes(marker, b"")
                self._record(step, commit, begin)
        except (OSError, UserError) as error:
            lines = _tail(log) if step.commands else []
            lines = [*lines, str(error)][-_NUM_LAST_LINES:]
            self._fail(step, shell, log if step.commands else "", lines)
        return True

    def _record(self, step: Step, commit: str, begin: float) -> None:
        """Writes the file of a finished step."""
        produced = self._fill(step, step.produces)
        if produced and not os.path.exists(produced):
            raise UserError(
                f"The command must write {produced}. Received: no such file; "
                "it was stopped."
            )
        now = datetime.datetime.now(datetime.UTC)
        values = {
            "id": step.id,
            **(self._score(step) if step.score else {}),
            "commands": [
                self._shell(x, command)
                for x in self._with_needs([step.id])
                for command in x.commands
            ],
            "commit": commit,
            "seconds": round(time.monotonic() - begin, 1),
            "finished": now.isoformat(timespec="seconds"),
        }
        data.write_json(self._path(step.id), values)
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._path(step.id, _FAILED))
        if step.kind == CELL and step.commands:
            _remove_checkpoints(self._fill(step, step.here))

    def _call(self, step: Step, command: Command, log: str, lock: int) -> None:
        """Runs a program, which writes to a log and holds a lock."""
        script, _ = command
        start = [path := os.path.join(_CLONE, script)]
        if not os.path.exists(path):
            start = ["-m", "bert_tf", errors.command(script)]
        with open(log, "ab") as file:
            file.write(f"$ {self._shell(step, command)}\n".encode())
            file.flush()
            process = subprocess.Popen(
                [sys.executable, *start, *self._words(step, command)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                # Held by the program, too, should this process be killed.
                pass_fds=(lock,),
                preexec_fn=_end_with_parent if _LIBC else None,
            )
        try:
            while process.poll() is None:
                left = (x.rpartition(", ")[2] for x in reversed(_tail(log, "")))
                left = next((x for x in left if x.endswith(" left")), "")
                self._show(f"{step.id} ({left})" if left else step.id)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
        finally:
            _end(process)
        if process.returncode:
            raise UserError(f"Exit status {process.returncode}.")

    def _show(self, what: str) -> None:
        """Shows the finished cells and, after them, the step that runs."""
        if time.monotonic() < self._next_line:
            return
        on_terminal = sys.stderr.isatty()
        self._next_line = time.monotonic() + (
            _POLL_SECONDS if on_terminal else terminal.SECONDS_BETWEEN_LINES
        )
        self._bar.set_postfix_str(what, refresh=False)
        done = sum(map(self._is_done, self._plan.cells))
        self._bar.update(done - self._bar.n)
        self._bar.refresh()

    def _fail(
        self, step: Step, command: str, log: str, last_lines: Sequence[str]
    ) -> None:
        """Reports a failed step; the others continue."""
        values = {"command": command, "log": log, "last_lines": last_lines}
        self._failed[step.id] = values
        logging.error(
            "%s has failed:\n  %s\n%s\nThe other cells continue. Log: %s",
            step.id,
            command,
            "\n".join(f"  | {line}" for line in last_lines),
            log or "none",
        )
        try:
            path = self._path(step.id, _FAILED)
            data.write_json(path, {"id": step.id, **values})
        except OSError as error:
            logging.error("The failure could not be recorded: %s.", error)

    def _score(self, step: Step) -> dict[str, Any]:
        """Returns the score of a cell and all results of its command."""
        how, test = step.score, {}
        path = self._fill(step, step.produces)
        if how.mean_of:
            found = {
                cell: text_files.read_json(self._path(cell))["score"]
                for cell in how.mean_of
            }
            mean = sum(found.values()) / len(found)
            results = {how.metric: mean}
        elif path.endswith(".json"):
            splits = text_files.read_json(path)
            names = [x for x in splits if x.startswith(how.split)]
            found = results = splits[names[0]] if names else {}
            test = splits.get("test", {})
        else:
            lines = (line for _, line in text_files.read_lines(path))
            pairs = (line.split(" = ") for line in lines)
            found = results = {name: float(value) for name, value in pairs}
        if not isinstance(results.get(how.metric), int | float):
            raise UserError(
                f"{path} must hold {how.metric}. Received: "
                f"{', '.join(results) or 'nothing'}."
            )
        score = how.factor * results[how.metric]
        logging.info("%s: %s %.2f.", step.id, how.metric, score)
        values = {
            "score": score,
            "metric": how.metric,
            "scores": found,
            "seed": how.seed,
            "majority": how.majority,
        }
        if how.metric in test:
            values["test_score"] = how.factor * test[how.metric]
        return values

    def describe(self) -> str:
        """Returns the commands of all cells to run and of what they need."""
        to_do, lines = self._with_needs(self._plan.cells, self._is_done), []
        for step in to_do:
            lines.append(f"# {step.id}")
            if not step.commands:
                lines.append(f"# reads what {', '.join(step.needs)} wrote")
            lines += [self._shell(step, x) for x in step.commands]
            lines.append("")
        left = sum(x.kind == CELL for x in to_do)
        done = len(self._plan.cells) - left
        lines.append(
            f"# {left} cells and {len(to_do) - left} steps that they need are "
            f"to run; {done} cells are done."
        )
        return "\n".join(lines) + "\n"

    def _with_needs(
        self,
        steps: Sequence[str],
        is_done: Callable[[str], bool] = lambda step: False,
    ) -> list[Step]:
        """Returns steps and what they need, needed ones first, if not done."""
        found: dict[str, Step] = {}
        for step_id in steps:
            if not is_done(step_id):
                step = self._plan.steps[step_id]
                needed = self._with_needs(step.needs, is_done)
                found |= {x.id: x for x in (*needed, step)}
        return [*found.values()]

    # === Commands ===

    def _fill(self, step: Step, text: str) -> str:
        """Replaces placeholders by paths."""
        places = {HERE: step.here, data.OUT: self._output_dir}
        for name, path in {**places, **self._plan.places}.items():
            text = text.replace(name, path)
        return text

    def _words(self, step: Step, command: Command) -> list[str]:
        _, flags = command
        return [
            f"--{name if value else f'no{name}'}"
            if isinstance(value, bool)
            else f"--{name}={self._fill(step, str(value))}"
            for name, value in flags.items()
        ]

    def _shell(self, step: Step, command: Command) -> str:
        """Returns a command for a shell in the current folder."""
        script, _ = command
        program = errors.program(script)
        if program.startswith("python ") and not os.path.exists(script):
            program = f"python {shlex.quote(os.path.join(_CLONE, script))}"
        return " ".join(
            [program, *map(shlex.quote, self._words(step, command))]
        )


def current_commit() -> str:
    """Returns the commit of the code, with + and a hash of later changes."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", _CLONE, *words],
            check=True,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        ).stdout.strip()

    if os.path.exists(os.path.join(_CLONE, ".git")):
        # There may be no git on this machine.
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            commit = git("rev-parse", "--short=12", "HEAD")
            changes = git("diff", "--no-ext-diff", "HEAD")
            return f"{commit}+{data.digest(changes)}" if changes else commit
    return f"bert_tf {bert_tf.__version__}"


def _tail(log: str, hidden: str = " left") -> list[str]:
    """Returns the last lines of a log, without states of progress bars."""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - _LOG_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
        lines = [x.rstrip() for x in lines if x.strip()]
        return [x for x in lines if not (hidden and x.endswith(hidden))]
    return []


def _remove_checkpoints(folder: str) -> None:
    """Removes the models and the checkpoints of a finished cell."""
    for where in (folder, os.path.join(folder, "runs", "*")):
        for path in (y for x in _REMOVED for y in glob.glob(f"{where}/{x}")):
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.remove(path)


def _end(process: subprocess.Popen) -> None:
    """Ends a program that still runs, because this process is to stop."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _stop(number: int, frame: Any) -> None:
    del frame
    signal.signal(number, signal.SIG_IGN)
    raise Preempted("Stopped; the same command resumes.")


def _end_with_parent() -> None:
    """Has Linux send SIGTERM to this process when its parent is killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

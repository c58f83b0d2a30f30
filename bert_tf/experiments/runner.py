"""Runs jobs as programs, one at a time, beside other processes that do so.

A job is locked while its program runs: the program inherits the lock, so that
it ends with the program, even if this process is killed. Finished jobs have a
file and are not repeated.
"""

import contextlib
import ctypes
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import IO

from absl import logging

from bert_tf.errors import Preempted
from bert_tf.errors import UserError
from bert_tf.experiments import costs
from bert_tf.experiments import jobs
from bert_tf.experiments import results
from bert_tf.experiments import task_data
from bert_tf.experiments.jobs import Job
from bert_tf.io import locks
from bert_tf.io import progress
from bert_tf.io import terminal

_DONE, _FAILED, _BUSY = "done", "failed", "busy"
_NUM_LAST_LINES = 12
_LOG_BYTES = 4096
# A line of a program that trains.
_STEP = re.compile(r"(Step \d+ of \d+): .*tokens/s, (.+ left)")
_POLL_SECONDS = 0.5
_WAIT_SECONDS = 2.0
# A program that is asked to stop saves a checkpoint.
_STOP_SECONDS = 120.0
_PR_SET_PDEATHSIG = 1
# Folders of a finished cell that nothing reads.
_REMOVED = ("model", "best", "summaries")


class Runner:
    """Runs the cells of a plan, and what they need.

    Args:
      output_dir: The folder of the experiments.
      all_jobs: The jobs by id, needed ones first.
      cells: The ids of the cells to run, in order.
      places: Further placeholders in commands.
      on_cell: Called after each cell that has finished or failed.
    """

    def __init__(
        self,
        output_dir: str,
        all_jobs: Mapping[str, Job],
        cells: Sequence[str],
        places: Mapping[str, str],
        on_cell: Callable[[], None],
    ) -> None:
        self._output_dir = output_dir
        self._jobs = all_jobs
        self._cells = list(dict.fromkeys(cells))
        self._places = places
        self._on_cell = on_cell
        # Failed jobs: the command, its log and the last lines of that.
        self.failed: dict[str, tuple[str, str, list[str]]] = {}
        self._clock = Clock(output_dir, all_jobs, self._cells)
        self._deadline: float | None = None
        self._bar = None
        self._next_line = 0.0
        self._shown = (-1, "")

    def run(self, max_minutes: float | None = None) -> list[str]:
        """Runs the cells; returns the ids of those that are not done.

        Raises:
          Preempted: If the process was asked to stop.
        """
        earlier = signal.signal(signal.SIGTERM, _stop)
        try:
            return self._run_all(max_minutes)
        finally:
            signal.signal(signal.SIGTERM, earlier)

    def _run_all(self, max_minutes: float | None) -> list[str]:
        if max_minutes is not None:
            self._deadline = time.monotonic() + 60 * max_minutes
        done = sum(self._is_done(x) for x in self._cells)
        total = len(self._cells)
        with progress.bar(total, "experiments", "cell", done) as self._bar:
            remaining = [x for x in self._cells if not self._is_done(x)]
            while remaining and not self._time_is_up():
                busy = self._run_once(remaining)
                if len(busy) == len(remaining) and busy:
                    time.sleep(_WAIT_SECONDS)
                remaining = busy
        return [x for x in self._cells if not self._is_done(x)]

    def _run_once(self, cells: Sequence[str]) -> list[str]:
        """Runs each cell that no other process works on; returns the others."""
        busy = []
        for number, cell in enumerate(cells):
            if self._time_is_up():
                return [*busy, *cells[number:]]
            if self._run(self._jobs[cell]) == _BUSY:
                busy.append(cell)
                continue
            self._on_cell()
            self._show("")
        return busy

    def _is_done(self, job_id: str) -> bool:
        return results.is_done(self._output_dir, self._jobs[job_id])

    def _time_is_up(self) -> bool:
        return self._deadline is not None and (
            time.monotonic() >= self._deadline
        )

    def _run(self, job: Job) -> str:
        """Runs what a job needs, and the job, unless that is being done."""
        if self._is_done(job.id):
            return _DONE
        if job.id in self.failed:
            return _FAILED
        for needed in job.needs:
            state = self._run(self._jobs[needed])
            if state == _FAILED:
                self._fail(job, *self.failed[needed])
            if state != _DONE:
                return state
        path = os.path.join(self._output_dir, "locks", f"{job.id}.lock")
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            lock = open(path, "a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            return self._fail(job, "", "", [str(error)])
        with lock:
            if not locks.try_lock(lock):
                self._show(f"another process makes {job.title}")
                return _BUSY
            if self._is_done(job.id):
                return _DONE
            return self._make(job, lock)

    def _make(self, job: Job, lock: IO[str]) -> str:
        """Runs a job's commands, and records the results."""
        log = os.path.join(self._output_dir, "logs", f"{job.id}.log")
        begin = time.monotonic()
        self._clock.start(job)
        # Read for each job, as the files may change while others run.
        commit = results.current_commit()
        places = job.places(self._output_dir) | self._places
        shell = ""
        try:
            for number, command in enumerate(job.commands):
                if os.path.exists(self._marker(job, number)):
                    continue  # Done by a run that was killed since.
                shell = command.shell(places)
                status = self._call(command.argv(places), shell, log, job, lock)
                if status:
                    lines = [*last_lines(log), f"Exit status {status}."]
                    return self._fail(job, shell, log, lines)
                if number + 1 < len(job.commands):
                    task_data.write_text(self._marker(job, number), "")
            produced = jobs.fill(job.produces, places)
            if produced and not os.path.exists(produced):
                raise results.not_written(produced)
            seconds = time.monotonic() - begin
            self._record(job, commit, seconds)
        except OSError as error:
            return self._fail(job, shell, log, [str(error)])
        except UserError as error:
            lines = last_lines(log) if job.commands else []
            return self._fail(job, shell, log, [*lines, str(error)])
        if job.kind == jobs.CELL and job.commands:
            _remove_checkpoints(jobs.fill(job.here, places))
        return _DONE

    def _marker(self, job: Job, number: int) -> str:
        """Returns a file that exists when an early phase of a job is done."""
        name = f"{job.id}.command{number + 1}.done"
        return os.path.join(self._output_dir, "steps", name)

    def _record(self, job: Job, commit: str, seconds: float) -> None:
        scored = {}
        if job.score is not None:
            scored = results.score(self._output_dir, job, self._jobs)
            logging.info(
                "%s: %s %.2f.", job.title, job.score.metric, scored["score"]
            )
        results.write(
            self._output_dir,
            job,
            commands_of(job, self._jobs, self._output_dir, self._places),
            commit,
            seconds,
            scored,
        )
        self._clock.finish(job, seconds)

    def _call(
        self,
        argv: Sequence[str],
        shell: str,
        log: str,
        job: Job,
        lock: IO[str],
    ) -> int:
        """Runs a program and returns its exit status."""
        os.makedirs(os.path.dirname(log), exist_ok=True)
        with open(log, "ab") as file:
            file.write(f"$ {shell}\n".encode())
            file.flush()
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                # Held by the program, too, should this process be killed.
                pass_fds=(lock.fileno(),),
                preexec_fn=_end_with_parent if _LIBC else None,
            )
        try:
            while process.poll() is None:
                self._show(f"{job.title}{_state(log)}")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
        finally:
            _end(process)
        return process.returncode

    def _show(self, what: str) -> None:
        """Shows the state of the whole and, after it, that of a job."""
        now = time.monotonic()
        if now < self._next_line:
            return
        self._next_line = now + (
            _POLL_SECONDS
            if sys.stderr.isatty()
            else terminal.SECONDS_BETWEEN_LINES
        )
        done = sum(self._is_done(x) for x in self._cells)
        if not sys.stderr.isatty() and (done, what) == self._shown:
            return  # A file gets no line for the remaining time alone.
        self._shown = (done, what)
        left = self._clock.remaining(self._is_done)
        waiting = len(self._cells) - done
        self._bar.set_postfix_str(what, refresh=False)
        self._bar.move_to(done, waiting / left if left > 0 else None)
        self._bar.refresh()

    def _fail(
        self, job: Job, command: str, log: str, lines: Sequence[str]
    ) -> str:
        """Reports a failed job; the others continue."""
        lines = list(lines)
        self._clock.stop()
        self.failed[job.id] = (command, log, lines)
        logging.error(
            "%s has failed:\n  %s\n%s\nThe other cells continue.%s",
            job.title,
            command,
            "\n".join(f"  | {line}" for line in lines),
            f" Log: {log}" if log else "",
        )
        try:
            results.write_failure(self._output_dir, job, command, log, lines)
        except OSError as error:
            logging.error("The failure could not be recorded: %s.", error)
        return _FAILED


class Clock:
    """Estimates the remaining time, corrected by finished jobs."""

    def __init__(
        self,
        output_dir: str,
        all_jobs: Mapping[str, Job],
        cells: Sequence[str],
    ) -> None:
        self._jobs = all_jobs
        self._cells = cells
        self._finished: list[tuple[float, float]] = []
        for job in closure(all_jobs, cells):
            if job.commands and results.is_done(output_dir, job):
                seconds = results.read(output_dir, job)["seconds"]
                self._finished.append((estimate(job), seconds))
        self._current: Job | None = None
        self._begin = 0.0

    @property
    def correction(self) -> float:
        """The factor between actual and estimated seconds."""
        return costs.correction(self._finished)

    def start(self, job: Job) -> None:
        """Begins to measure a job."""
        self._current, self._begin = job, time.monotonic()

    def finish(self, job: Job, seconds: float) -> None:
        """Takes the seconds of a finished job into account."""
        self.stop()
        if job.commands:
            self._finished.append((estimate(job), seconds))

    def stop(self) -> None:
        """Ends the measurement of a job that has failed."""
        self._current = None

    def remaining(self, is_done: Callable[[str], bool]) -> float:
        """Returns the estimated seconds of all jobs that are still to do."""
        factor = self.correction
        waiting = closure(self._jobs, self._cells, is_done)
        left = sum(factor * estimate(x) for x in waiting)
        if self._current is not None:
            spent = time.monotonic() - self._begin
            left -= min(spent, factor * estimate(self._current))
        return left


def estimate(job: Job) -> float:
    """Returns the estimated seconds of a job."""
    return costs.seconds(job.work, len(job.commands))


def closure(
    all_jobs: Mapping[str, Job],
    ids: Sequence[str],
    is_done: Callable[[str], bool] = lambda job_id: False,
) -> list[Job]:
    """Returns jobs and all that they need, needed ones first.

    Jobs that are done are left out, and with them what only they needed.
    """
    found: dict[str, Job] = {}

    def visit(job: Job) -> None:
        if job.id not in found and not is_done(job.id):
            for needed in job.needs:
                visit(all_jobs[needed])
            found[job.id] = job

    for job_id in ids:
        visit(all_jobs[job_id])
    return list(found.values())


def commands_of(
    job: Job,
    all_jobs: Mapping[str, Job],
    output_dir: str,
    places: Mapping[str, str],
) -> list[str]:
    """Returns all commands that lead to a job, for a shell."""
    return [
        command.shell(each.places(output_dir) | dict(places))
        for each in closure(all_jobs, [job.id])
        for command in each.commands
    ]


def last_lines(log: str) -> list[str]:
    """Returns the last lines of a log, without states of progress bars."""
    lines = [x.rstrip() for x in _tail(log) if x.strip()]
    kept = [x for x in lines if not x.endswith(" left")]
    return kept[-_NUM_LAST_LINES:]


def _tail(log: str) -> list[str]:
    try:
        with open(log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LOG_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def _state(log: str) -> str:
    """Returns the last state of a program's steps or progress bar, if any."""
    for line in reversed(_tail(log)):
        if step := _STEP.search(line):
            return f" ({step[1].lower()}, {step[2]})"
        if line.endswith(" left"):
            return f" ({line.strip()})"
    return ""


def _remove_checkpoints(folder: str) -> None:
    """Removes the models and the checkpoints of a finished cell."""
    trials = os.path.join(folder, "runs", "*")
    for path in (x for y in (folder, trials) for x in glob.glob(f"{y}/*")):
        name = os.path.basename(path)
        if name.startswith("model.ckpt-") or name == "checkpoint":
            os.remove(path)
        elif name in _REMOVED and os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)


def _end(process: subprocess.Popen) -> None:
    """Ends a program that still runs, because this process is to stop."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _stop(number: int, frame) -> None:
    del frame
    signal.signal(number, signal.SIG_IGN)
    raise Preempted("Stopped; the same command resumes.")


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """Has Linux send SIGTERM to this process when its parent is killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

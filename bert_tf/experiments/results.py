"""Files of finished and failed jobs in --output_dir."""

import datetime
import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any

import bert_tf
from bert_tf.errors import UserError
from bert_tf.experiments import jobs
from bert_tf.experiments import task_data
from bert_tf.experiments.jobs import Job
from bert_tf.experiments.jobs import Score
from bert_tf.io import text_files
from bert_tf.tasks.task import TEST

_CELLS, _STEPS = "cells", "steps"


def path(output_dir: str, job: Job, failed: bool = False) -> str:
    """Returns the path of the file that a finished or failed job has."""
    folder = _CELLS if job.kind == jobs.CELL else _STEPS
    ending = ".failed.json" if failed else ".json"
    return os.path.join(output_dir, folder, job.id + ending)


def is_done(output_dir: str, job: Job) -> bool:
    """Returns True if a job has finished."""
    return os.path.exists(path(output_dir, job))


def read(output_dir: str, job: Job) -> dict[str, Any]:
    """Returns what `write` wrote for a finished job."""
    return text_files.read_json(path(output_dir, job))


def write(
    output_dir: str,
    job: Job,
    commands: list[str],
    commit: str,
    seconds: float,
    scored: Mapping[str, Any],
) -> None:
    """Records a finished job, and removes the record of its failure.

    Raises:
      OSError: If the disk is full.
    """
    now = datetime.datetime.now(datetime.UTC)
    values = {"id": job.id, **scored}
    values |= {
        "commands": commands,
        "commit": commit,
        "seconds": round(seconds, 1),
        "finished": now.isoformat(timespec="seconds"),
    }
    task_data.write_json(path(output_dir, job), values)
    failed = path(output_dir, job, failed=True)
    if os.path.exists(failed):
        os.remove(failed)


def write_failure(
    output_dir: str, job: Job, command: str, log: str, last_lines: list[str]
) -> None:
    """Records a failed job.

    Raises:
      OSError: If the disk is full.
    """
    values = {
        "id": job.id,
        "command": command,
        "log": log,
        "last_lines": last_lines,
    }
    task_data.write_json(path(output_dir, job, failed=True), values)


def score(
    output_dir: str, job: Job, cells: Mapping[str, Job]
) -> dict[str, Any]:
    """Returns the score of a cell and all results of its command.

    Raises:
      UserError: If the results lack its metric.
    """
    how = job.score
    if how.mean_of:
        parts = {x: read(output_dir, cells[x])["score"] for x in how.mean_of}
        value, found, test = sum(parts.values()) / len(parts), parts, {}
    else:
        results = jobs.fill(how.results, job.places(output_dir))
        found, test = _read_results(results, how)
        if not isinstance(found.get(how.metric), int | float):
            raise UserError(
                f"{results} must hold {how.metric}. Received: "
                f"{', '.join(found) or 'nothing'}."
            )
        value = how.factor * found[how.metric]
    values = {
        "score": value,
        "metric": how.metric,
        "scores": found,
        "seed": how.seed,
        "majority": how.majority,
    }
    if how.metric in test:
        values["test_score"] = how.factor * test[how.metric]
    return values


def _read_results(
    path: str, how: Score
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the metrics of eval_results.json or .txt: the split's, test's."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError as error:
        raise not_written(path) from error
    if not path.endswith(".json"):
        pairs = (line.split(" = ") for line in text.splitlines())
        return {name: float(value) for name, value in pairs}, {}
    splits = json.loads(text)
    name = next((x for x in splits if x.startswith(how.split)), None)
    return splits[name] if name else {}, splits.get(TEST, {})


def not_written(path: str) -> UserError:
    """Returns the error of a command that ended without its output."""
    return UserError(
        f"The command must write {path}. Received: no such file; it was "
        "stopped."
    )


def current_commit() -> str:
    """Returns the commit of the code, with + and a hash of later changes."""
    clone = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    if os.path.exists(os.path.join(clone, ".git")):
        try:
            commit = _git(clone, "rev-parse", "--short=12", "HEAD")
            changes = _git(clone, "diff", "--no-ext-diff", "HEAD")
        except (OSError, subprocess.CalledProcessError):
            pass  # No git on this machine.
        else:
            return f"{commit}+{jobs.digest(changes)}" if changes else commit
    return f"bert_tf {bert_tf.__version__}"


def _git(folder: str, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", folder, *words],
        check=True,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    return done.stdout.strip()

"""Runs scripts and measures their processor time; reads and writes results."""

import csv
import json
import os
import pathlib
import resource
import subprocess
import sys
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]


def run(
    command: Sequence[str],
    log: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> float:
    """Runs a program; returns its processor seconds.

    Args:
      command: The program and its arguments.
      log: The file to which its output is appended; by default the terminal.
      variables: Further variables of its environment.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Without a log, the program prints to this process's terminal.
    file = open(log, "a", encoding="utf-8") if log else None  # noqa: SIM115
    try:
        subprocess.run(
            command,
            check=True,
            stdout=file,
            stderr=file and subprocess.STDOUT,
            env=environment,
            cwd=ROOT,
        )
    finally:
        if file:
            file.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(after[:2]) - sum(before[:2])


def run_script(script: str, log: str | None = None, **flags: Any) -> float:
    """Runs a script, such as run/pretrain.py; returns its processor seconds."""
    words = []
    for name, value in flags.items():
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no'}{name}")
        else:
            words.append(f"--{name}={value}")
    return run([sys.executable, script, *words], log)


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes a result atomically."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.tmp-{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
    os.replace(temporary, path)


def read_json(path: str | os.PathLike) -> Any:
    """Returns a result, or None if there is none yet."""
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write_table(
    path: str | os.PathLike,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
) -> None:
    """Writes a CSV file."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *rows])

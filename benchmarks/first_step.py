r"""Times the first training step and the first prediction of a new process.

  python benchmarks/first_step.py

benchmarks/first_step/FRAMEWORK.py loads MiniLM as a classifier and either takes
one step on 16 texts or predicts one text. bert_tf, transformers and KerasHub
run it in turns, in the environments of benchmarks/first_minutes.py, which are
made if they are missing. --python runs this project's programs in another
environment, such as .venv/bin/python. The output has medians of --rounds
processes: seconds of importing and loading, and of the step or prediction after
that. In parentheses are processor seconds of the whole process, which depend
less on other programs.
"""

import json
import os
import pathlib
import re
import statistics
import subprocess
import time

import first_minutes
import runs
from absl import flags

_PROGRAMS = pathlib.Path(__file__).resolve().with_suffix("")
_WHAT = ("step", "prediction")
_STAMP = re.compile(r"^(loaded|done) ([0-9.]+)$", re.MULTILINE)

_ROUNDS = flags.DEFINE_integer("rounds", 5, "Processes of each program.")
_PYTHON = flags.DEFINE_string(
    "python", None, "Interpreter of this project's programs."
)


def _measure(framework, what):
    """Runs a program; returns seconds of loading, of the rest, of the CPU."""
    folder = pathlib.Path(first_minutes.WORK_DIR.value).resolve() / framework
    environment = folder / "environment"
    python = environment / "bin" / "python"
    variables = first_minutes.environment_variables(
        environment, folder / "caches"
    ) | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    if framework == "bert_tf" and _PYTHON.value:
        python = os.path.abspath(_PYTHON.value)
        variables["PYTHONPATH"] = str(runs.ROOT)
    before = runs.processor_seconds()
    start = time.time()
    result = subprocess.run(
        # -P: a program is named like the package that it imports.
        [python, "-P", _PROGRAMS / f"{framework}.py", what],
        cwd=folder / "data",
        env=variables,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    stamps = {k: float(v) for k, v in _STAMP.findall(result.stdout)}
    return (
        stamps["loaded"] - start,
        stamps["done"] - stamps["loaded"],
        runs.processor_seconds() - before,
    )


def main():
    frameworks = first_minutes.FRAMEWORKS.value
    for framework in frameworks:
        folder = pathlib.Path(first_minutes.WORK_DIR.value).resolve()
        is_made = framework == "bert_tf" and _PYTHON.value
        if not is_made and not (folder / framework / "environment").exists():
            first_minutes.install(framework, folder / framework)
        data = folder / framework / "data"
        if not data.exists():
            data.mkdir(parents=True)
            first_minutes.make_data(data)
    measured = {(f, what): [] for what in _WHAT for f in frameworks}
    for number in range(_ROUNDS.value):
        # Rotate, so that each framework is the first equally often.
        first = number % len(frameworks)
        for framework in frameworks[first:] + frameworks[:first]:
            for what in _WHAT:
                seconds = _measure(framework, what)
                measured[framework, what].append(seconds)
                print(json.dumps([framework, what, *seconds]), flush=True)
    print("| | loading, s | first step, s | first prediction, s |")
    print("|---|---|---|---|")
    for framework in frameworks:
        columns = [zip(*measured[framework, x], strict=True) for x in _WHAT]
        cells = [[statistics.median(x) for x in y] for y in columns]
        loading = statistics.median(x[0] for x in cells)
        texts = [f"{seconds:.2f} ({cpu:.1f})" for _, seconds, cpu in cells]
        print(f"| {framework} | {loading:.1f} | {' | '.join(texts)} |")


if __name__ == "__main__":
    runs.main(main)

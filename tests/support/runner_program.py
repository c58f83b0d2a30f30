"""Runs light jobs with the experiments' runner.

  python -m tests.support.runner_program OUT i/n

The jobs are `light_job_program`.
"""

import os
import sys

from bert_tf.experiments import jobs
from bert_tf.experiments import runner
from bert_tf.experiments.jobs import HERE
from bert_tf.experiments.jobs import Command
from bert_tf.experiments.jobs import Job
from bert_tf.experiments.jobs import Score

NUM_CELLS = 4
_SCRIPT = os.path.join(os.path.dirname(__file__), "light_job_program.py")


def make_jobs():
    """Returns two pretrainings and four cells, two of each, by id."""
    found = {}
    for name in ("first", "second"):
        found[name] = _job(name, "pretraining", ())
    for number in range(NUM_CELLS):
        needed = ("first", "second")[number // 2]
        found[f"cell{number}"] = _job(f"cell{number}", jobs.CELL, (needed,))
    return found


def _job(name, kind, needs):
    results = f"{HERE}/eval_results.json"
    score = Score(results, "dev", "accuracy", 100.0, 7, 50.0)
    command = Command(_SCRIPT, {"work": HERE})
    return Job(
        name,
        kind,
        name,
        (command,),
        needs,
        results,
        0.0,
        score if kind == jobs.CELL else None,
    )


def make_runner(out, part="1/1", on_cell=lambda: None):
    """Returns a runner of a part of the cells."""
    number, count = map(int, part.split("/"))
    cells = [f"cell{i}" for i in range(NUM_CELLS)][number - 1 :: count]
    return runner.Runner(out, make_jobs(), cells, {}, on_cell)


if __name__ == "__main__":
    make_runner(*sys.argv[1:]).run()

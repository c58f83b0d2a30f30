"""Runs light steps with the experiments' runner.

  python -m tests.support.runner_program OUT

The programs are `light_job_program`.
"""

import os
import sys
import types

from bert_tf.experiments import run
from bert_tf.experiments.plan import CELL
from bert_tf.experiments.plan import HERE
from bert_tf.experiments.plan import Score
from bert_tf.experiments.plan import Step

CELLS = [f"cell{number}" for number in range(4)]
_SCRIPT = os.path.join(os.path.dirname(__file__), "light_job_program.py")


def _step(name, kind, needs=(), score=None):
    commands = ((_SCRIPT, {"work": HERE}),)
    return Step(name, kind, commands, needs, score)


def make_runner(out):
    """Returns a runner of two pretrainings with two cells each."""
    steps = {x: _step(x, "pretraining") for x in ("first", "second")}
    score = Score("accuracy", "dev", 100.0, 7, 50.0)
    for number, name in enumerate(CELLS):
        needs = (("first", "second")[number // 2],)
        steps[name] = _step(name, CELL, needs, score)
    plan = types.SimpleNamespace(steps=steps, cells=CELLS, places={})
    return run.Runner(out, plan)


if __name__ == "__main__":
    make_runner(sys.argv[1]).run()

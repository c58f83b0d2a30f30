r"""Fine-tunes MiniLM on many tasks, with this project and with transformers.

  python benchmarks/finetune_quality.py --data_dir=../shared/data
  python benchmarks/finetune_quality.py --report

One task, framework and seed runs at a time, in its own process. Scores of
finished runs are kept in --results_dir, which is part of the repository because
all runs take hours. A finished run is repeated only if its settings
(benchmarks/finetune_tasks.py) have changed. Both frameworks start from the same
weights with a fresh pooler and head, and get the same examples, in other
orders. The official evaluators score the predictions of both. The last lines
are the table. Our score should be lower by at most 1 point, or by at most two
standard errors of the difference.
"""

import math
import os
import statistics
import subprocess
import sys
import time

import finetune_ours
import finetune_tasks
import runs
from absl import flags

_FOLDERS = runs.Folders("finetune_quality")
_TASKS = flags.DEFINE_list("tasks", [*finetune_tasks.TASKS], "Which tasks.")
_FRAMEWORKS = flags.DEFINE_list(
    "frameworks", ["transformers", "bert_tf"], "Which frameworks."
)
_SEEDS = flags.DEFINE_list(
    "seeds", None, "Which seeds; 1 to 3, or 5 for small test sets, by default."
)
_THREADS = flags.DEFINE_integer("threads", 2, "Threads of a run.")

# Our score may be lower by this many points, or by this many standard errors.
_POINTS = 1.0
_STANDARD_ERRORS = 2.0


def _finished(task, framework, seed):
    """Returns the result of a run, or None if it is still to be done."""
    result = runs.read_json(_FOLDERS.result(task, framework, seed))
    settings = finetune_tasks.TASKS[task].to_json()
    is_current = result and result["settings"] == settings
    return result if is_current else None


def _run_peer(request, name):
    """Runs transformers; returns its answer."""
    from tests.support import environments
    from tests.support import minilm

    python = environments.make("transformers", *minilm.PEER)
    request["output"] = f"{name}.answer.json"
    request_path = f"{name}.request.json"
    runs.write_json(request_path, request)
    program = os.path.join(os.path.dirname(__file__), "finetune_peer.py")
    # The peer's environment lacks this project's requirements.
    variables = {"PYTHONPATH": ""}
    runs.run([python, program, request_path], f"{name}.log", variables)
    answer = runs.read_json(request["output"])
    os.remove(request_path)
    os.remove(request["output"])
    return answer


_RUNNERS = {"transformers": _run_peer, "bert_tf": finetune_ours.run}


def _run(task, framework, seed):
    from tests.support import minilm

    settings = finetune_tasks.TASKS[task]
    data = settings.read(_FOLDERS.data())
    request = settings.to_json() | {
        "task": task,
        "data_dir": _FOLDERS.data(),
        "model": minilm.directory(),
        "labels": data.labels,
        "train": data.train,
        "test": data.test,
        "seed": seed,
        "threads": _THREADS.value,
    }
    name = _FOLDERS.output(f"{task}.{framework}.{seed}")
    start = time.monotonic()
    answer = _RUNNERS[framework](request, name)
    predictions = answer.pop("predictions")
    runs.write_json(f"{name}.predictions.json", predictions)
    # The command has paths of this machine, so it stays out of the repository.
    runs.write_json(f"{name}.command.json", answer.pop("command", None))
    result = {
        "scores": finetune_tasks.score(task, data, predictions),
        "settings": settings.to_json(),
        "wall_seconds": time.monotonic() - start,
        "load": os.getloadavg()[1],
        **answer,
    }
    runs.write_json(_FOLDERS.result(task, framework, seed), result)
    return result


def _plan():
    """Yields the runs to do: the first seed of every task, then the second."""
    for seed in map(int, _SEEDS.value or range(1, 6)):
        for task in _TASKS.value:
            if _SEEDS.value or seed <= finetune_tasks.TASKS[task].seeds:
                for framework in _FRAMEWORKS.value:
                    yield task, framework, seed


def _scores(task, framework):
    """Returns the metrics of all finished seeds."""
    results = (_finished(task, framework, seed) for seed in range(1, 100))
    found = [result["scores"] for result in results if result]
    return {key: [x[key] for x in found] for key in (found or [{}])[0]}


def _spread(values):
    return statistics.stdev(values) if len(values) > 1 else math.nan


def _format(value, prefix=""):
    return "" if math.isnan(value) else f"{prefix}{value:.2f}"


def _row(task, metric, ours, theirs):
    """Returns a line of the table."""
    cells = [task, metric]
    for values in (ours, theirs):
        cells.append(
            f"{statistics.mean(values):.2f}{_format(_spread(values), ' ± ')}"
            f" ({len(values)})"
            if values
            else "-"
        )
    if ours and theirs:
        difference = statistics.mean(ours) - statistics.mean(theirs)
        error = math.sqrt(sum(_spread(x) ** 2 / len(x) for x in (ours, theirs)))
        reached = difference >= -_POINTS or (
            difference >= -_STANDARD_ERRORS * error
        )
        verdict = "reached" if reached else "missed"
        if min(len(ours), len(theirs)) < finetune_tasks.TASKS[task].seeds:
            verdict = f"{verdict} so far"
        cells += [f"{difference:+.2f}", _format(error), verdict]
    else:
        cells += ["-", "-", "-"]
    return f"| {' | '.join(cells)} |"


def _report():
    print(
        "| task | metric | bert_tf | transformers | difference "
        "| its standard error | |\n|---|---|---|---|---|---|---|"
    )
    for task in _TASKS.value:
        ours, theirs = (_scores(task, x) for x in ("bert_tf", "transformers"))
        for metric in {**ours, **theirs}:
            print(_row(task, metric, ours.get(metric), theirs.get(metric)))


def main():
    os.makedirs(_FOLDERS.output(), exist_ok=True)
    failures = []
    for task, framework, seed in () if _FOLDERS.only_reports else _plan():
        if _finished(task, framework, seed):
            continue
        print(f"{time.strftime('%X')} {task} {framework} {seed}", flush=True)
        try:
            result = _run(task, framework, seed)
        except subprocess.CalledProcessError as error:
            # One failed run must not end all others, which take hours.
            failures.append(f"{task} {framework} {seed}: {error}")
            print(failures[-1], flush=True)
            continue
        print(result["scores"], result["seconds"], flush=True)
    _report()
    if failures:
        sys.exit("\n".join(["Failed:", *failures]))


if __name__ == "__main__":
    runs.main(main)

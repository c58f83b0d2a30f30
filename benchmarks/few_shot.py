r"""Compares four ways to learn from 8 or 16 texts of each label.

  python benchmarks/few_shot.py --data_dir=../shared/data
  python benchmarks/few_shot.py --report

One data set, seed and method runs at a time, in its own process. Scores of
finished cells are kept in --results_dir, and these cells are not run again. All
methods start from the same MiniLM and get the same texts:

  linear       scikit-learn's logistic regression on MiniLM's embeddings
  fine_tuning  run/finetune_classifier.py with --learning_rate=2e-4, 10 epochs
  few_shot     run/finetune_classifier.py --few_shot, else the defaults
  setfit       setfit with num_iterations=5, in a separate environment

Processor seconds are measured from the start of a process until the model is
trained and, with the scripts, written. The last lines are the table: few_shot
should never be below linear. It should be within a point of setfit, and need at
most half of setfit's time.
"""

import contextlib
import os
import pathlib
import random
import shutil
import statistics
import sys
import time

import runs
from absl import flags

FOLDERS = runs.Folders("few_shot")
_SETS = flags.DEFINE_list(
    "sets",
    ["banking77-8", "banking77-16", "clinc150-8"],
    "Data sets, each with a number of texts per label.",
)
_METHODS = flags.DEFINE_list(
    "methods", ["linear", "few_shot", "setfit", "fine_tuning"], "Which methods."
)
_SEEDS = flags.DEFINE_list("seeds", ["1", "2", "3"], "Which seeds.")
_LABELS = flags.DEFINE_integer(
    "labels", 0, "Labels to use, to try the script; 0 is all."
)
_FLAGS = flags.DEFINE_list("few_shot_flags", [], "Further flags for few_shot.")
_THREADS = flags.DEFINE_integer("threads", 2, "Threads of a run.")

_SETFIT = (
    "setfit==1.2.0",
    "sentence-transformers==6.2.0",
    "transformers==5.23.0",
    "datasets==5.2.0",
    "torch==2.13.0",
)
_PLAIN = ("--learning_rate=2e-4", "--num_train_epochs=10")
_LINEAR = """
import json, sys, time
import numpy as np
import bert_tf
from bert_tf.finetuning import contrastive
request = json.load(open(sys.argv[1], encoding="utf-8"))
model = bert_tf.load_model(request["model"], "embeddings", max_seq_length=128)
texts, labels = zip(*request["train"])
ids = np.array([request["labels"].index(x) for x in labels])
head = contrastive.fit_head(model.predict(list(texts), verbose=0), ids)
seconds = time.process_time()
logits = model.predict(request["test"], verbose=0) @ head["output_weights"].T
best = np.argmax(logits + head["output_bias"], 1)
names = [request["labels"][x] for x in best]
json.dump({"seconds": seconds, "predictions": names},
          open(request["output"], "w", encoding="utf-8"))
"""


def _sample(name, seed):
    """Returns labels, some training rows of each, and the test rows."""
    name, number = name.split("-")
    splits = runs.read_intents(FOLDERS.data(name))
    train, test = splits["train"], splits["test"]
    labels = sorted({label for _, label in train})[: _LABELS.value or None]
    draw = random.Random(int(seed))
    chosen = []
    for label in labels:
        rows = [row for row in train if row[1] == label]
        chosen += draw.sample(rows, int(number))
    draw.shuffle(chosen)
    return labels, chosen, [row for row in test if row[1] in labels]


def _run(command, log, **variables):
    """Runs a program with --threads; returns its processor seconds."""
    return runs.run(command, log, runs.threads(_THREADS.value) | variables)


def _run_script(request, extra):
    """Trains with the script, then predicts in another process."""
    folder = request["folder"]
    train, test = (os.path.join(folder, f"{x}.csv") for x in ("train", "test"))
    columns = "text", "label"
    runs.write_table(train, columns, request["train"])
    empty = [(text, "") for text in request["test"]]
    runs.write_table(test, columns, empty)
    output = os.path.join(folder, "output")
    seconds = _run(
        [
            *runs.command(
                "run/finetune_classifier.py",
                task_name="custom",
                train_file=train,
                pretrained_model_dir=request["model"],
                output_dir=output,
                seed=request["seed"],
                do_train=True,
            ),
            *extra,
        ],
        request["log"],
    )
    answers = os.path.join(folder, "predictions.jsonl")
    _run(
        runs.command(
            "run/predict.py",
            model_dir=f"{output}/model",
            input_file=test,
            output_file=answers,
        ),
        request["log"],
    )
    names = [row["label"] for row in runs.read_json_lines(answers)]
    return {"seconds": seconds, "predictions": names}


def _run_program(request, *command, **variables):
    path = os.path.join(request["folder"], "request.json")
    runs.write_json(path, request)
    _run([*command, path], request["log"], **variables)
    return runs.read_json(request["output"])


def run_peer(request):
    """Runs a job of contrastive_peer.py; returns its answer."""
    from tests.support import environments

    python = environments.make("setfit", *_SETFIT)
    program = str(pathlib.Path(__file__).parent / "contrastive_peer.py")
    return _run_program(request, python, program, PYTHONPATH="")


_METHOD_RUNS = {
    "linear": lambda x: _run_program(x, sys.executable, "-c", _LINEAR),
    "few_shot": lambda x: _run_script(x, ["--few_shot", *_FLAGS.value]),
    "fine_tuning": lambda x: _run_script(x, _PLAIN),
    "setfit": lambda x: run_peer(x | {"job": "setfit", "num_iterations": 5}),
}


@contextlib.contextmanager
def request(name, seed):
    """Yields the settings of all programs; removes their files at the end."""
    from tests.support import minilm

    folder = FOLDERS.output(name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    yield {
        "model": minilm.directory(),
        "seed": int(seed),
        "threads": _THREADS.value,
        "folder": folder,
        "output": os.path.join(folder, "answer.json"),
        "log": os.path.join(folder, "log.txt"),
    }
    shutil.rmtree(folder)


def _run_cell(name, method, seed):
    """Runs one cell and stores its score and its time."""
    labels, train, test = _sample(name, seed)
    with request(f"{name}.{method}.{seed}", seed) as told:
        told |= {"labels": labels, "train": train}
        answer = _METHOD_RUNS[method](told | {"test": [x for x, _ in test]})
    pairs = zip(answer["predictions"], test, strict=True)
    right = [predicted == label for predicted, (_, label) in pairs]
    result = {
        "accuracy": 100 * statistics.mean(right),
        "processor_seconds": answer["seconds"],
        "rows": len(train),
        "load": os.getloadavg()[1],
    }
    runs.write_json(FOLDERS.result(name, method, seed), result)
    return result


def finished(name, method):
    """Returns the results of the finished seeds."""
    paths = (FOLDERS.result(name, method, seed) for seed in _SEEDS.value)
    return [x for x in map(runs.read_json, paths) if x]


def _report():
    print("| set | method | accuracy | seeds | processor seconds |")
    print("|---" * 5 + "|")
    for name in _SETS.value:
        for method in _METHODS.value:
            results = finished(name, method)
            if not results:
                continue
            scores, seconds = (
                [x[key] for x in results]
                for key in ("accuracy", "processor_seconds")
            )
            spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
            print(
                f"| {name} | {method} | {statistics.mean(scores):.2f} ± "
                f"{spread:.2f} | {len(scores)} | {statistics.mean(seconds):.0f}"
                " |"
            )


def main():
    if not FOLDERS.only_reports:
        for seed in _SEEDS.value:
            for name in _SETS.value:
                for method in _METHODS.value:
                    if os.path.exists(FOLDERS.result(name, method, seed)):
                        continue
                    print(f"{time.strftime('%X')} {name} {method} {seed}")
                    print(_run_cell(name, method, seed), flush=True)
    _report()


if __name__ == "__main__":
    runs.main(main)

r"""Measures calibrated probabilities of MiniLM, fine-tuned on intents.

  python benchmarks/confidence.py --data_dir=../shared/data
  python benchmarks/confidence.py --report

A cell is a data set, a number of training rows a label (0: all) and a seed.
Banking77's dev set is every tenth row of its training set; CLINC150 has a dev
set. The temperature and the threshold for --reject_precision=0.95 are chosen on
dev. All numbers are of the official test set, from the script's predictions.
CLINC150 also has texts without a fitting label in dev and test. Learning rate,
epochs and the new pooler are as in benchmarks/finetune_tasks.py.

Finished cells are kept in --results_dir and not run again with equal settings;
a killed cell resumes in --output_dir.
"""

import collections
import os
import pathlib

import numpy as np
import runs
from absl import flags
from sklearn import metrics

_FOLDERS = runs.Folders("confidence")
_SETS = flags.DEFINE_list("sets", ["banking77", "clinc150"], "Data sets.")
_ROWS = flags.DEFINE_list("rows", ["0"], "Training rows a label; 0 is all.")
_SEEDS = flags.DEFINE_list("seeds", ["1", "2", "3"], "Seeds.")
_EPOCHS = flags.DEFINE_string("epochs", "3", "Passes over the training set.")
_MAX_TEST = flags.DEFINE_integer(
    "max_test_rows", 0, "Rows of the test set, evenly spaced; 0 is all."
)

_OUTSIDE = "none of these"
_PRECISION = 0.95
_NUM_BINS = 15


def _read(name):
    """Returns a dict from split to rows, (text, label) each."""
    splits = runs.read_intents(_FOLDERS.data(name))
    train, test = splits["train"], splits["test"]
    if name == "banking77":
        dev, train = train[::10], [x for i, x in enumerate(train) if i % 10]
        return {"train": train, "dev": dev, "test": test}
    dev, test = (
        [*splits[x], *((text, _OUTSIDE) for text, _ in splits[f"oos_{x}"])]
        for x in ("val", "test")
    )
    return {"train": train, "dev": dev, "test": test}


def _first_rows(rows, count):
    """Returns the first rows of each label; 0 means all."""
    seen = collections.Counter()
    chosen = []
    for text, label in rows:
        seen[label] += 1
        if not count or seen[label] <= count:
            chosen.append((text, label))
    return chosen


def _train(settings, folder):
    """Runs the script; returns the test set's labels and the seconds."""
    from tests.support import minilm

    splits = _read(settings["set"])
    splits["train"] = _first_rows(splits["train"], settings["rows"])
    most = settings["max_test_rows"] or len(splits["test"])
    places = np.linspace(0, len(splits["test"]) - 1, most).astype(int)
    splits["test"] = [splits["test"][x] for x in places]
    for split, rows in splits.items():
        runs.write_table(folder / f"{split}.csv", ("text", "label"), rows)
    values = {f"{x}_file": folder / f"{x}.csv" for x in splits} | {
        "task_name": "custom",
        "pretrained_model_dir": minilm.directory(),
        "output_dir": folder / "output",
        "learning_rate": "2e-4",
        "new_pooler": True,
        "optimizer": "adamw",
        "max_seq_length": 64,
        "num_train_epochs": settings["epochs"],
        "reject_precision": _PRECISION,
        "reject_label": _OUTSIDE,
        "seed": settings["seed"],
        "eval_batch_size": 32,
        "predict_batch_size": 32,
        "do_train": True,
        "do_eval": True,
        "do_predict": True,
    }
    seconds = runs.run_script("run/finetune_classifier.py", **values)
    return [label for _, label in splits["test"]], seconds


def _error(stated, is_right):
    """Returns the expected calibration error of 15 equal bins."""
    places = np.clip(np.ceil(stated * _NUM_BINS) - 1, 0, _NUM_BINS - 1)
    return float(
        sum(
            abs(stated[places == x].mean() - is_right[places == x].mean())
            * (places == x).mean()
            for x in set(places)
        )
    )


def _measure(output, gold):
    """Returns the numbers of a finished cell."""
    task = runs.read_json(output / "model" / "task.json")
    rows = runs.read_json_lines(output / "test_predictions.jsonl")
    values = np.array([[*row["probabilities"].values()] for row in rows])
    names, gold = np.array(task["labels"]), np.array(gold)
    answers = np.array([row["label"] for row in rows])
    stated, is_right = values.max(-1), names[values.argmax(-1)] == gold
    is_known = gold != _OUTSIDE
    # Undo the temperature; the result is exact except for rounding.
    plain = np.maximum(values, 1e-30) ** task["temperature"]
    plain /= plain.sum(-1, keepdims=True)
    is_answer = answers != _OUTSIDE
    found = {
        "accuracy": float(is_right[is_known].mean()),
        "temperature": task["temperature"],
        "error": _error(stated[is_known], is_right[is_known]),
        "error_without": _error(plain.max(-1)[is_known], is_right[is_known]),
        "reject_below": task["reject_below"],
        "coverage": float(is_answer.mean()),
        "precision": float(is_right[is_answer].mean()),
    }
    if is_known.all():
        return found
    precision, recall, _ = metrics.precision_recall_curve(~is_known, -stated)
    return found | {
        "outside_auroc": float(metrics.roc_auc_score(~is_known, -stated)),
        "outside_recall_at_95": float(recall[precision >= 0.95].max()),
        "outside_rejected": float((~is_answer)[~is_known].mean()),
        "inside_rejected": float((~is_answer)[is_known].mean()),
    }


def _cells():
    for name in _SETS.value:
        for rows in _ROWS.value:
            for seed in _SEEDS.value:
                yield {
                    "set": name,
                    "rows": int(rows),
                    "seed": int(seed),
                    "epochs": _EPOCHS.value,
                    "max_test_rows": _MAX_TEST.value,
                }


def main():
    for settings in _cells():
        name = "-".join(map(str, settings.values()))
        path = _FOLDERS.result(name)
        if not os.path.exists(path) and not _FOLDERS.only_reports:
            folder = pathlib.Path(_FOLDERS.output(name))
            gold, seconds = _train(settings, folder)
            found = _measure(folder / "output", gold)
            value = {"settings": settings, "cpu_seconds": seconds, **found}
            runs.write_json(path, value)
        if found := runs.read_json(path):
            print(name, {k: v for k, v in found.items() if k != "settings"})


if __name__ == "__main__":
    runs.main(main)

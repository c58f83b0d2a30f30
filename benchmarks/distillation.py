r"""Distills a teacher trained on few labels into small students, on Banking77.

  python benchmarks/distillation.py --output_dir=output/distillation
  python benchmarks/distillation.py --report

The teacher is trained on 8 texts of each label. It labels the other training
texts; their gold labels are not read. Each student is trained with each recipe,
one of which uses only labels. Accuracy is measured on the test set after the
last step. A cell is a student, a recipe and a seed; scores of finished cells
are in --results_dir, and a killed run resumes.

--teacher_dir names another teacher, trained on
<output_dir>/data.8.<seed>/train.csv; {seed} in it is replaced. The last lines
are the table: means over the seeds, also for the best recipe's int8 .tflite.
"""

import os
import random
import statistics

import runs
from absl import flags

_FOLDERS = runs.Folders("distillation")
_TEACHER_DIR = flags.DEFINE_string(
    "teacher_dir",
    None,
    "Model directory with {seed} in its path; by default MiniLM is fine-tuned.",
)
_SEEDS = flags.DEFINE_list(
    "seeds", ["1", "2", "3"], "Seeds of samples and weights."
)
_RECIPES = flags.DEFINE_list("recipes", None, "Recipes; all by default.")
_STUDENTS = flags.DEFINE_list("students", ["wide", "narrow"], "Students.")
_PER_LABEL = flags.DEFINE_integer("per_label", 8, "Gold labels of each label.")

# Plain fine-tuning for 30 epochs gives a teacher of 80.6%.
_TEACHER = {"few_shot": True}
# The shape and the flags of each student.
STUDENTS = {
    "wide": {
        "num_hidden_layers": 2,
        "learning_rate": "5e-4",
        "num_train_epochs": 10,
    },
    "narrow": {
        "num_hidden_layers": 3,
        "hidden_size": 192,
        "learning_rate": "1e-3",
        "num_train_epochs": 20,
    },
}
_BEST = "logits"
_LOGITS = {
    "distillation_weight": 1.0,
    "hidden_weight": 0,
    "train_batch_size": 64,
}
RECIPES = {
    # More epochs would change nothing, because the loss is 0 by then.
    "labels": {
        "distillation_weight": 0,
        "hidden_weight": 0,
        "num_train_epochs": 30,
    },
    _BEST: _LOGITS,
    "logits_and_labels": _LOGITS | {"distillation_weight": 0.5},
    "logits_and_hidden": _LOGITS | {"hidden_weight": 1.0},
    # Runs after `_HIDDEN_FIRST`. In a sum, the hidden loss would dominate.
    "hidden_first": _LOGITS,
}
_HIDDEN_FIRST = _LOGITS | {"hidden_weight": 1000.0, "num_train_epochs": 3}


def _data(seed):
    """Writes the files of a seed; returns the flags that name them."""
    folder = _FOLDERS.output(f"data.{_PER_LABEL.value}.{seed}")
    paths = {
        f"{x}_file": os.path.join(folder, f"{x}.csv")
        for x in ("train", "unlabeled", "test")
    }
    if not os.path.exists(folder):
        splits = runs.read_intents(_FOLDERS.data("banking77"))
        rows = splits["train"]
        random.Random(int(seed)).shuffle(rows)
        chosen, rest, counts = [], [], {}
        for text, label in rows:
            counts[label] = counts.get(label, 0) + 1
            is_chosen = counts[label] <= _PER_LABEL.value
            (chosen if is_chosen else rest).append((text, label))
        texts = [(text,) for text, _ in rest]
        runs.write_table(paths["train_file"], ("text", "label"), chosen)
        runs.write_table(paths["unlabeled_file"], ("text",), texts)
        runs.write_table(paths["test_file"], ("text", "label"), splits["test"])
    return paths


def _scores(folder):
    return runs.read_json(os.path.join(folder, "eval_results.json"))["test"]


def _teacher(seed, paths):
    """Returns the model directory of a teacher, and trains it if missing."""
    if _TEACHER_DIR.value:
        return _TEACHER_DIR.value.replace("{seed}", seed)
    from tests.support import minilm

    folder = _FOLDERS.output(f"teacher.{seed}")
    if not os.path.exists(os.path.join(folder, "eval_results.json")):
        seconds = runs.run_script(
            "run/finetune_classifier.py",
            f"{folder}.log",
            task_name="custom",
            train_file=paths["train_file"],
            test_file=paths["test_file"],
            pretrained_model_dir=minilm.directory(),
            output_dir=folder,
            do_train=True,
            do_predict=True,
            seed=seed,
            **_TEACHER,
        )
        scores = _scores(folder) | {"processor_seconds": seconds}
        runs.write_json(_FOLDERS.result("teacher", "labels", seed), scores)
    return os.path.join(folder, "model")


def _distill(student, recipe, seed, teacher, paths):
    """Trains a student and writes its scores."""
    folder = _FOLDERS.output(f"{student}.{recipe}.{seed}")
    log = f"{folder}.log"
    shape, values = STUDENTS[student], RECIPES[recipe]
    common = {
        "teacher_dir": teacher,
        "do_train": True,
        "seed": seed,
        "optimizer": "adamw",
        "train_file": paths["train_file"],
        **{x: shape[x] for x in ("learning_rate", "num_train_epochs")},
    }
    if values["distillation_weight"]:
        common["unlabeled_file"] = paths["unlabeled_file"]
    start, seconds = shape, 0.0
    if recipe == "hidden_first":
        first = f"{folder}.first"
        seconds = runs.run_script(
            "run/distill.py",
            log,
            output_dir=first,
            **common | shape | _HIDDEN_FIRST,
        )
        start = {"pretrained_model_dir": os.path.join(first, "model")}
    seconds += runs.run_script(
        "run/distill.py",
        log,
        output_dir=folder,
        do_predict=True,
        test_file=paths["test_file"],
        **common | start | values,
    )
    scores = _scores(folder) | {"processor_seconds": seconds, "flags": values}
    if recipe == _BEST:
        scores["int8"] = _export(folder, log, paths["test_file"])
    runs.write_json(_FOLDERS.result(student, recipe, seed), scores)


def _export(folder, log, test_file):
    """Returns the megabytes and the accuracy of an int8 .tflite file."""
    path = os.path.join(folder, "int8.tflite")
    runs.run_script(
        "export/tflite.py",
        log,
        model_dir=os.path.join(folder, "model"),
        output_file=path,
        eval_file=test_file,
    )
    with open(log, encoding="utf-8") as file:
        (*_, row) = (x.split() for x in file if x.startswith("dynamic "))
    return {"megabytes": os.path.getsize(path) / 1e6, "accuracy": row[2]}


def _print_report(recipes):
    print("| model | recipe | accuracy | of the teacher's | seeds | s | int8 |")
    print("|---" * 7 + "|")
    for cell in (
        ("teacher", "labels"),
        *((x, y) for x in _STUDENTS.value for y in recipes),
    ):
        paths = (_FOLDERS.result(*cell, seed) for seed in _SEEDS.value)
        found = [x for x in map(runs.read_json, paths) if x]
        if not found:
            continue
        mean = statistics.mean(x["accuracy"] for x in found)
        share = statistics.mean(
            x["accuracy"] / x.get("teacher_accuracy", x["accuracy"])
            for x in found
        )
        seconds = statistics.mean(x["processor_seconds"] for x in found)
        files = [x["int8"] for x in found if "int8" in x]
        print(
            f"| {' | '.join(cell)} | {100 * mean:.2f} | {share:.1%} | "
            f"{len(found)} | {seconds:.0f} | "
            + ", ".join(
                f"{x['accuracy']} ({x['megabytes']:.1f} MB)" for x in files
            )
            + " |"
        )


def main():
    recipes = _RECIPES.value or [*RECIPES]
    for seed in () if _FOLDERS.only_reports else _SEEDS.value:
        paths = _data(seed)
        teacher = _teacher(seed, paths)
        for student in _STUDENTS.value:
            for recipe in recipes:
                path = _FOLDERS.result(student, recipe, seed)
                if not os.path.exists(path):
                    _distill(student, recipe, seed, teacher, paths)
    _print_report(recipes)


if __name__ == "__main__":
    runs.main(main)

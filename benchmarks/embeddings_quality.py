r"""Compares training of embeddings with sentence-transformers, in equal steps.

  python benchmarks/embeddings_quality.py --data_dir=../shared/data
  python benchmarks/embeddings_quality.py --report

Both start from the same MiniLM and get the same rows, batch size, learning rate
and steps, but other orders of rows. QNLI's rows are questions and the sentences
with their answers, scored by search. SNLI's rows are pairs with 1, 0.5 and 0
for entailment, neutral and contradiction; its dev set is trained on, and its
test set is scored. One cell runs at a time; finished cells are kept in
--results_dir. The last lines are the table, with the scores of MiniLM before
training.
"""

import gzip
import os
import random
import statistics
import time

import few_shot
import runs
from absl import flags

_TASKS = flags.DEFINE_list("tasks", ["qnli", "snli"], "Which tasks.")
_FRAMEWORKS = flags.DEFINE_list(
    "frameworks",
    ["start", "bert_tf", "sentence_transformers"],
    "Which frameworks; start is the model as it is.",
)
_ROWS = flags.DEFINE_integer(
    "rows", 0, "Rows to use, to try the script; 0 is all."
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Rows of a step.")
_RATE = flags.DEFINE_float("learning_rate", 5e-5, "Peak learning rate.")

_NAME = "embeddings_quality"
for _flag in ("results_dir", "output_dir"):
    _folder = flags.FLAGS[_flag].default.replace("few_shot", _NAME)
    flags.FLAGS.set_default(_flag, _folder)

_SNLI_SCORES = {"0": 1.0, "1": 0.5, "2": 0.0}
_LENGTH = 128
_COLUMNS = {
    "qnli": ("anchor", "positive"),
    "snli": ("text_a", "text_b", "score"),
}


def _read(task, split):
    """Returns the rows of a split, in the order of `_COLUMNS`."""
    name = {
        ("qnli", "train"): "train_part",
        ("qnli", "dev"): "dev",
        ("snli", "train"): "dev",
        ("snli", "dev"): "test",
    }[task, split]
    path = few_shot.FOLDERS.data(task, f"{name}.tsv.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    if task == "qnli":
        rows = [row[1:3] for row in rows if row[3] == "entailment"]
    else:
        rows = [
            (*row[:2], _SNLI_SCORES[row[2]])
            for row in rows
            if row[2] in _SNLI_SCORES
        ]
    return rows[: _ROWS.value or None]


def _run_ours(request, is_trained):
    """Runs run/finetune_embeddings.py; returns the scores of dev."""
    folder = request["folder"]
    values = {
        "output_dir": f"{folder}/output",
        "do_eval": True,
        "do_train": is_trained,
        "pretrained_model_dir": request["model"],
        "train_batch_size": request["batch_size"],
        "learning_rate": request["learning_rate"],
        "num_train_epochs": 1,
        "max_seq_length": _LENGTH,
        "eval_batch_size": 64,
        "seed": request["seed"],
    }
    columns = _COLUMNS[request["task"]]
    for split in ("train", "dev"):
        values[f"{split}_file"] = path = os.path.join(folder, f"{split}.csv")
        runs.write_table(path, columns, request[split])
    script = "run/finetune_embeddings.py"
    seconds = runs.run_script(script, request["log"], **values)
    path = os.path.join(folder, "output", "eval_results.json")
    return runs.read_json(path)["dev"], seconds


def _run_peer(request):
    """Runs sentence-transformers; scores its embeddings like ours."""
    import numpy as np

    from bert_tf.tasks.embeddings.task import PairsTask

    texts = list(dict.fromkeys(x for row in request["dev"] for x in row[:2]))
    answer = few_shot.run_peer(request | {"dev_texts": texts})
    vectors = dict(zip(texts, np.float32(answer["embeddings"]), strict=True))
    columns = _COLUMNS[request["task"]]
    groups = [dict(zip(columns, x, strict=True)) for x in request["dev"]]
    predictions = [
        np.stack([vectors[text] for text in row[:2]]) for row in request["dev"]
    ]
    return PairsTask().score(groups, predictions), answer["seconds"]


_FRAMEWORK_RUNS = {
    "start": lambda x: _run_ours(x, False),
    "bert_tf": lambda x: _run_ours(x, True),
    "sentence_transformers": _run_peer,
}


def _run_cell(task, framework, seed):
    """Runs one cell and stores its scores and its time."""
    rows = _read(task, "train")
    random.Random(int(seed)).shuffle(rows)
    with few_shot.request(f"{task}.{framework}.{seed}", seed) as request:
        request |= {
            "job": "embeddings",
            "task": task,
            "form": "scores" if task == "snli" else "positives",
            "train": rows,
            "dev": _read(task, "dev"),
            "batch_size": _BATCH_SIZE.value,
            "learning_rate": _RATE.value,
            "max_seq_length": _LENGTH,
        }
        scores, seconds = _FRAMEWORK_RUNS[framework](request)
    result = {"scores": scores, "processor_seconds": seconds}
    runs.write_json(few_shot.FOLDERS.result(task, framework, seed), result)
    return result


def _report():
    print("| task | framework | seeds | scores | processor seconds |")
    print("|---" * 5 + "|")
    for task in _TASKS.value:
        for framework in _FRAMEWORKS.value:
            results = few_shot.finished(task, framework)
            if not results:
                continue
            each = {
                name: [x["scores"][name] for x in results]
                for name in results[0]["scores"]
            }
            shown = ", ".join(
                f"{name} {statistics.mean(values):.4f}"
                for name, values in each.items()
            )
            seconds = statistics.mean(x["processor_seconds"] for x in results)
            print(
                f"| {task} | {framework} | {len(results)} | {shown} | "
                f"{seconds:.0f} |"
            )


def main():
    for seed in () if few_shot.FOLDERS.only_reports else flags.FLAGS.seeds:
        for task in _TASKS.value:
            for framework in _FRAMEWORKS.value:
                path = few_shot.FOLDERS.result(task, framework, seed)
                is_repeated = framework == "start" and seed != "1"
                if os.path.exists(path) or is_repeated:
                    continue
                print(f"{time.strftime('%X')} {task} {framework} {seed}")
                print(_run_cell(task, framework, seed), flush=True)
    _report()


if __name__ == "__main__":
    runs.main(main)

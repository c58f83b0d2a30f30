"""Fine-tunes with this project's scripts, as a user would.

finetune_quality.py uses this module, and finetune_peer.py for transformers.
"""

import json
import os
import shutil
import time

import finetune_tasks
import runs

_PREDICT_BATCH_SIZE = 64


def run(request, name):
    """Runs a script; returns its answer in the peer's format.

    Args:
      request: The peer's request; its model is a directory, or the flags that
        choose the initial weights.
      name: The prefix of the files that are made. All files but the log are
        removed.
    """
    from bert_tf.experiments.run import current_commit

    folder = os.path.abspath(f"{name}.run")
    shutil.rmtree(folder, ignore_errors=True)
    output_dir = os.path.join(folder, "output")
    os.makedirs(output_dir)
    write_files, read_predictions = _KINDS[request["kind"]]
    script, flags = write_files(request, folder)
    flags |= _common_flags(request) | {"output_dir": output_dir}
    command = runs.command(f"run/{script}", **flags)
    # Read the commit first, because HEAD may change during the run.
    versions = {"commit": current_commit()}
    start = time.monotonic()
    runs.run(command, f"{name}.log", runs.threads(request["threads"]))
    answer = {
        "predictions": read_predictions(request, output_dir),
        "seconds": {"all": time.monotonic() - start},
        "command": command,
        "versions": versions,
    }
    shutil.rmtree(folder)
    return answer


def _common_flags(request):
    flags = {
        "do_train": True,
        "do_predict": True,
        "predict_batch_size": _PREDICT_BATCH_SIZE,
        "optimizer": "adamw",
        "mixed_precision": "auto",
        "weight_decay_rate": request["weight_decay"],
    }
    if isinstance(request["model"], dict):
        flags |= request["model"]
    else:
        flags["pretrained_model_dir"] = request["model"]
        if request["kind"] in ("classification", "choice"):
            flags["new_pooler"] = True
    same = (
        "max_seq_length",
        "train_batch_size",
        "learning_rate",
        "num_train_epochs",
        "warmup_proportion",
        "seed",
    )
    return flags | {key: request[key] for key in same}


def _write_rows(path, rows):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)


def _read_column(name):
    """Returns a function that reads a value of each predicted row."""

    def read(request, output_dir):
        del request
        path = os.path.join(output_dir, "test_predictions.jsonl")
        return [row[name] for row in runs.read_json_lines(path)]

    return read


def _write_texts(request, folder):
    flags = {"task_name": "custom"}
    for split in ("train", "test"):
        path = os.path.join(folder, f"{split}.jsonl")
        _write_rows(path, request[split])
        flags[f"{split}_file"] = path
    if request["test"][0]["text_pair"] is not None:
        flags["text_pair_column"] = "text_pair"
    return "finetune_classifier.py", flags


def _write_choices(request, folder):
    del folder  # Nothing is written: the script reads the official files.
    data_dir = request["data_dir"]
    data_dir = {
        "codah": os.path.join(data_dir, "codah", "fold_0"),
        "comve_a": os.path.join(data_dir, "comve"),
        "comve_b": os.path.join(data_dir, "comve"),
    }[request["task"]]
    flags = {"task_name": request["task"], "data_dir": data_dir}
    return "finetune_multiple_choice.py", flags


def _write_columns(request, folder):
    flags = {"approach": request["approach"], "context": "sentence"}
    for split in ("train", "test"):
        path = os.path.join(folder, f"{split}.conll")
        with open(path, "w", encoding="utf-8") as file:
            for example in request[split]:
                for pair in zip(example["words"], example["tags"], strict=True):
                    file.write("\t".join(pair) + "\n")
                file.write("\n")
        flags[f"{split}_file"] = path
    if request["approach"] == "feature_based":
        flags["layer_combination"] = "concat_last_four_hidden"
        flags["lstm_size"] = request["lstm_units"]
    return "finetune_tagger.py", flags


def _write_squad(request, folder):
    del folder
    train, test = finetune_tasks.squad_paths(
        request["data_dir"], request["with_negative"]
    )
    return "finetune_squad.py", {
        "train_file": train,
        "predict_file": test,
        "doc_stride": request["doc_stride"],
        "version_2_with_negative": request["with_negative"],
    }


def _read_answers(request, output_dir):
    def read(name):
        return runs.read_json(os.path.join(output_dir, name))

    if not request["with_negative"]:
        answers = read("predictions.json")
        return {key: {"answer": answer} for key, answer in answers.items()}
    odds = read("null_odds.json")
    return {
        key: {
            "answer": next((x["text"] for x in nbest if x["text"]), ""),
            "null_odds": odds[key],
        }
        for key, nbest in read("nbest_predictions.json").items()
    }


_KINDS = {
    "classification": (_write_texts, _read_column("label")),
    "choice": (_write_choices, _read_column("index")),
    "tagging": (_write_columns, _read_column("tags")),
    "squad": (_write_squad, _read_answers),
}

r"""Kills every script that writes (kill -9) at random, and compares the files.

  python benchmarks/kills.py --kills=40

Each script runs once undisturbed, on what the scripts before it made of a small
made-up text. Then it runs again, is killed at a random moment, is started
again, and so on; at the end it runs undisturbed. All its files must have the
same bytes as those of the first run, and no other may be left. What has times
or speeds in it is compared without them: see `_normalize`. The last line says
whether all went well; if not, the script ends with 1.
"""

import collections
import csv
import hashlib
import json
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags

_KILLS = flags.DEFINE_integer("kills", 40, "In all; at least two a script.")
_SCRIPTS = flags.DEFINE_list("scripts", None, "Names; all by default.")
_SEED = flags.DEFINE_integer("seed", 1, "Of the moments.")

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_TIMEOUT_SECONDS = 600
# Shares of the undisturbed run's time, between which a kill may come.
_FROM, _TO = 0.2, 0.9
# Starts that may end before their kill.
_MAX_MISSED = 5
# Values of JSON whose name has a time or speed, durations, and dates.
_TIMES = re.compile(
    r'"\w*(?:per_second|seconds|_ms|time)\w*": [^,}\n]*'
    r"|\d+(?:\.\d+)? (?:ms|s|seconds)\b"
    r"|\d{4}-\d\d-\d\d[T ][\d:.+]*"
)
_MADE = "{made}"
_OUT = "{out}"

_MODEL = f"{_MADE}/finetune_classifier/run/model"
_TABLE = {
    "task_name": "custom",
    "train_file": f"{_MADE}/train.csv",
    "dev_file": f"{_MADE}/dev.csv",
    "max_seq_length": 32,
    "train_batch_size": 8,
    "num_train_epochs": 4,
    "learning_rate": 1e-3,
    "save_checkpoints_steps": 10,
    "do_train": True,
    "do_eval": True,
}
_COMMANDS = {
    "extract_text": {
        "input_file": f"{_MADE}/raw.jsonl",
        "output_file": f"{_OUT}/text.txt",
        "num_shards": 3,
    },
    "learn_vocabulary": {
        "input_file": f"{_MADE}/extract_text/*.txt",
        "output_file": f"{_OUT}/vocab.txt",
        "vocab_size": 600,
        "num_unused": 99,
    },
    "create_pretraining_data": {
        "input_file": f"{_MADE}/extract_text/*.txt",
        "vocab_file": f"{_MADE}/learn_vocabulary/vocab.txt",
        "output_file": f"{_OUT}/x.tfrecord",
        "max_seq_length": 32,
        "max_predictions_per_seq": 5,
        "num_shards": 3,
        "dupe_factor": 20,
    },
    "pretrain": {
        "bert_config_file": "configs/L-2_H-128_A-2/bert_config.json",
        "input_file": f"{_MADE}/create_pretraining_data/*.tfrecord",
        "vocab_file": f"{_MADE}/learn_vocabulary/vocab.txt",
        "output_dir": f"{_OUT}/run",
        "max_seq_length": 32,
        "max_predictions_per_seq": 5,
        "train_batch_size": 8,
        "num_train_steps": 300,
        "save_checkpoints_steps": 20,
        "save_checkpoints_secs": 0,
        "do_train": True,
    },
    "finetune_classifier": _TABLE
    | {
        "pretrained_model_dir": f"{_MADE}/pretrain/run/model",
        "output_dir": f"{_OUT}/run",
    },
    "finetune_tagger": {
        "data_dir": f"{_MADE}/tags",
        "pretrained_model_dir": f"{_MADE}/pretrain/run/model",
        "output_dir": f"{_OUT}/run",
        "max_seq_length": 32,
        "train_batch_size": 8,
        "num_train_epochs": 4,
        "save_checkpoints_steps": 10,
        "do_train": True,
        "do_eval": True,
    },
    "distill": {x: y for x, y in _TABLE.items() if x != "task_name"}
    | {
        "teacher_dir": _MODEL,
        "num_hidden_layers": 1,
        "output_dir": f"{_OUT}/run",
    },
    "predict": {
        "model_dir": _MODEL,
        "input_file": f"{_MADE}/many.csv",
        "output_file": f"{_OUT}/predictions.jsonl",
    },
    "tokenize_file": {
        "vocab_file": f"{_MADE}/learn_vocabulary/vocab.txt",
        "input_file": f"{_MADE}/lines.txt",
        "output_file": f"{_OUT}/tokens.jsonl",
    },
    "extract_features": {
        "model_dir": f"{_MADE}/pretrain/run/model",
        "input_file": f"{_MADE}/lines.txt",
        "max_seq_length": 32,
        "output_file": f"{_OUT}/features.jsonl",
    },
    "convert_checkpoint": {
        "input": f"{_MADE}/pretrain/run/model",
        "to": "huggingface",
        "output": f"{_OUT}/converted",
    },
    "extend_vocabulary": {
        "input": f"{_MADE}/pretrain/run/model",
        "new_words_file": f"{_MADE}/words.txt",
        "output": f"{_OUT}/extended",
    },
    "export_savedmodel": {
        "model_dir": _MODEL,
        "output_dir": f"{_OUT}/served",
        "version": 1,
    },
    "export_tflite": {
        "model_dir": _MODEL,
        "output_file": f"{_OUT}/model.tflite",
    },
}
_DOORS = {
    "export_savedmodel": "export/savedmodel.py",
    "export_tflite": "export/tflite.py",
}


def _write_inputs(made):
    """Writes texts and tables of made-up words."""
    rng = random.Random(7)
    words = [f"w{x}{'aeiou'[x % 5]}" for x in range(300)]

    def sentence():
        chosen = rng.choices(words, range(300, 0, -1), k=rng.randint(4, 14))
        return " ".join(chosen).capitalize() + "."

    with open(made / "raw.jsonl", "w", encoding="utf-8") as file:
        for _ in range(3000):
            text = "\n".join(
                " ".join(sentence() for _ in range(3)) for _ in range(4)
            )
            file.write(json.dumps({"text": text}) + "\n")
    for name, count in (("train", 300), ("dev", 60), ("many", 20_000)):
        with open(made / f"{name}.csv", "w", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("text", "label"))
            for _ in range(count):
                text = sentence()
                writer.writerow((text, "even" if "e" in text else "odd"))
    (made / "tags").mkdir()
    for name, count in (("train", 200), ("dev", 50), ("test", 50)):
        with open(made / "tags" / f"{name}.txt", "w") as file:
            for _ in range(count):
                for word in sentence().split():
                    tag = "B-PER" if "1" in word else "O"
                    file.write(f"{word} {tag}\n")
                file.write("\n")
    lines = "".join(sentence() + "\n" for _ in range(4000))
    (made / "lines.txt").write_text(lines, encoding="utf-8")
    (made / "words.txt").write_text("w1x\nw2y\n", encoding="utf-8")


def _command(name, places):
    """Returns the words that start a script."""
    door = _DOORS.get(name, f"run/{name}.py")
    words = [sys.executable, str(_ROOT / door)]
    for flag, value in _COMMANDS[name].items():
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no{flag}")
            continue
        text = str(value)
        for place, path in places.items():
            text = text.replace(place, str(path))
        words.append(f"--{flag}={text}")
    return words


def _start(words, log):
    with open(log, "ab") as file:
        return subprocess.Popen(words, stdout=file, stderr=file)


def _run_undisturbed(words, log):
    """Runs a script to its end; returns its seconds and exit status."""
    begin = time.monotonic()
    status = _start(words, log).wait(_TIMEOUT_SECONDS)
    return time.monotonic() - begin, status


def _run_killed(words, log, seconds, out):
    """Returns whether a script was killed before it ended.

    A start that ends before its kill begins anew.
    """
    for _ in range(_MAX_MISSED):
        process = _start(words, log)
        try:
            process.wait(seconds * random.uniform(_FROM, _TO))
        except subprocess.TimeoutExpired:
            process.kill()
            if process.wait() == -signal.SIGKILL:
                return True
        shutil.rmtree(out)
        out.mkdir()
    return False


def _contents(folder):
    """Returns a hash of each file's contents, by its path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not _is_unlike(name):
            contents = _normalize(name, path.read_bytes())
            found[name] = hashlib.sha256(contents).hexdigest()
    return found


def _is_unlike(name):
    """Returns whether a file differs between two undisturbed runs, too."""
    # TensorBoard's events and an export's card have times, curves have speeds,
    # logs all that a start has logged, as the list of written files; the
    # fingerprint is random, and hashes are of files with times.
    return "events.out" in name or name.endswith(
        (
            ".log",
            "checksums.json",
            "fingerprint.pb",
            "learning_curves.png",
            "MODEL_CARD.md",
            "model_card.json",
            "written_files.json",
        )
    )


def _normalize(name, contents):
    """Returns the contents of a file without times and speeds."""
    if name.endswith((".jsonl", ".json", ".md", ".txt")):
        return _TIMES.sub("", contents.decode()).encode()
    if name.endswith("/checkpoint"):  # It has the times of its checkpoints.
        return re.sub(rb"\w*timestamps?: .*", b"", contents)
    return contents


def _compare(expected, found):
    """Returns a sentence about each difference."""
    names = sorted(expected.keys() | found.keys())
    return [
        f"{name}: "
        + (
            "differs"
            if name in expected and name in found
            else "missing"
            if name in expected
            else "left over"
        )
        for name in names
        if expected.get(name) != found.get(name)
    ]


def _check(name, num_kills, made):
    """Runs one script undisturbed and killed; returns the differences."""
    out = made / name
    words = _command(name, {_MADE: made, _OUT: out})
    log = made / f"{name}.log"
    out.mkdir()
    seconds, status = _run_undisturbed(words, log)
    if status:
        sys.exit(f"{name} failed:\n{log.read_text()[-2000:]}")
    expected = _contents(out)
    shutil.rmtree(out)
    out.mkdir()
    kills = sum(_run_killed(words, log, seconds, out) for _ in range(num_kills))
    _, status = _run_undisturbed(words, log)
    differences = _compare(expected, _contents(out))
    # What was killed after its last rename is refused, as it is there already.
    if status and not re.search(r"already", log.read_text()[-500:]):
        differences.append(f"the last start ended with {status}")
    print(
        f"| {name} | {kills} | {len(expected)} | "
        f"{'; '.join(differences) or 'same bytes'} |",
        flush=True,
    )
    return kills, differences


def main(argv):
    del argv
    random.seed(_SEED.value)
    names = list(_COMMANDS)
    chosen = _SCRIPTS.value or names
    counts = collections.Counter(chosen * 2)
    while counts.total() < _KILLS.value:
        counts[random.choice(chosen)] += 1
    print("| script | kills | files | result |\n|---|---|---|---|")
    kills, differences = 0, []
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder)
        _write_inputs(made)
        for name in names:
            done, found = _check(name, counts[name], made)
            kills += done
            differences += found
    print(f"{kills} kills, {len(differences)} differences")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    app.run(main)

"""Compares the files and flags of an old commit with this working tree's.

    python tools/compare_versions.py --old_commit=5b64c02 --work_dir=.cache/old

The old code makes fixtures below --work_dir, once: data, models, exports, and
runs stopped halfway. The new code then runs the same commands and finishes
copies of the stopped runs, and its files must be equal. The program prints one
line for each check; the exit status is 1 if any differs. Files contain paths,
so --work_dir cannot be moved.
"""

import concurrent.futures
import csv
import dataclasses
import gzip
import hashlib
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import app
from absl import flags
from tensorboard.backend.event_processing import event_file_loader
from tensorboard.util import tensor_util

_ROOT = pathlib.Path(__file__).resolve().parents[1]

_OLD_COMMIT = flags.DEFINE_string("old_commit", "HEAD", "The old version.")
_WORK_DIR = flags.DEFINE_string(
    "work_dir", None, "Folder for fixtures and results.", required=True
)
_OLD_TREE = flags.DEFINE_string(
    "old_tree", None, "Checkout of --old_commit (default: made in --work_dir)."
)
_NEW_TREE = flags.DEFINE_string("new_tree", str(_ROOT), "The new version.")
_DATA_DIR = flags.DEFINE_string(
    "data_dir", str(_ROOT.parent / "shared" / "data"), "Texts and data sets."
)
_ONLY = flags.DEFINE_list(
    "only", None, "Stages or checks to compare (default: all)."
)
_RUN = flags.DEFINE_bool(
    "run", True, "Whether to run the new code, not only compare its results."
)
_JOBS = flags.DEFINE_integer("jobs", 2, "Commands that run at the same time.")

_TIMEOUT_SECONDS = 1200
_MOST_SHOWN = 5
# Values that differ between two runs of the same code, by file and JSON path:
# times, sizes, and values that contain times or sizes.
_VOLATILE = re.compile(
    r"per_second|milliseconds|/Latency in ms|date_saved|"
    r"model_card.json/(sha256|bytes|verification/\d+/detail)|"
    r"MODEL_CARD.md/(SHA-256|Bytes|Verification)/|sha256/README.md"
)
# Files that differ between two runs, too: plots of the speed, protos with maps,
# and models. The last stage compares the outputs of the models.
_OPAQUE = re.compile(
    r"curves\.png$|warmup_requests$|\.pb$|variables\.|\.tflite$|\.keras$"
)
_EVENTS = "events.out.tfevents"

# Each entry is "stage/check: command". In a check of resuming, the signal that
# stops the old code, and the file and number of lines to wait for, come before
# the colon. In other checks, each word before the colon replaces * in turn.
_CHECKS = """
data/vocabulary: run/learn_vocabulary.py --input_file={inputs}/text.txt
  --output_file={out}/vocab.txt --vocab_size=2000 --num_unused=99
records/streaming: {records}
records/streaming_resumed SIGKILL text.tfrecord.work/part-*.tfrecord 0:
  {records}
records/original: {records} --generator=original
records/original_resumed SIGKILL text.tfrecord.work/recipe.json 0:
  {records} --generator=original
pretrain/float32: {pretrain} --mixed_precision=float32
pretrain/bfloat16: {pretrain} --mixed_precision=bfloat16
pretrain/killed SIGKILL model.ckpt-10.json 0: {pretrain}
pretrain/terminated SIGTERM train_metrics.jsonl 1: run/pretrain.py
  --num_train_steps=40 {shape}
finetune/topics: {classifier} {topics}
finetune/topics_resumed SIGTERM train_metrics.jsonl 4: {classifier} {topics}
finetune/grid_resumed SIGTERM runs/rate_0.0001_*/train_metrics.jsonl 4:
  {classifier} {topics} --learning_rate=1e-3,1e-4
finetune/tags: {classifier} --task_name=custom --problem_type=multi_label
  --train_file={inputs}/tags_train.jsonl --dev_file={inputs}/tags_dev.jsonl
  --label_column=tags
finetune/scores: {classifier} --task_name=custom --problem_type=regression
  --train_file={inputs}/scores_train.csv --dev_file={inputs}/scores_dev.csv
  --label_column=score
finetune/choice SIGTERM train_metrics.jsonl 4: {tune}
  run/finetune_multiple_choice.py --task_name=codah --data_dir={inputs}/codah
  --do_eval --do_predict
finetune/names SIGTERM train_metrics.jsonl 4: {tune} run/finetune_tagger.py
  --data_dir={inputs}/names --do_eval
finetune/names_lstm SIGTERM train_metrics.jsonl 4: {tune}
  run/finetune_tagger.py --data_dir={inputs}/names --do_eval
  --approach=feature_based --layer_combination=weighted_sum_all_layers
  --lstm_size=32
finetune/squad SIGTERM train_metrics.jsonl 4: {tune} run/finetune_squad.py
  --train_file={inputs}/squad_train.json --do_predict --max_query_length=24
  --predict_file={inputs}/squad_dev.json
use/distill_resumed SIGTERM train_metrics.jsonl 4: run/distill.py
  --teacher_dir={old}/topics/model --num_hidden_layers=1 --output_dir={out}
  --train_file={inputs}/topics_train.csv --train_batch_size=8 --do_train
  --dev_file={inputs}/topics_dev.csv --do_eval
use/predict_resumed SIGKILL rows.jsonl.work/chunk-000000 0: run/predict.py
  --model_dir={old}/topics/model --input_file={inputs}/rows.csv
  --output_file={out}/rows.jsonl
use/fill_mask: run/fill_mask.py --model_dir={old}/float32/model
  --text='The [MASK] is in the [MASK].' > {out}/stdout
use/tokenize_file: run/tokenize_file.py --input_file={inputs}/lines.txt
  --vocab_file={old}/vocabulary/vocab.txt --output_file={out}/lines.jsonl
use/extract_features: run/extract_features.py --input_file={inputs}/lines.txt
  --model_dir={old}/topics/model --output_file={out}/lines.jsonl --layers=-1
use/extend_vocabulary: run/extend_vocabulary.py --input={old}/float32/model
  --new_words_file={inputs}/words.txt --output={out}/model
use/to_* tf1 huggingface keras_hub model_garden: run/convert_checkpoint.py
  --to=* --input={old}/float32/model --output={out}/model
export/saved_* topics tags scores choice names names_lstm squad float32:
  export/savedmodel.py --model_dir={old}/*/model --output_dir={out}/model
  --buckets=16,48 --max_seq_length=48
export/saved_litert: export/savedmodel.py --model_dir={old}/topics/model
  --output_dir={out}/model --max_seq_length=48 --buckets=16,48
  --litert --ids_only --precision=bfloat16
export/lite_* topics choice names squad float32: export/tflite.py
  --model_dir={old}/*/model --output_file={out}/*.tflite --quantization=none
export/lite_text_* topics choice names squad: export/tflite.py
  --model_dir={old}/*/model --output_file={out}/*_text.tflite
  --quantization=none --input=text
export/keras: {helper} make_keras {out} {models}
answers/directories: {helper} answer {out} {models} {old}/scores/model
  {old}/to_*/model {old}/extend_vocabulary/model {old}/distill_resumed/model
answers/keras_files: {helper} answer {out} {old}/keras/*
answers/saved_models: {helper} answer {out} {side}/saved_*/model*/1
answers/lite_files: {helper} answer {out} {side}/lite_*/*.tflite
answers/server: {helper} serve {out} {old}/saved_*/model
answers/verify_* topics squad: export/verify.py
  --model_dir={old}/*/model --export_dir={old}/saved_*/model
"""
_SHARED = {
    "records": """run/create_pretraining_data.py --input_file={inputs}/text.txt
        --vocab_file={old}/vocabulary/vocab.txt --dupe_factor=15
        --output_file={out}/text.tfrecord {lengths}""",
    "pretrain": """run/pretrain.py --flagfile=tiny.flags {shape}
        --vocab_file={old}/vocabulary/vocab.txt --train_batch_size=8
        --num_train_steps=20 --stop_at_step=20 --max_eval_steps=2
        --save_checkpoints_steps=5 --iterations_per_loop=1""",
    "shape": """--bert_config_file={inputs}/bert_config.json --do_train
        --input_file={old}/streaming/text.tfrecord --output_dir={out}
        --num_warmup_steps=5 {lengths}""",
    "lengths": "--max_seq_length=64 --max_predictions_per_seq=10",
    "classifier": "run/finetune_classifier.py --do_eval {tune}",
    "tune": """--pretrained_model_dir={old}/float32/model --output_dir={out}
        --max_seq_length=48 --train_batch_size=8 --do_train""",
    "topics": """--task_name=custom --train_file={inputs}/topics_train.csv
        --dev_file={inputs}/topics_dev.csv --label_column=category
        --test_file={inputs}/topics_dev.csv --do_predict""",
    "helper": str(_ROOT / "tools" / "compare_versions_models.py"),
    "models": " ".join(
        f"{{old}}/{name}/model"
        for name in "topics tags choice names names_lstm squad float32".split()
    ),
}


@dataclasses.dataclass(frozen=True)
class Check:
    """A command to run with both versions, to compare its results.

    Attributes:
      stage: The group of checks that run together.
      name: The folder of the check's results.
      stop: Signal, file and number of lines that stop a first run of the old
        code; empty if nothing is resumed.
      command: Script and flags, with names of folders: {out} for this check's
        results, {old} for the old results, {side} for the results of the
        version that runs, and {inputs} for the inputs of both versions.
    """

    stage: str
    name: str
    stop: tuple[str, ...]
    command: str


def _read_checks() -> Iterator[Check]:
    for text in re.split(r"\n(?=\S)", _CHECKS.strip()):
        head, command = text.split(":", 1)
        name, *words = head.split()
        stage, name = name.split("/")
        for key, value in _SHARED.items():
            command = command.replace(f"{{{key}}}", value)
        if "*" not in name:
            yield Check(stage, name, tuple(words), command)
            continue
        for word in words:
            values = name.replace("*", word), (), command.replace("*", word)
            yield Check(stage, *values)


class Comparison:
    """Makes the old version's results and compares the new version's to them.

    Args:
      work_dir: The folder of inputs, results and logs.
      old_tree: A checkout of the old version.
      new_tree: A checkout of the new version.
    """

    def __init__(
        self, work_dir: pathlib.Path, old_tree: str, new_tree: str
    ) -> None:
        self._work_dir = work_dir
        self._trees = {"old": old_tree, "new": new_tree}

    def make(self, check: Check) -> None:
        """Runs a command with the old code, unless its results are there."""
        if self._folder("old", check).exists():
            return
        begin = time.monotonic()
        out = self._begin(check, "old")
        if check.stop:
            self._run_unfinished(check)
            unfinished = self._folder("unfinished", check)
            shutil.rmtree(unfinished, ignore_errors=True)
            shutil.copytree(out, unfinished)
        self._run("old", check)
        self._keep("old", check)
        _report(check.name, "made", begin)

    def compare(self, check: Check) -> bool:
        """Runs a command with the new code; returns True if all is equal."""
        begin = time.monotonic()
        found = self._run_new(check) if _RUN.value else []
        folders = (self._folder(side, check) for side in ("old", "new"))
        found += _folder_differences(*folders)
        _report(check.name, _summarize(found), begin)
        path = self._log_path(check, "differences")
        path.write_text("".join(f"{line}\n" for line in found))
        return not found

    def _run_new(self, check: Check) -> list[str]:
        """Runs a command with the new code; returns its errors."""
        out = self._begin(check, "new")
        if check.stop:
            unfinished = self._folder("unfinished", check)
            shutil.copytree(unfinished, out, dirs_exist_ok=True)
        try:
            self._run("new", check)
        except subprocess.SubprocessError as error:
            return [str(error)]
        finally:
            self._keep("new", check)
        return []

    def compare_flags(self) -> bool:
        """Compares the flags of all scripts; returns True if all are equal."""
        begin = time.monotonic()
        dumps = (
            subprocess.run(
                [sys.executable, str(_ROOT / "tools" / "dump_flags.py")],
                capture_output=True,
                text=True,
                check=True,
                **self._place(side),
            ).stdout
            for side in ("old", "new")
        )
        # A line begins with a command and its flag.
        old, new = (
            dict(line.split(" | ", 1) for line in dump.splitlines())
            for dump in dumps
        )
        found = [*_differences(old, new, "")]
        _report("flags", _summarize(found), begin)
        return not found

    def _folder(self, side: str, check: Check) -> pathlib.Path:
        return self._work_dir / side / check.name

    def _log_path(self, check: Check, suffix: str) -> pathlib.Path:
        return self._work_dir / "logs" / f"{check.name}.{suffix}"

    def _begin(self, check: Check, side: str) -> pathlib.Path:
        """Empties and returns the folder that a command writes to."""
        for name in ("out", side):
            shutil.rmtree(self._folder(name, check), ignore_errors=True)
        self._log_path(check, side).unlink(missing_ok=True)
        out = self._folder("out", check)
        out.mkdir(parents=True)
        self._log_path(check, "").parent.mkdir(exist_ok=True)
        return out

    def _keep(self, side: str, check: Check) -> None:
        self._folder(side, check).parent.mkdir(exist_ok=True)
        self._folder("out", check).rename(self._folder(side, check))

    def _start(self, side: str, check: Check) -> subprocess.Popen:
        """Starts the command in the tree of a version."""
        command = check.command
        for name in ("old", "side", "inputs"):
            folder = self._work_dir / (side if name == "side" else name)
            command = command.replace(f"{{{name}}}", str(folder))
        out = str(self._folder("out", check))
        command, _, stdout = command.replace("{out}", out).partition(" > ")
        words = [*_expand(shlex.split(command))]
        # The script may come after shared flags, so move it to the front.
        words.sort(key=lambda word: not word.endswith(".py"))
        log_path = self._log_path(check, side)
        with open(log_path, "a") as log, open(stdout or log_path, "a") as file:
            return subprocess.Popen(
                [sys.executable, *words],
                stdout=file,
                stderr=log,
                start_new_session=True,
                **self._place(side),
            )

    def _place(self, side: str) -> dict[str, Any]:
        """Returns the working directory and environment of a version."""
        environment = {
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": self._trees[side],
            "PYTHONPYCACHEPREFIX": str(self._work_dir / "pycache"),
        }
        return {"cwd": self._trees[side], "env": os.environ | environment}

    def _run(self, side: str, check: Check) -> None:
        process = self._start(side, check)
        try:
            status = process.wait(_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        if status:
            raise subprocess.SubprocessError(
                f"exit status {status}, see {self._log_path(check, side)}"
            )

    def _run_unfinished(self, check: Check) -> None:
        """Runs the command with the old code, and stops it halfway."""
        name, pattern, num_lines = check.stop
        out = self._folder("out", check)
        process = self._start("old", check)
        while not _has_lines(out, pattern, int(num_lines)):
            if process.poll() is not None:
                raise RuntimeError(f"{check.name} ended before it was stopped.")
            time.sleep(0.002)
        if name == "SIGKILL":  # Kill the worker processes, too.
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.send_signal(signal.Signals[name])
        process.wait(_TIMEOUT_SECONDS)


def _expand(words: list[str]) -> Iterator[str]:
    """Yields words; replaces a path with an asterisk by the matching files."""
    for word in words:
        if word.startswith("/") and "*" in word:
            yield from sorted(map(str, pathlib.Path("/").glob(word[1:])))
        else:
            yield word


def _has_lines(folder: pathlib.Path, pattern: str, num_lines: int) -> bool:
    return any(
        path.read_bytes().count(b"\n") >= num_lines
        for path in folder.glob(pattern)
    )


def _summarize(found: list[str]) -> str:
    if not found:
        return "same"
    more = f"; {len(found)} in all" if found[_MOST_SHOWN:] else ""
    return f"DIFFERS: {'; '.join(found[:_MOST_SHOWN])}{more}"


def _report(name: str, result: str, begin: float) -> None:
    seconds = time.monotonic() - begin
    print(f"{name:20} {seconds:4.0f} s  {result}", flush=True)


# === Differences ===


def _folder_differences(old: pathlib.Path, new: pathlib.Path) -> Iterator[str]:
    """Yields the differences between the files below two folders."""
    files = [_find_files(folder) for folder in (old, new)]
    for name in sorted(files[0].keys() | files[1].keys()):
        if name not in files[0] or name not in files[1]:
            yield f"{name} is only in {'old' if name in files[0] else 'new'}"
        elif not _OPAQUE.search(name):
            first, second = (_read_files(found[name]) for found in files)
            yield from _differences(first, second, name)


def _find_files(folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    """Returns files by name; TensorBoard's files in a folder share a name."""
    found: dict[str, list[pathlib.Path]] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        name = re.sub(rf"{_EVENTS}.*", _EVENTS, name)
        if path.is_file():
            found.setdefault(name, []).append(path)
    return found


def _read_files(paths: list[pathlib.Path]) -> Any:
    """Reads a file for comparison: as values by name, a text, or a hash."""
    path = paths[0]
    if _EVENTS in path.name:
        return {
            f"{value.tag} {event.step}": tensor_util.make_ndarray(value.tensor)
            for path in paths
            for event in event_file_loader.EventFileLoader(str(path)).Load()
            for value in event.summary.value
        }
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".md":
        return _read_tables(path.read_text())
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    content = path.read_bytes()
    try:
        return re.sub(r"^# .*\n", "", content.decode(), flags=re.MULTILINE)
    except UnicodeDecodeError:
        return hashlib.sha256(content).hexdigest()


def _read_tables(text: str) -> dict[str, dict[str, str]]:
    """Returns the tables of a model card by their headings."""
    sections: dict[str, dict[str, str]] = {}
    for part in text.split("\n## ")[1:]:
        heading, _, body = part.partition("\n")
        rows = re.findall(r"^\| (.*?) \| (.*) \|$", body, re.MULTILINE)
        sections[heading] = dict(rows)
    return sections


def _differences(old: Any, new: Any, path: str) -> Iterator[str]:
    """Yields the differences between two values, each with its path."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() ^ new.keys()):
            yield f"{path}/{key} is only in {'old' if key in old else 'new'}"
        for key in old.keys() & new.keys():
            yield from _differences(old[key], new[key], f"{path}/{key}")
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{path} has {len(old)} values in old, {len(new)} in new"
        for number, pair in enumerate(zip(old, new, strict=False)):
            yield from _differences(*pair, f"{path}/{number}")
    elif _VOLATILE.search(path):
        return
    elif isinstance(old, np.ndarray):
        if (old.dtype, old.shape) != (new.dtype, new.shape):
            yield f"{path} is {old.dtype}{old.shape} in old, not in new"
        elif old.tobytes() != new.tobytes():
            yield f"{path} has other values"
    elif old != new:
        # Show both values from a little before their first difference.
        texts = [str(value) for value in (old, new)]
        begin = max(0, len(os.path.commonprefix(texts)) - 20)
        shown = [repr(text[begin : begin + 60]) for text in texts]
        yield f"{path} is {shown[0]} in old, {shown[1]} in new"


# === Inputs ===


def _make_inputs(inputs: pathlib.Path, data: pathlib.Path, tree: str) -> None:
    """Writes texts and small data sets for all commands."""
    if (inputs / "complete").exists():
        return
    with gzip.open(data / "corpus/wiki.txt.gz", "rt", encoding="utf-8") as file:
        text, _, _ = file.read(300_000).rpartition("\n\n")
    _write(inputs / "text.txt", text)
    _write(inputs / "lines.txt", *text.splitlines()[:40])
    _write(inputs / "words.txt", "kubernetes", "lederhosen", "##itis")
    config = pathlib.Path(
        tree, "bert_tf/recipes/configs/tiny/bert_config.json"
    ).read_text()
    values = json.loads(config) | {"vocab_size": 2000}
    _write(inputs / "bert_config.json", json.dumps(values))
    _make_classification(inputs, data / "banking77/train.csv")
    for split, end in (("train", 48), ("dev", 20), ("test", 10)):
        rows = (data / f"codah/fold_0/{split}.tsv").read_text().splitlines()
        _write(inputs / f"codah/{split}.tsv", *rows[:end])
        if split != "test":
            lines = (data / f"wnut17/{split}.conll").read_text().splitlines()
            _write(inputs / f"names/{split}.conll", *lines[: 20 * end])
    with gzip.open(data / "squad/train-v1.1-union.json.gz") as file:
        articles = json.load(file)
    paragraphs = articles["data"][0]["paragraphs"]
    for split, part in (("train", paragraphs[:12]), ("dev", paragraphs[12:16])):
        content = articles | {"data": [{"title": "", "paragraphs": part}]}
        _write(inputs / f"squad_{split}.json", json.dumps(content))
    (inputs / "complete").touch()


def _make_classification(inputs: pathlib.Path, path: pathlib.Path) -> None:
    """Writes texts with one label, with several, and with a score."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    _write_csv(inputs / "rows.csv", [{"text": x["text"]} for x in rows[:9500]])
    few = sorted(rows[:600:4], key=lambda row: row["text"])
    for split, part in (("train", few[:96]), ("dev", few[96:])):
        _write_csv(inputs / f"topics_{split}.csv", part)
        scores = [x | {"score": len(x["text"]) / 50} for x in part]
        _write_csv(inputs / f"scores_{split}.csv", scores)
        tags = [x | {"tags": x["category"].split("_")} for x in part]
        _write(inputs / f"tags_{split}.jsonl", *map(json.dumps, tags))


def _write(path: pathlib.Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_csv(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def main(argv: list[str]) -> None:
    del argv
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # Or else TensorBoard logs.
    work_dir = pathlib.Path(_WORK_DIR.value).resolve()
    tree = _OLD_TREE.value or str(work_dir / "old_tree")
    if not os.path.exists(tree):
        add = ["git", "-C", str(_ROOT), "worktree", "add", "--detach"]
        subprocess.run([*add, tree, _OLD_COMMIT.value], check=True)
    _make_inputs(work_dir / "inputs", pathlib.Path(_DATA_DIR.value), tree)
    comparison = Comparison(work_dir, tree, _NEW_TREE.value)
    checks = [*_read_checks()]
    only = {*(_ONLY.value or [check.stage for check in checks] + ["flags"])}
    same = []
    with concurrent.futures.ThreadPoolExecutor(_JOBS.value) as pool:
        # A stage reads the results of earlier stages, so stages run in order.
        for _, group in itertools.groupby(checks, lambda check: check.stage):
            [*pool.map(comparison.make, group)]
        for _, group in itertools.groupby(checks, lambda check: check.stage):
            group = [
                check for check in group if {check.stage, check.name} & only
            ]
            same += pool.map(comparison.compare, group)
    if "flags" in only:
        same.append(comparison.compare_flags())
    sys.exit(0 if all(same) else 1)


if __name__ == "__main__":
    app.run(main)

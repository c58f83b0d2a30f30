r"""Kills all scripts that write files, at random, and compares their files.

  python benchmarks/kills.py --kills=60 --folder=kills

Each script runs once undisturbed, on files that earlier scripts made from a
small made-up text. Then it is started and killed (kill -9) at random moments,
again and again; at the end it runs undisturbed. All its files must have the
same bytes as in the first run, and no other file may remain. Times and speeds
in files are not compared: see `_normalize`. The last line counts the
differences; the exit status is 1 if there are any.

`kills.json` in the folder lists finished scripts, so the same command skips
them when it is started again.
"""

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

import runs
from absl import flags

_KILLS = flags.DEFINE_integer("kills", 60, "Kills in all, spread evenly.")
_SCRIPTS = flags.DEFINE_list("scripts", None, "Names to kill; all by default.")
_FOLDER = flags.DEFINE_string(
    "folder", None, "Folder of files and state (default: a temporary one)."
)
_SEED = flags.DEFINE_integer("seed", 1, "Seed of the moments of kills.")

_TIMEOUT_SECONDS = 1800
# A kill comes between these shares of the undisturbed run's time.
_FROM, _TO = 0.2, 0.9
# Maximum number of starts for a kill; a start may end before its kill.
_MAX_MISSED = 5
# Times that differ in every run: JSON values, durations and dates.
_TIMES = re.compile(
    r'"\w*(?:per_second|seconds|_ms|time)\w*": [^,}\n]*'
    r"|\d+(?:\.\d+)? (?:ms|s|seconds)\b"
    r"|\d{4}-\d\d-\d\d[T ][\d:.+]*"
    r"|\d+:\d\d:\d\d"
)
_MODEL = "{made}/finetune_classifier/run/model"
_PRETRAINED = "{made}/pretrain/run/model"
_FINETUNING = (
    "output_dir={out}/run max_seq_length=32 train_batch_size=8 do_train do_eval"
    " learning_rate=1e-3 save_checkpoints_steps=10 num_train_epochs=4 "
)
_START = f"{_FINETUNING} pretrained_model_dir={_PRETRAINED} "
_TABLE = "train_file={made}/train.csv dev_file={made}/dev.csv "
_COMMANDS = {
    "extract_text": (
        "input_file={made}/raw.jsonl output_file={out}/text.txt num_shards=3"
    ),
    "learn_vocabulary": (
        "input_file={made}/extract_text/*.txt output_file={out}/vocab.txt "
        "vocab_size=600 num_unused=99"
    ),
    "create_pretraining_data": (
        "input_file={made}/extract_text/*.txt output_file={out}/x.tfrecord "
        "vocab_file={made}/learn_vocabulary/vocab.txt max_seq_length=32 "
        "max_predictions_per_seq=5 num_shards=3 dupe_factor=20"
    ),
    "pretrain": (
        "bert_config_file=configs/L-2_H-128_A-2/bert_config.json "
        "input_file={made}/create_pretraining_data/*.tfrecord "
        "vocab_file={made}/learn_vocabulary/vocab.txt output_dir={out}/run "
        "max_seq_length=32 max_predictions_per_seq=5 train_batch_size=8 "
        "num_train_steps=300 save_checkpoints_steps=20 "
        "save_checkpoints_secs=0 do_train"
    ),
    "finetune_classifier": f"{_START} {_TABLE} task_name=custom",
    "finetune_tagger": _START + "data_dir={made}/tags",
    "finetune_multiple_choice": (
        _START + "task_name=custom train_file={made}/choices.csv "
        "dev_file={made}/choices.csv choice_columns=a,b"
    ),
    "finetune_squad": (
        _START + "train_file={made}/squad.json predict_file={made}/squad.json "
        "do_predict triviaqa_file={made}/trivia.json max_query_length=8 "
        "triviaqa_evidence_dir={made}/evidence doc_stride=8 num_train_epochs=2"
    ),
    "grid_search": (
        _START + "task_name=cola data_dir={made}/glue/CoLA "
        "learning_rate=1e-3,5e-4 num_train_epochs=2"
    ),
    "distill": (
        f"{_FINETUNING} {_TABLE} teacher_dir={_MODEL} num_hidden_layers=1"
    ),
    "glue_submission": (
        "glue_dir={made}/glue model_dirs={made}/grid_search/run/model "
        "output_file={out}/submission.zip allow_missing_tasks"
    ),
    "experiments": (
        "experiments=table7 scale=smoke corpus={made}/extract_text/*.txt "
        "data_dir={made}/tasks output_dir={out}/experiments"
    ),
    "predict": (
        f"model_dir={_MODEL} "
        "input_file={made}/many.csv output_file={out}/predictions.jsonl"
    ),
    "tokenize_file": (
        "vocab_file={made}/learn_vocabulary/vocab.txt "
        "input_file={made}/lines.txt output_file={out}/tokens.jsonl"
    ),
    "extract_features": (
        f"model_dir={_PRETRAINED} max_seq_length=32 "
        "input_file={made}/lines.txt output_file={out}/features.jsonl"
    ),
    "convert_checkpoint": (
        f"input={_PRETRAINED} " + "to=huggingface output={out}/converted"
    ),
    "extend_vocabulary": (
        f"input={_PRETRAINED} "
        "new_words_file={made}/words.txt output={out}/extended"
    ),
    "export_savedmodel": (
        f"model_dir={_MODEL} " + "output_dir={out}/served version=1"
    ),
    "export_tflite": f"model_dir={_MODEL} " + "output_file={out}/model.tflite",
}
# Other scripts have the path run/<name>.py.
_SCRIPT_PATHS = {
    "export_savedmodel": "export/savedmodel.py",
    "export_tflite": "export/tflite.py",
    "grid_search": "run/finetune_classifier.py",
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
        texts = [sentence() for _ in range(count)]
        table = [(x, "even" if "e" in x else "odd") for x in texts]
        runs.write_table(made / f"{name}.csv", ("text", "label"), table)
    tags = [
        "".join(
            f"{word} {'B-PER' if '1' in word else 'O'}\n"
            for word in sentence().split()
        )
        for _ in range(300)
    ]
    for name, start, stop in (
        ("train", 0, 200),
        ("dev", 200, 250),
        ("test", 250, 300),
    ):
        _write(made / "tags" / f"{name}.txt", "\n".join(tags[start:stop]))
    _write(made / "tasks/names/train.conll", "\n".join(tags))
    task = {"kind": "tagging", "train": "train.conll"}
    _write(made / "tasks/names/task.json", json.dumps(task))
    choices = [(sentence(), sentence(), sentence(), i % 2) for i in range(150)]
    rows = "".join(",".join(map(str, row)) + "\n" for row in choices)
    _write(made / "choices.csv", "context,a,b,label\n" + rows)
    for name, count in (("train", 120), ("dev", 40)):
        rows = (f"x\t{i % 2}\t\t{sentence()}\n" for i in range(count))
        _write(made / f"glue/CoLA/{name}.tsv", "".join(rows))
    rows = (f"{i}\t{sentence()}\n" for i in range(1063))
    _write(made / "glue/CoLA/test.tsv", "index\tsentence\n" + "".join(rows))
    _write_questions(made, sentence)
    lines = "".join(sentence() + "\n" for _ in range(4000))
    _write(made / "lines.txt", lines)
    _write(made / "words.txt", "w1x\nw2y\n")


def _write_questions(made, sentence):
    """Writes files in the formats of SQuAD and TriviaQA."""
    paragraphs, trivia = [], []
    for i in range(100):
        text = " ".join(sentence() for _ in range(3))
        word = text.split()[i % 7]
        question = f"Where is {word} here?"
        answers = [{"text": word, "answer_start": text.index(word)}]
        qas = [{"id": f"q{i}", "question": question, "answers": answers}]
        paragraphs.append({"context": text, "qas": qas})
        _write(made / f"evidence/{i}.txt", text)
        answer = {"Value": word, "Aliases": [], "NormalizedAliases": []}
        values = {"QuestionId": f"t{i}", "Question": question, "Answer": answer}
        trivia.append(values | {"EntityPages": [{"Filename": f"{i}.txt"}]})
    articles = [{"title": "Words", "paragraphs": paragraphs}]
    squad = {"version": "1.1", "data": articles}
    _write(made / "squad.json", json.dumps(squad))
    _write(made / "trivia.json", json.dumps({"Data": trivia}))


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _command(name, made):
    """Returns the words that start a script."""
    script = _SCRIPT_PATHS.get(name, f"run/{name}.py")
    flags_of = _COMMANDS[name].format(made=made, out=made / name)
    return runs.command(script) + [f"--{flag}" for flag in flags_of.split()]


def _start(words, log):
    with open(log, "ab") as file:
        return subprocess.Popen(words, stdout=file, stderr=file)


def _run_undisturbed(words, log):
    """Runs a script to its end; returns its seconds and exit status."""
    begin = time.monotonic()
    status = _start(words, log).wait(_TIMEOUT_SECONDS)
    return time.monotonic() - begin, status


def _run_killed(words, log, seconds, out):
    """Returns True if a script was killed before it ended.

    If a start ends before its kill, its files are deleted and it is repeated.
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
        if path.is_file() and not _varies(name):
            contents = _normalize(name, path.read_bytes())
            found[name] = hashlib.sha256(contents).hexdigest()
    return found


def _varies(name):
    """Returns True if a file also differs between two undisturbed runs."""
    # TensorBoard's events and an export's card have times, curves have speeds,
    # and logs and the list of written files depend on each start. The
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
    if name.endswith("/checkpoint"):  # Has the times of the checkpoints.
        return re.sub(rb"\w*timestamps?: .*", b"", contents)
    return contents


def _compare(expected, found):
    """Returns a line for each difference."""
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
    """Runs a script undisturbed and killed; returns kills and differences."""
    out = made / name
    words = _command(name, made)
    log = made / f"{name}.log"
    shutil.rmtree(out, ignore_errors=True)  # An earlier call may have ended.
    out.mkdir()
    seconds, status = _run_undisturbed(words, log)
    if status:
        sys.exit(f"{name} failed:\n{log.read_text()[-2000:]}")
    expected = _contents(out)
    kills = 0
    if num_kills:
        shutil.rmtree(out)
        out.mkdir()
        for _ in range(num_kills):
            kills += _run_killed(words, log, seconds, out)
        _, status = _run_undisturbed(words, log)
    differences = _compare(expected, _contents(out))
    # A kill after the last rename leaves all files, so the restart refuses.
    if status and not re.search(
        "already|never overwritten", log.read_text()[-500:]
    ):
        differences.append(f"the last start ended with {status}")
    print(
        f"| {name} | {kills} | {len(expected)} | {seconds:.0f} | "
        f"{'; '.join(differences) or 'same bytes'} |",
        flush=True,
    )
    return kills, differences


def main():
    names = list(_COMMANDS)
    chosen = _SCRIPTS.value or names
    print(
        "| script | kills | files | seconds | result |\n|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as temporary:
        made = pathlib.Path(_FOLDER.value or temporary).resolve()
        made.mkdir(exist_ok=True)
        state = made / "kills.json"
        done = runs.read_json(state) or {}
        if not done:
            _write_inputs(made)
        needed = {*chosen}
        for name in reversed(names):  # A script reads earlier scripts' files.
            if name in needed:
                words = _COMMANDS[name]
                needed |= {x for x in names if f"{{made}}/{x}/" in words}
        for name in names:
            if name in done or name not in needed:
                continue
            random.seed(f"{_SEED.value} {name}")
            kills = 0
            if name in chosen:
                each, more = divmod(_KILLS.value, len(chosen))
                kills = each + (chosen.index(name) < more)
            done[name] = _check(name, kills, made)
            _write(state, json.dumps(done))
    kills = sum(kills for kills, _ in done.values())
    differences = sum(len(found) for _, found in done.values())
    print(f"{kills} kills, {differences} differences")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    runs.main(main)

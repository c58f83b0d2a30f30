r"""Times a new user's first minutes with bert_tf, transformers and KerasHub.

  python benchmarks/first_minutes.py
  python benchmarks/first_minutes.py --report

A path leads from `pip install` to a first answer:

- table: 600 rows of a CSV, fine-tuned and served over HTTP.
- pretraining: a vocabulary and 200 steps of a tiny BERT on a text file, then a
  masked word.
- phone: the same rows, fine-tuned, exported with int8 weights, and answered in
  the file's interpreter.
- notebook: the same rows, cell by cell in one process.

benchmarks/first_minutes/FRAMEWORK/PATH/ has everything that a user types: the
commands and the files written by hand. Lines have at most 80 columns. Blank
lines and comments do not count, and each line of a wrapped command counts. All
paths start from the same MiniLM and have the same rows, epochs, batch size,
peak learning rate and lengths. Each framework has a fresh environment, and its
installation is timed once. A path's further installations count for the path.

A finished path is kept in --output_file and not run again unless its files have
changed; --report only prints the table.
"""

import csv
import gzip
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import runs
from absl import flags

_TRANSCRIPTS = pathlib.Path(__file__).resolve().with_suffix("")

# "phone" comes last, because it installs more into the shared environment.
_ALL_PATHS = ("table", "pretraining", "notebook", "phone")
_ALL_FRAMEWORKS = ("bert_tf", "transformers", "keras_hub")

_PATHS = flags.DEFINE_list("paths", [*_ALL_PATHS], "Which paths.")
FRAMEWORKS = flags.DEFINE_list(
    "frameworks", [*_ALL_FRAMEWORKS], "Which frameworks."
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir", str(runs.DATA), "Data sets: banking77/ and corpus/."
)
WORK_DIR = flags.DEFINE_string(
    "work_dir", ".cache/first_minutes", "For environments, models and logs."
)
_OUTPUT_FILE = flags.DEFINE_string(
    "output_file", ".cache/first_minutes/results.json", "JSON of the results."
)
_REPORT = flags.DEFINE_bool("report", False, "Only print finished results.")

_NUM_LABELS = 10
_ROWS_PER_LABEL = {"train.csv": 60, "dev.csv": 20}
_TEXT_CHARACTERS = 1_000_000
_SECONDS_AT_MOST = 900

# Servers of the transcripts listen here.
_PORTS = (8000, 8500, 8501)

# Prints the time at each `# -- PHASE` of a transcript, on a new line, because a
# server's answer may not end its line. curl waits until the server has started,
# as a user would.
_PRELUDE = """
set -e
phase() { printf "\\n== %s %s\\n" "$1" "$(date +%s.%N)"; }
curl() {
  until command curl --silent --fail --show-error "$@" 2> curl.log; do
    kill -0 $!
    sleep 0.1
  done
}
"""
_PHASE = re.compile(r"^# -- (\w+)(?: (.*))?$", re.MULTILINE)
_STAMP = re.compile(r"^== (\w+) ([0-9.]+)$", re.MULTILINE)
_ACCURACY = re.compile(
    r"(?:dev: accuracy |eval_accuracy': '?|val_accuracy: )([0-9.]+)"
)


def _lines(path):
    """Counts the lines of a file that are neither blank nor comments."""
    lines = map(str.strip, path.read_text(encoding="utf-8").splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def _files(framework, path):
    """Returns a path's files written by hand, and the file of commands."""
    files = sorted((_TRANSCRIPTS / framework / path).iterdir())
    if path == "phone":  # It trains like table.
        files += (_TRANSCRIPTS / framework / "table").glob("train.py")
    typed = [x for x in files if x.name in ("commands.sh", "notebook.py")]
    return [x for x in files if x not in typed], typed[0]


def _hash(framework, path):
    """Returns a hash of all commands and files of a path."""
    by_hand, typed = _files(framework, path)
    install = _TRANSCRIPTS / framework / "install.sh"
    contents = [x.read_bytes() for x in (install, typed, *by_hand)]
    return hashlib.sha256(b"\0".join(contents)).hexdigest()


def _megabytes(path):
    """Returns the size of a file, or of all files in a folder."""
    path = pathlib.Path(path)
    files = path.rglob("*") if path.is_dir() else [path]
    size = sum(x.stat().st_size for x in files if not x.is_symlink())
    return size / 1e6


def _write_table(source, target, categories, rows_per_label):
    """Writes a CSV with equally many rows of each category, shuffled."""
    with open(source, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if row[1] in categories]
    chosen = []
    for category in categories:
        chosen += [row for row in rows if row[1] == category][:rows_per_label]
    random.Random(0).shuffle(chosen)
    runs.write_table(target, ("text", "category"), chosen)


def make_data(folder):
    """Writes the files that every path starts from."""
    from tests.support import minilm

    data = pathlib.Path(_DATA_DIR.value)
    categories = json.loads(
        (data / "banking77" / "categories.json").read_text(encoding="utf-8")
    )[:_NUM_LABELS]
    for name, rows_per_label in _ROWS_PER_LABEL.items():
        source = data / "banking77" / name.replace("dev", "test")
        _write_table(source, folder / name, categories, rows_per_label)
    corpus = data / "corpus" / "wiki_heldout.txt.gz"
    with gzip.open(corpus, "rt", encoding="utf-8") as file:
        text = file.read(_TEXT_CHARACTERS)
    (folder / "text.txt").write_text(text, encoding="utf-8")
    (folder / "minilm").symlink_to(minilm.directory())


def environment_variables(environment, caches):
    """Returns a program's environment variables, with empty caches."""
    from tests.support import environments

    return environments.clean_environment() | {
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "BERT_TF": str(runs.ROOT),
        "BERT_TF_CACHE": str(caches / "bert_tf"),
        "HF_HOME": str(caches / "huggingface"),
        "HF_HUB_OFFLINE": "1",
        "MPLCONFIGDIR": str(caches / "matplotlib"),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_QUIET": "2",
    }


def _end_group(group):
    """Ends all processes of a group, such as a script's running server."""
    try:
        os.killpg(group, signal.SIGTERM)
        for _ in range(100):
            time.sleep(0.1)
            os.killpg(group, 0)
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass  # All processes of the group have ended.


def _run(command, folder, variables, name):
    """Runs a program and its children; returns stdout and stderr.

    Raises:
      RuntimeError: If it fails or takes too long.
    """
    paths = [folder.parent / f"{name}.{x}.log" for x in ("stdout", "stderr")]
    with open(paths[0], "w") as stdout, open(paths[1], "w") as stderr:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            status = process.wait(_SECONDS_AT_MOST)
        except subprocess.TimeoutExpired:
            status = f"timeout of {_SECONDS_AT_MOST} s"
        finally:
            _end_group(process.pid)
    if status:
        raise RuntimeError(f"{name}: {status}; see {paths[1]}.")
    return [x.read_text(encoding="utf-8", errors="replace") for x in paths]


def install(framework, folder):
    """Makes the framework's environment; returns seconds and megabytes."""
    environment = folder / "environment"
    shutil.rmtree(environment, ignore_errors=True)
    script = (_TRANSCRIPTS / framework / "install.sh").read_text("utf-8")
    start = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    variables = environment_variables(environment, folder / "caches")
    _run(["bash", "-ec", script], environment, variables, "install")
    return {
        "seconds": time.monotonic() - start,
        "megabytes": _megabytes(environment),
    }


def _check_ports():
    for port in _PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                sys.exit(f"Port {port} of this machine is taken; end its user.")


def _measure(framework, path, folder, data):
    """Runs a path once; returns seconds, megabytes, answer and accuracy."""
    _check_ports()
    by_hand, typed = _files(framework, path)
    walk = folder / path
    caches = folder / f"{path}.caches"
    for old in (walk, caches):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(data, walk, symlinks=True)
    for file in by_hand:
        shutil.copy(file, walk)
    script = typed.read_text(encoding="utf-8")
    shipped = dict(_PHASE.findall(script))["ships"]
    if typed.suffix == ".sh":
        script = _PRELUDE + _PHASE.sub(r"phase \1", script)
        command = ["bash", "-c", script]
    else:
        program = str(_TRANSCRIPTS / "run_cells.py")
        command = ["python", program, str(typed)]
    environment = folder / "environment"
    variables = environment_variables(environment, caches)
    # Popen would search this program's PATH, not the child's.
    command[0] = shutil.which(command[0], path=variables["PATH"])
    start = time.time()
    stdout, stderr = _run(command, walk, variables, path)
    stamps = {k: float(v) for k, v in _STAMP.findall(stdout)}
    answer = stdout.split("== answer")[1].split("\n", 1)[1].split("== ships")[0]
    accuracies = _ACCURACY.findall(stdout + stderr)
    return {
        "install_seconds": stamps["train"] - start,
        "train_seconds": stamps["answer"] - stamps["train"],
        "answer_seconds": stamps["ships"] - stamps["answer"],
        "environment_megabytes": _megabytes(environment),
        "shipped_megabytes": _megabytes(walk / shipped),
        "answer": answer.strip()[-300:],
        "accuracy": float(accuracies[-1]) if accuracies else None,
    }


def _needs_more(framework, path):
    """Returns True if a path installs packages itself."""
    _, typed = _files(framework, path)
    return "pip install" in typed.read_text(encoding="utf-8")


def _run_framework(framework, results, failures):
    """Measures a framework's unfinished paths."""
    todo = [
        path
        for path in _ALL_PATHS
        if path in _PATHS.value
        and results.get(f"{framework} {path}", {}).get("hash")
        != _hash(framework, path)
    ]
    if not todo:
        return
    folder = pathlib.Path(WORK_DIR.value).resolve() / framework
    shutil.rmtree(folder, ignore_errors=True)
    data = folder / "data"
    data.mkdir(parents=True)
    make_data(data)
    print(f"{time.strftime('%X')} {framework} install", flush=True)
    try:
        installed = install(framework, folder)
    except RuntimeError as error:
        failures.append(f"{framework} {error}")
        return
    for path in todo:
        print(f"{time.strftime('%X')} {framework} {path}", flush=True)
        try:
            result = _measure(framework, path, folder, data)
        except RuntimeError as error:
            # One failed path must not end all other paths.
            failures.append(f"{framework} {error}")
            print(failures[-1], flush=True)
            continue
        result["install_seconds"] += installed["seconds"]
        if not _needs_more(framework, path):
            result["environment_megabytes"] = installed["megabytes"]
        result |= {"hash": _hash(framework, path), "load": os.getloadavg()[0]}
        results[f"{framework} {path}"] = result
        runs.write_json(os.path.abspath(_OUTPUT_FILE.value), results)


def _row(framework, path, result):
    """Returns a line of the table."""
    by_hand, typed = _files(framework, path)
    commands = _lines(typed) + _lines(_TRANSCRIPTS / framework / "install.sh")
    written = sum(map(_lines, by_hand))
    cells = [path, framework, commands, f"{written} in {len(by_hand)}"]
    if result is None:
        return [*cells, *["-"] * 7]
    seconds = [result[f"{x}_seconds"] for x in ("install", "train", "answer")]
    cells += [f"{x:.0f}" for x in (*seconds, sum(seconds))]
    for size in ("environment", "shipped"):
        cells.append(f"{result[f'{size}_megabytes']:.0f}")
    accuracy = result["accuracy"]
    return [*cells, "" if accuracy is None else f"{accuracy:.1%}"]


def _report(results):
    print(
        "| path | | lines typed | lines in files by hand | install, s "
        "| train, s | answer, s | all, s | environment, MB | shipped, MB "
        f"| dev accuracy |\n{'|---' * 11}|"
    )
    for path in _PATHS.value:
        for framework in FRAMEWORKS.value:
            row = _row(framework, path, results.get(f"{framework} {path}"))
            print(f"| {' | '.join(map(str, row))} |")


def main():
    results = runs.read_json(_OUTPUT_FILE.value) or {}
    failures = []
    for framework in () if _REPORT.value else FRAMEWORKS.value:
        _run_framework(framework, results, failures)
    _report(results)
    if failures:
        sys.exit("\n".join(["Failed:", *failures]))


if __name__ == "__main__":
    runs.main(main)

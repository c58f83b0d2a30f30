"""Scripts, processor time, memory, results and ratios of all benchmarks."""

import contextlib
import csv
import gzip
import json
import multiprocessing
import os
import pathlib
import resource
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent import futures
from typing import Any

from absl import app
from absl import flags

flags.disclaim_key_flags()  # Otherwise --help omits the flags of `Folders`.

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Texts and data sets, if the folder exists.
DATA = ROOT.parent / "shared" / "data"
VOCAB_FILE = str(ROOT / "tests/golden/vocab/bert-base-uncased-vocab.txt")
# Python searches only benchmarks/ for modules that a benchmark imports.
sys.path.insert(0, str(ROOT))


def main(run_benchmark: Callable[[], None]) -> None:
    """Parses the flags and runs a benchmark; other arguments are errors."""

    def check(argv: list[str]) -> None:
        if len(argv) > 1:
            raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
        run_benchmark()

    app.run(check)


# === Programs ===


def processor_seconds() -> float:
    """Returns the processor seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def threads(count: int) -> dict[str, str]:
    """Returns the environment variables that set the number of threads."""
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
    return dict.fromkeys((*names, "TF_NUM_INTEROP_THREADS"), str(count))


def run(
    command: Sequence[str],
    log: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> float:
    """Runs a program; returns its processor seconds.

    Args:
      command: The program and its arguments.
      log: The file to which its output is appended; by default the terminal.
      variables: Further variables of its environment.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})}
    before = processor_seconds()
    # Without a log, the program prints to this process's terminal.
    file = open(log, "a", encoding="utf-8") if log else None  # noqa: SIM115
    try:
        subprocess.run(
            command,
            check=True,
            stdout=file,
            stderr=file and subprocess.STDOUT,
            env=environment,
            cwd=ROOT,
        )
    finally:
        if file:
            file.close()
    return processor_seconds() - before


def command(script: str, **flag_values: Any) -> list[str]:
    """Returns the words that start a script, such as run/pretrain.py."""
    from bert_tf.flags import cli

    return [sys.executable, str(ROOT / script), *cli.words(flag_values)]


def run_script(script: str, log: str | None = None, **flags: Any) -> float:
    """Runs a script, such as run/pretrain.py; returns its processor seconds."""
    return run(command(script, **flags), log)


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns a function's result, computed in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(1, spawn) as pool:
        return pool.submit(function, *arguments).result()


def free_ports(count: int) -> list[int]:
    """Returns free ports of this machine."""
    with contextlib.ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("localhost", 0)))
            for _ in range(count)
        ]
        return [listener.getsockname()[1] for listener in listeners]


@contextlib.contextmanager
def watch(read: Callable[[], Any], seconds: float) -> Iterator[list[Any]]:
    """Yields a list that gets a value of `read` every `seconds`."""
    stop, values = threading.Event(), [read()]

    def run() -> None:
        while not stop.wait(seconds):
            values.append(read())

    watcher = threading.Thread(target=run)
    watcher.start()
    try:
        yield values
    finally:
        stop.set()
        watcher.join()


def total_memory() -> int:
    """Returns the memory of this process and its children, in bytes.

    Pages that processes share count once.
    """
    import psutil

    process, total = psutil.Process(), 0
    for member in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += member.memory_full_info().pss
    return total


def memory_status(field: str) -> int:
    """Returns a field of /proc/self/status, such as VmRSS, in bytes."""
    with open("/proc/self/status", encoding="utf-8") as file:
        line = next(line for line in file if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


# === Texts and labels ===


class Table:
    """A table of texts to classify, and the flags for its path and columns.

    Args:
      flag: The name of the flag for the path.
      file: The default file, in the folder of QNLI.
    """

    def __init__(self, flag: str, file: str) -> None:
        self._path = flags.DEFINE_string(
            flag,
            str(DATA / "qnli" / file),
            "A TSV with a header, as GLUE's; may end in .gz.",
        )
        self._columns = flags.DEFINE_list(
            "columns",
            ["question", "sentence", "label"],
            "Its columns: the text, the second text of a pair if there is one, "
            "and the label.",
        )

    @property
    def num_texts(self) -> int:
        """The number of texts of a row, 1 or 2."""
        return len(self._columns.value) - 1

    def read(self) -> list[dict[str, str]]:
        """Returns rows with `text`, `text_pair` (of pairs) and `label`."""
        keys = (*("text", "text_pair")[: self.num_texts], "label")
        columns = dict(zip(keys, self._columns.value, strict=True))
        path = self._path.value
        opener = gzip.open if path.endswith(".gz") else open
        with opener(path, "rt", encoding="utf-8") as file:
            rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            return [{k: row[x] for k, x in columns.items()} for row in rows]


def read_intents(folder: str) -> dict[str, list[list[str]]]:
    """Returns rows of (text, label) by split, of banking77 or clinc150."""
    path = os.path.join(folder, "data_full.json.gz")
    if os.path.exists(path):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return json.load(file)
    splits = {}
    for split in ("train", "test"):
        path = os.path.join(folder, f"{split}.csv")
        with open(path, encoding="utf-8", newline="") as file:
            splits[split] = [*csv.reader(file)][1:]
    return splits


# === Results ===


class Folders:
    """Folders of a benchmark that keeps its results, and their flags.

    Args:
      name: The name of the folders below .cache/ and benchmarks/results/.
    """

    def __init__(self, name: str) -> None:
        self._data_dir = flags.DEFINE_string(
            "data_dir", str(DATA), "The data sets, a folder each."
        )
        self._output_dir = flags.DEFINE_string(
            "output_dir", f".cache/{name}", "Files, models and logs of runs."
        )
        self._results_dir = flags.DEFINE_string(
            "results_dir",
            str(ROOT / "benchmarks" / "results" / name),
            "Results, a part of the repository.",
        )
        self._report = flags.DEFINE_bool(
            "report", False, "Only print what is finished."
        )

    @property
    def only_reports(self) -> bool:
        """True if no run is to be started."""
        return self._report.value

    def data(self, *names: str) -> str:
        """Returns a path in the folder of the data sets."""
        return os.path.abspath(os.path.join(self._data_dir.value, *names))

    def output(self, *names: str) -> str:
        """Returns a path in the folder for the files of runs."""
        return os.path.abspath(os.path.join(self._output_dir.value, *names))

    def result(self, *words: Any) -> str:
        """Returns the path of a result, by the words of its name."""
        name = ".".join(map(str, words))
        return os.path.join(self._results_dir.value, f"{name}.json")


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes a result atomically."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.tmp-{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
    os.replace(temporary, path)


def read_json(path: str | os.PathLike) -> Any:
    """Returns a result, or None if there is none yet."""
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def read_json_lines(path: str | os.PathLike) -> list[Any]:
    """Returns the values in a file of JSON lines."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_scores(output_dir: str) -> dict[str, float]:
    """Returns the scores in the eval_results.txt of run/pretrain.py."""
    path = os.path.join(output_dir, "eval_results.txt")
    with open(path, encoding="utf-8") as file:
        rows = (line.strip().split(" = ") for line in file if "=" in line)
        return {name: float(value) for name, value in rows}


def write_table(
    path: str | os.PathLike,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
) -> None:
    """Writes a CSV file."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def ratios(first: Iterable[float], second: Iterable[float]) -> str:
    """Returns the median ratio of paired numbers and their range, as text."""
    each = [x / y for x, y in zip(first, second, strict=True)]
    median = statistics.median(each)
    return f"{median:.2f} (from {min(each):.2f} to {max(each):.2f})"

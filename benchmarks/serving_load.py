r"""Loads run/serve.py with many clients at once, on this machine only.

  python benchmarks/serving_load.py --size=minilm --seconds=120

A BERT of the given size with random weights and two labels is exported as a
SavedModel. 64 clients send short texts, each client one request at a time, to:

- two servers in turns (`--rounds`), so that the machine is in the same state
  for both: by default one server without merging, and one with merging;
- a server with merging, while a new version appears;
- a server with a much too short queue, where refusals (503) are correct.

Every other status is a failure and ends the benchmark, and so does memory that
keeps growing. The last line is the median ratio of requests a second, of the
second server to the first.

One merged call on all cores, against one call for each core:

  python benchmarks/serving_load.py --size=base --precision=bfloat16 \
      --seconds=30 --rounds=5 --against= --server_flags=--num_batch_threads=1

LiteRT in int8 against the SavedModel in bfloat16:

  python benchmarks/serving_load.py --size=base --precision=bfloat16 \
      --seconds=30 --rounds=5 --against= --server_flags=--engine=litert

Against an earlier version in another checkout, which exports the model, too:

  python benchmarks/serving_load.py --size=base --precision=bfloat16 \
      --seconds=30 --rounds=5 --against= --against_root=../before
"""

import contextlib
import gzip
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import psutil
import runs
import turns
from absl import flags

_SIZE = flags.DEFINE_enum(
    "size", "minilm", ["minilm", "base"], "Shape of the BERT."
)
_PRECISION = flags.DEFINE_enum(
    "precision", "float32", ["float32", "bfloat16"], "Compute precision."
)
_TEXTS_FILE = flags.DEFINE_string(
    "texts_file",
    str(runs.DATA / "clinc150" / "data_full.json.gz"),
    "Texts to send: one a line, or CLINC150's JSON.",
)
_VOCAB_FILE = flags.DEFINE_string(
    "vocab_file", runs.VOCAB_FILE, "The model's vocabulary."
)
_CLIENTS = flags.DEFINE_integer("clients", 64, "Clients at once.")
_SECONDS = flags.DEFINE_float("seconds", 120, "Seconds of each load.")
_ROUNDS = flags.DEFINE_integer("rounds", 1, "Turns of each way.")
_MAX_WORDS = flags.DEFINE_integer(
    "max_words", 8, "Longer texts are left out; 8 words are about 16 tokens."
)
_FLAGS_OF_SERVER = flags.DEFINE_list(
    "server_flags", [], "More flags for the second server."
)
_AGAINST = flags.DEFINE_list(
    "against", ["--noenable_batching"], "More flags for the first server."
)
_AGAINST_ROOT = flags.DEFINE_string(
    "against_root", str(runs.ROOT), "Checkout that the first server runs in."
)

_LITERT = "--engine=litert"
_MODEL = "load"
_START_SECONDS = 120
_TAKEN_OVER = {"2": "AVAILABLE", "1": "END"}
_PATIENCE_SECONDS = 60
_WARM_UP_SECONDS = 5
_OVERLOAD_SECONDS = 20
_MAX_TEXTS = 500
_MAX_SEQ_LENGTH = 128
# Caches fill at first, so memory may grow until the middle of a load. If it
# grows by more than this factor from there to the end, it may grow forever.
_MAX_GROWTH = 1.1


def main():
    texts = _texts()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        turns.write_classifier(
            str(folder / "model"),
            _SIZE.value,
            _MAX_SEQ_LENGTH,
            1,
            _VOCAB_FILE.value,
        )
        first = _export(folder, runs.ROOT, "this")
        other_root = pathlib.Path(_AGAINST_ROOT.value).resolve()
        other = first
        if other_root != runs.ROOT:
            other = _export(folder, other_root, "other")
        second = folder / "second"
        shutil.copytree(first / "1", second)
        rates, against = [], []
        for _ in range(_ROUNDS.value):
            against.append(_load(other, texts, _AGAINST.value, root=other_root))
            rates.append(_load(first, texts, _FLAGS_OF_SERVER.value))
        _load(first, texts, _FLAGS_OF_SERVER.value, second)
        _overload(first, texts)
    print(
        f"{_name(_FLAGS_OF_SERVER.value)} / {_name(_AGAINST.value)}: "
        f"{runs.ratios(rates, against)}"
    )


def _name(server_flags):
    return " ".join(server_flags) or "default flags"


def _texts():
    """Returns texts of at most about 16 tokens."""
    opened = gzip.open if _TEXTS_FILE.value.endswith(".gz") else open
    with opened(_TEXTS_FILE.value, "rt", encoding="utf-8") as file:
        text = file.read()
    lines = text.splitlines()
    if text.startswith("{"):
        lines = [line for line, _ in json.loads(text)["train"]]
    short = [x for x in lines if 0 < len(x.split()) <= _MAX_WORDS.value]
    if not short:
        sys.exit(f"No line of {_TEXTS_FILE.value} is short enough.")
    return short[:: -(-len(short) // _MAX_TEXTS)]


def _export(folder, root, name):
    """Exports the model with a checkout; returns the version's folder."""
    base_path = folder / name / _MODEL
    subprocess.run(
        [
            *(sys.executable, "export/savedmodel.py"),
            f"--model_dir={folder / 'model'}",
            f"--output_dir={base_path}",
            f"--precision={_PRECISION.value}",
            *(["--litert"] if _LITERT in _FLAGS_OF_SERVER.value else []),
        ],
        cwd=root,
        env=_environment(root),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return base_path


def _load(base_path, texts, server_flags, second=None, root=runs.ROOT):
    """Loads a server; returns the answered requests a second.

    Args:
      base_path: The folder of the model.
      texts: The texts that clients send.
      server_flags: Flags of the server.
      second: A version that is added during the load, and removed at the end.
      root: The checkout of the server.
    """
    new = base_path / "2"
    with _serving(base_path, server_flags, root) as (process, port):
        # Warm up first, so that later growth of memory is a leak.
        _clients(port, texts, _WARM_UP_SECONDS).wait()
        memory = [_memory(process)]
        clients = _clients(port, texts, _SECONDS.value)
        if second:
            time.sleep(_SECONDS.value / 4)
            shutil.copytree(second, base_path / "copy")
            (base_path / "copy").rename(new)
        while clients.poll() is None:
            time.sleep(1)
            memory.append(_memory(process))
        result = _result(clients)
        rows = _batch_rows(port)
        _wait(lambda: second is None or _states(port) == _TAKEN_OVER)
    if second:
        shutil.rmtree(new)
    name = _name(server_flags) + (f", {root}" if root != runs.ROOT else "")
    name += ", a new version" if second else ""
    shown = (memory[0], memory[len(memory) // 2], memory[-1])
    megabytes = " ".join(f"{x / 1e6:.0f}" for x in shown)
    print(
        f"{name}: {result['per_second']:.0f} requests/s, p50 "
        f"{result['p50'] * 1e3:.1f} ms, p99 {result['p99'] * 1e3:.1f} ms, "
        f"longest {result['longest'] * 1e3:.0f} ms, {rows:.1f} rows a call, "
        f"memory {megabytes} MB, {result['statuses']}",
        flush=True,
    )
    if set(result["statuses"]) != {"200"}:
        sys.exit("A request failed.")
    # A new version needs more memory, so growth is an error only without one.
    if not second and shown[2] > _MAX_GROWTH * shown[1]:
        sys.exit("The server's memory grew.")
    return result["per_second"]


def _overload(base_path, texts):
    """Sends more requests than a server may queue."""
    server_flags = ["--max_batch_size=4", "--max_enqueued_batches=1"]
    with _serving(base_path, server_flags) as (_, port):
        seconds = min(_SECONDS.value, _OVERLOAD_SECONDS)
        result = _result(_clients(port, texts, seconds))
    print(
        f"overload: {result['statuses']}, longest "
        f"{result['longest'] * 1e3:.0f} ms",
        flush=True,
    )
    if set(result["statuses"]) != {"200", "503"}:
        sys.exit("Overload must be answered with 200 or 503.")


@contextlib.contextmanager
def _serving(base_path, server_flags, root=runs.ROOT):
    """Yields a server's process and port as soon as the server answers."""
    port, grpc_port = runs.free_ports(2)
    process = subprocess.Popen(
        [
            *(sys.executable, "run/serve.py"),
            f"--model_base_path={base_path}",
            f"--rest_api_port={port}",
            f"--port={grpc_port}",
            *server_flags,
        ],
        cwd=root,
        env=_environment(root),
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait(lambda: _get(port, "/readyz")[0] == 200)
        yield process, port
        process.send_signal(signal.SIGTERM)
        if process.wait(_START_SECONDS):
            sys.exit(f"The server ended with {process.returncode}.")
    finally:
        process.kill()
        process.wait()


def _wait(condition):
    """Waits until a condition is true."""
    deadline = time.monotonic() + _START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            sys.exit("The server did not start or not take over a version.")
        time.sleep(0.1)


def _clients(port, texts, seconds):
    """Starts the clients."""
    settings = {
        "port": port,
        "model": _MODEL,
        "texts": texts,
        "clients": _CLIENTS.value,
        "seconds": seconds,
        "patience_seconds": _PATIENCE_SECONDS,
    }
    return subprocess.Popen(
        [
            sys.executable,
            runs.ROOT / "benchmarks" / "serving_load_clients.py",
            json.dumps(settings),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )


def _result(clients):
    output, _ = clients.communicate()
    if clients.returncode:
        sys.exit("A client got no answer.")
    return json.loads(output)


def _get(port, path):
    """Returns status and body; the status is 0 if no server listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
    except ConnectionRefusedError:
        return 0, ""


def _states(port):
    """Returns the state of each version."""
    _, text = _get(port, f"/v1/models/{_MODEL}")
    return {
        entry["version"]: entry["state"]
        for entry in json.loads(text)["model_version_status"]
    }


def _batch_rows(port):
    """Returns the mean number of rows of a call."""
    _, text = _get(port, "/metrics")
    totals = {}
    for line in text.splitlines():
        for name in ("sum", "count"):
            if line.startswith(f"serving_batch_rows_{name}{{"):
                value = float(line.split()[-1])
                totals[name] = totals.get(name, 0) + value
    return totals["sum"] / totals["count"]


def _memory(process):
    return psutil.Process(process.pid).memory_info().rss


def _environment(root):
    return os.environ | {"PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "2"}


if __name__ == "__main__":
    runs.main(main)

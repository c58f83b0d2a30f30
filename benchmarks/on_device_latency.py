r"""Times .tflite files and other engines on ids of one length, turn by turn.

  python benchmarks/on_device_latency.py --size=base --threads=2

All compute the probabilities of two labels for one row of ids, with a BERT of
the given size and random weights, whose input shape is fixed:

- bert_tf: a .tflite file of export/tflite.py, run by LiteRT.
- onnxruntime and openvino: transformers' model as ONNX.

Each engine has its own process, and the engines take turns. The table has the
median and the 99th percentile of the latency in milliseconds. The last lines
have the median ratios of the other engines' latency to bert_tf's.
"""

import os
import subprocess
import tempfile

import numpy as np
import runs
import turns
from absl import flags

_SIZE = flags.DEFINE_enum("size", "base", [*turns.SHAPES], "Shape of the BERT.")
_LENGTH = flags.DEFINE_integer("length", 128, "Tokens of the row.")
_THREADS = flags.DEFINE_integer("threads", 2, "Threads of each.")
_ROUNDS = flags.DEFINE_integer("rounds", 10, "Turns of each way.")
_CALLS = flags.DEFINE_integer("calls", 20, "Calls in a turn.")

_OURS = "bert_tf"
# transformers starts first and writes the ONNX file; it is not timed.
_WRITER = "transformers"
_WAYS = {
    _OURS: ("none", "float16", "dynamic"),
    "onnxruntime": ("float32", "int8"),
    "openvino": ("float32", "bfloat16"),
}


def _make_files(folder):
    """Writes LiteRT's files; returns a dict from quantization to file."""
    model_dir = os.path.join(folder, "model")
    turns.write_classifier(
        model_dir, _SIZE.value, _LENGTH.value, 1, runs.VOCAB_FILE
    )
    paths = {}
    for quantization in _WAYS[_OURS]:
        paths[quantization] = os.path.join(folder, f"{quantization}.tflite")
        subprocess.run(
            runs.command(
                "export/tflite.py",
                model_dir=model_dir,
                output_file=paths[quantization],
                quantization=quantization,
                max_seq_length=_LENGTH.value,
                batch_size=1,
            ),
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return paths


def _start(folder):
    """Returns the servers by framework."""
    from tests.support import environments

    settings = {
        "shape": turns.SHAPES[_SIZE.value],
        "static_shape": [1, _LENGTH.value],
        "threads": _THREADS.value,
        "folder": folder,
        "files": _make_files(folder),
    }
    python = environments.make("latency", *turns.LATENCY_PEERS)
    servers = {}
    for framework in (_WRITER, *_WAYS):
        servers[framework] = turns.start(
            "on_device_latency_engine.py",
            settings | {"framework": framework},
            None if framework == _OURS else python,
        )
        servers[framework].ask(precision=None, calls=0)
    servers.pop(_WRITER).end()
    return servers


def _measure(servers):
    """Returns (framework, precision) -> the seconds of each turn's calls."""
    ways = [(x, y) for x in _WAYS for y in _WAYS[x]]
    seconds = {way: [] for way in ways}
    # Turn -1 is for compilation and caches.
    for turn in range(-1, _ROUNDS.value):
        for way in turns.order(ways, turn):
            answer = servers[way[0]].ask(precision=way[1], calls=_CALLS.value)
            if turn >= 0:
                seconds[way].append(answer["seconds"])
    return seconds


def _report(seconds):
    print("| way | precision | p50, ms | p99, ms |\n|---|---|---|---|")
    for way, of_turns in seconds.items():
        p50, p99 = np.percentile(np.concatenate(of_turns), [50, 99]) * 1e3
        print(f"| {' | '.join(way)} | {p50:.1f} | {p99:.1f} |")
    for precision in _WAYS[_OURS]:
        print(turns.latency_ratios(seconds, (_OURS, precision)))


def main():
    print(
        f"{_SIZE.value}, {_LENGTH.value} tokens, {_THREADS.value} threads, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    with tempfile.TemporaryDirectory() as folder:
        servers = _start(folder)
        seconds = _measure(servers)
        for server in servers.values():
            server.end()
    _report(seconds)


if __name__ == "__main__":
    runs.main(main)

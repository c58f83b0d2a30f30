r"""Times .tflite files and other engines on ids of one length, turn by turn.

  python benchmarks/on_device_latency.py --size=base --threads=2

All compute the probabilities of two labels for one row of ids, with a BERT of
the given size and random weights, in a shape that is fixed before:

- bert_tf: what export/tflite.py writes, run by LiteRT.
- onnxruntime and openvino: transformers' model as ONNX.

Each engine has its own process, and the engines take turns. The table has the
median and the 99th percentile of the latency in milliseconds. The last lines
have the median ratios of the other engines' latency to bert_tf's.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy as np
import turns
from absl import app
from absl import flags

_ROOT = pathlib.Path(__file__).resolve().parents[1]

_SIZE = flags.DEFINE_enum("size", "base", [*turns.SHAPES], "Shape of the BERT.")
_LENGTH = flags.DEFINE_integer("length", 128, "Pieces of the row.")
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
_PEERS = (
    "torch==2.13.0",
    "transformers==5.23.0",
    "onnx==1.23.2",
    "onnxscript==0.7.2",
    "onnxruntime==1.31.1",
    "openvino==2026.4.1",
)


def _make_files(folder):
    """Writes LiteRT's files; returns a dict from quantization to file."""
    from bert_tf.checkpoints import formats
    from bert_tf.checkpoints import model_directory
    from bert_tf.config import BertConfig
    from bert_tf.modeling.bert import named_variables
    from bert_tf.modeling.task_models import BertForClassification
    from bert_tf.tasks.classification.task import ClassificationTask
    from tests.support import minilm

    labels = ("no", "yes")
    task = ClassificationTask(
        name="custom",
        max_seq_length=_LENGTH.value,
        labels=labels,
        metric_names=("accuracy",),
    )
    config = BertConfig(type_vocab_size=2, **turns.SHAPES[_SIZE.value])
    model = BertForClassification(config, labels=labels)
    tokenizer = formats.read(minilm.directory()).build_tokenizer()
    model_dir = os.path.join(folder, "model")
    model_directory.write(
        model_dir,
        config,
        {k: x.numpy() for k, x in named_variables(model).items()},
        tokenizer.vocabulary,
        tokenizer.settings(),
        {"kind": task.kind} | task.to_json(),
        "# Random weights\n",
    )
    paths = {}
    for quantization in _WAYS[_OURS]:
        paths[quantization] = os.path.join(folder, f"{quantization}.tflite")
        subprocess.run(
            [
                sys.executable,
                str(_ROOT / "export" / "tflite.py"),
                f"--model_dir={model_dir}",
                f"--output_file={paths[quantization]}",
                f"--quantization={quantization}",
                f"--max_seq_length={_LENGTH.value}",
                "--batch_size=1",
            ],
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
    here = os.path.dirname(os.path.abspath(__file__))
    python = environments.make("latency", *_PEERS)
    servers = {}
    for framework in (_WRITER, *_WAYS):
        is_ours = framework == _OURS
        program = f"on_device_latency_{'ours' if is_ours else 'peer'}.py"
        servers[framework] = turns.Server(
            [
                sys.executable if is_ours else python,
                os.path.join(here, program),
                json.dumps(settings | {"framework": framework}),
            ],
            dict(os.environ, PYTHONPATH=str(_ROOT))
            if is_ours
            else environments.clean_environment(),
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
        for way in ways[:: -1 if turn % 2 else 1]:
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
        ours = seconds[_OURS, precision]
        ratios = []
        for way, theirs in seconds.items():
            if way[0] != _OURS:
                ratio = statistics.median(
                    statistics.median(y) / statistics.median(x)
                    for x, y in zip(ours, theirs, strict=True)
                )
                ratios.append(f"{ratio:.2f} {' '.join(way)}")
        print(f"latency / bert_tf {precision}'s: {', '.join(ratios)}")


def main(argv):
    del argv
    sys.path.insert(0, str(_ROOT))  # For tests.support.environments.
    print(
        f"{_SIZE.value}, {_LENGTH.value} pieces, {_THREADS.value} threads, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    with tempfile.TemporaryDirectory() as folder:
        servers = _start(folder)
        seconds = _measure(servers)
        for server in servers.values():
            server.end()
    _report(seconds)


if __name__ == "__main__":
    app.run(main)

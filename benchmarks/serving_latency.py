r"""Times classification of raw text by exports and other engines, turn by turn.

  python benchmarks/serving_latency.py --size=base

All classify the texts of the file with a BERT of the given size and random
weights, and tokenize the texts themselves:

- bert_tf: an export of export/savedmodel.py, run by the engine of run/serve.py;
  "litert" by the engine of --engine=litert.
- transformers: its tokenizer and PyTorch, padded to a batch's longest text.
- onnxruntime and openvino: transformers' model as ONNX, and its tokenizer.
- keras_hub: its classifier and preprocessor in one SavedModel, which pads to
  128 tokens.

Each framework has its own process. bert_tf's bfloat16 has another process with
packed weights, as run/serve.py packs them. All take turns with single texts and
with batches of 32. The table has the median and the 99th percentile of the
latency in milliseconds, and texts a second. The last lines have the median
ratios of the other engines' latency to bert_tf's.
"""

import collections
import itertools
import os
import subprocess
import tempfile

import numpy as np
import runs
import turns
from absl import flags

_TABLE = runs.Table("data_file", "dev.tsv.gz")
_SIZE = flags.DEFINE_enum("size", "base", [*turns.SHAPES], "Shape of the BERT.")
_WAYS = flags.DEFINE_list("ways", None, "Which ways; all by default.")
_ROUNDS = flags.DEFINE_integer("rounds", 8, "Turns of each way.")
_SINGLES = flags.DEFINE_integer("singles", 20, "Single texts in a turn.")
_BATCHES = flags.DEFINE_integer("batches", 1, "Batches of 32 in a turn.")
_THREADS = flags.DEFINE_integer("threads", 2, "Threads of each.")

_OURS = "bert_tf"
_MAX_SEQ_LENGTH = 128
_BATCH_SIZES = (1, 32)
# The precisions of each framework.
_PRECISIONS = {
    _OURS: ("float32", "bfloat16", "litert float32", "litert int8"),
    "transformers": ("float32", "bfloat16"),
    "onnxruntime": ("float32", "int8"),
    "openvino": ("float32", "bfloat16"),
    "keras_hub": ("float32", "bfloat16"),
}
_READ_ONNX = {"onnxruntime", "openvino"}
# Each export of bert_tf: its precision, the name of its litert/ in the list
# above, and the value of --litert_quantization.
_EXPORTS = (
    ("float32", "litert int8", "dynamic"),
    ("bfloat16", "litert float32", "none"),
)


def _make_exports(folder, columns):
    """Writes bert_tf's exports; returns precision -> version directory."""
    model_dir = os.path.join(folder, "model")
    turns.write_classifier(
        model_dir, _SIZE.value, _MAX_SEQ_LENGTH, columns, runs.VOCAB_FILE
    )
    paths = {}
    for precision, of_litert, quantization in _EXPORTS:
        output = os.path.join(folder, precision)
        subprocess.run(
            runs.command(
                "export/savedmodel.py",
                model_dir=model_dir,
                output_dir=output,
                precision=precision,
                litert=True,
                litert_quantization=quantization,
            ),
            check=True,
        )
        paths[precision] = paths[of_litert] = os.path.join(output, "1")
    return paths


def _start(folder, ways, num_texts):
    """Returns the server of each way."""
    from bert_tf.distribute import packed_weights
    from tests.support import environments
    from tests.support import minilm

    settings = {
        "shape": turns.SHAPES[_SIZE.value],
        "tokenizer": minilm.directory(),
        "max_seq_length": _MAX_SEQ_LENGTH,
        "threads": _THREADS.value,
        "folder": folder,
        "num_texts": num_texts,
    }

    def start(framework, exports=None, **variables):
        is_peer = framework not in (_OURS, "keras_hub")
        python, name = None, "serving_latency_tf.py"
        if is_peer:
            python = environments.make("latency", *turns.LATENCY_PEERS)
            name = "serving_latency_peer.py"
        of_framework = {"framework": framework, "exports": exports}
        server = turns.start(name, settings | of_framework, python, **variables)
        server.ask(precision=None, batches=[])  # Waits until it has started.
        return server

    if "transformers" not in ways and not _READ_ONNX.isdisjoint(ways):
        start("transformers").end()  # Writes the ONNX file for the others.
    servers = {
        (framework, precision): server
        for framework in sorted(ways, key=lambda x: x != "transformers")
        if framework != _OURS
        for server in [start(framework)]
        for precision in _PRECISIONS[framework]
    }
    if _OURS in ways:
        exports = _make_exports(folder, num_texts)
        # Like run/serve.py, only bfloat16 has packed weights.
        packed = {"bfloat16": exports.pop("bfloat16")}
        server = start(_OURS, exports)
        servers |= {(_OURS, precision): server for precision in exports}
        servers[_OURS, "bfloat16"] = start(
            _OURS, packed, **{packed_weights.VARIABLE: "1"}
        )
    return servers


def _requests(examples, size, turn):
    """Returns the batches of a turn: lists of texts or pairs."""
    count = _SINGLES.value if size == 1 else _BATCHES.value
    rng = np.random.default_rng([turn + 1, size])
    chosen = rng.choice(len(examples), count * size, replace=False)
    rows = [
        [examples[i][k] for k in ("text", "text_pair") if k in examples[i]]
        for i in chosen
    ]
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def _measure(servers, ways, examples):
    """Returns (way, batch size) -> the seconds of each turn's calls."""
    seconds = collections.defaultdict(list)
    # Turn -1 is for compilation and caches.
    for turn in range(-1, _ROUNDS.value):
        for size in _BATCH_SIZES:
            batches = _requests(examples, size, turn)
            for way in turns.order(ways, turn):
                answer = servers[way].ask(precision=way[1], batches=batches)
                if turn >= 0:
                    seconds[way, size].append(answer["seconds"])
        print(f"turn {turn + 1} of {_ROUNDS.value}", flush=True)
    return seconds


def _report(seconds, ways):
    print(
        "| way | precision | batch | p50, ms | p99, ms | texts/s |\n"
        "|---|---|---|---|---|---|"
    )
    for (way, size), of_turns in seconds.items():
        calls = np.array([*itertools.chain(*of_turns)])
        p50, p99 = np.percentile(calls, [50, 99]) * 1e3
        print(
            f"| {' | '.join(way)} | {size} | {p50:.1f} | {p99:.1f} "
            f"| {size / calls.mean():.1f} |"
        )
    for precision in _PRECISIONS[_OURS]:
        for size in _BATCH_SIZES:
            if (_OURS, precision) in ways:
                of_size = {way: seconds[way, size] for way in ways}
                ratios = turns.latency_ratios(of_size, (_OURS, precision))
                print(f"batch {size}, {ratios}")


def main():
    frameworks = _WAYS.value or [*_PRECISIONS]
    ways = [(x, y) for x in frameworks for y in _PRECISIONS[x]]
    examples = _TABLE.read()
    with tempfile.TemporaryDirectory() as folder:
        servers = _start(folder, frameworks, _TABLE.num_texts)
        seconds = _measure(servers, ways, examples)
        for server in set(servers.values()):
            server.end()
    _report(seconds, ways)


if __name__ == "__main__":
    runs.main(main)

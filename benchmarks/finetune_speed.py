r"""Times fine-tuning and prediction against transformers, turn by turn.

  python benchmarks/finetune_speed.py --size=minilm \
      --data_file=../shared/data/qnli/train_part.tsv.gz \
      --columns=question,sentence,label

Both classify the texts of the file with a BERT of the given size and random
weights: dropout on, AdamW, bfloat16 products, batches of 32. The ways take
turns, so that the machine is in the same state for all. This project's batches
have texts of similar length, and compute no padding where the scripts would
not. transformers' batches are in the order of the data, padded to their longest
text. Two more ways pad every text to 128 tokens in both, as the original and
the usual scripts for GLUE do. In prediction, a fifth way sorts transformers'
rows by length, which it does not do by itself. Rates are tokens a second
without padding; features are made beforehand. The last line has the median
ratios, this project's rate / the other rates.
"""

import json
import os
import tempfile

import runs
import turns
from absl import flags

_TABLE = runs.Table("data_file", "train_part.tsv.gz")
_SIZE = flags.DEFINE_enum(
    "size", "minilm", [*turns.SHAPES], "Shape of the BERT."
)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Turns of each way.")
_BATCHES = flags.DEFINE_integer("batches", 12, "Batches in a turn.")
_THREADS = flags.DEFINE_integer("threads", 2, "Threads of each.")

_BATCH_SIZE = 32
_MAX_SEQ_LENGTH = 128
_OURS = "bert_tf"
_PADDED, _SORTED = "padded", "sorted"
_WAYS = (
    (_OURS, ""),
    ("transformers", ""),
    (_OURS, _PADDED),
    ("transformers", _PADDED),
)
_PREDICTION_WAYS = (*_WAYS, ("transformers", _SORTED))


def _start(folder):
    """Returns the servers by name, for training and for prediction."""
    from bert_tf.distribute import packed_weights
    from tests.support import environments
    from tests.support import minilm

    examples_file = os.path.join(folder, "train.jsonl")
    with open(examples_file, "w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(x)}\n" for x in _TABLE.read())
    settings = {
        "shape": turns.SHAPES[_SIZE.value],
        "tokenizer": minilm.directory(),
        "examples_file": examples_file,
        "batch_size": _BATCH_SIZE,
        "max_seq_length": _MAX_SEQ_LENGTH,
        "batches": _BATCHES.value,
        "rounds": _ROUNDS.value,
        "threads": _THREADS.value,
    }
    python = environments.make("transformers", *minilm.PEER)
    peer = turns.start("finetune_speed_peer.py", settings, python)
    ours = turns.start("finetune_speed_ours.py", settings)
    # run/predict.py packs weights in bfloat16, so this process does, too.
    packing = turns.start(
        "finetune_speed_ours.py", settings, **{packed_weights.VARIABLE: "1"}
    )
    return {
        "train": {_OURS: ours, "transformers": peer},
        "predict": {_OURS: packing, "transformers": peer},
    }


def _name(framework, way):
    return f"{framework} {way}".strip()


def _measure(servers, doing):
    """Returns the rates of all turns, by name of the way."""
    ways = _WAYS if doing == "train" else _PREDICTION_WAYS
    rates = {_name(*way): [] for way in ways}
    # Turn -1 is for compilation and caches.
    for turn in range(-1, _ROUNDS.value):
        for framework, way in turns.order(ways, turn):
            answer = servers[framework].ask(do=doing, way=way, turn=turn)
            if turn >= 0:
                rates[_name(framework, way)].append(
                    answer["tokens"] / answer["seconds"]
                )
        if turn >= 0:
            shown = "  ".join(f"{n} {r[-1]:.0f}" for n, r in rates.items())
            print(f"{doing} {turn + 1}, tokens/s: {shown}", flush=True)
    return rates


def main():
    with tempfile.TemporaryDirectory() as folder:
        servers = _start(folder)
        lines = []
        for doing, of_doing in servers.items():
            rates = _measure(of_doing, doing)
            ratios = [
                f"{runs.ratios(rates[_OURS], theirs)} of {name}"
                for name, theirs in rates.items()
                if name != _OURS
            ]
            lines.append(f"{doing}: {'; '.join(ratios)}")
        for server in {x for y in servers.values() for x in y.values()}:
            server.end()
    print(f"bert_tf, size {_SIZE.value}: {' | '.join(lines)}")


if __name__ == "__main__":
    runs.main(main)

"""Predicts how training scales, for benchmarks/log.md and docs/pretraining.md.

python tools/scaling_table.py
python tools/scaling_table.py --tokens_per_second=90000 --network=11

The second command uses rates that were measured on other hardware.
"""

import dataclasses
import json
import pathlib
import statistics
from collections.abc import Iterable

from absl import app
from absl import flags

from bert_tf.config import BertConfig

_TOKENS_PER_SECOND = flags.DEFINE_float(
    "tokens_per_second",
    None,
    "Rate of one accelerator, BERT-base at length 128, in every precision.",
)
_NETWORK = flags.DEFINE_float(
    "network", None, "GB/s of an all-reduce between hosts (NCCL's busbw)."
)

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_MODELS = ("base", "large")
_PRECISIONS = ("float32", "bfloat16")
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_PER_HOST = 8
_LENGTH, _PREDICTIONS = 128, 20
# Gradients are added up in float32, in every precision of the model.
_GRADIENT_BYTES = 4

# Steps, sequences a step, length and predictions of each phase.
_RECIPES = {
    "base.flags": ((900_000, 256, 128, 20), (100_000, 256, 512, 77)),
    "lamb.flags": ((7_038, 65_536, 128, 20), (1_563, 32_768, 512, 77)),
}
_COST_COUNTS = (1, 8, 64)
# Dollars per accelerator-hour.
_PRICES = (2, 4)

# GB/s that others measured, as nccl-tests' busbw: 8 A100 in a host, and 2 hosts
# with 4 x 200 Gb/s each (github.com/NVIDIA/nccl-tests/issues/175).
_IN_HOST = 232.54
_NCCL_4_X_200 = 86.0
# NCCL reaches this share of 4 x 25 GB/s; other networks are assumed to as well.
_NETWORK_SHARE = _NCCL_4_X_200 / 100
# Assumed seconds for a step of the ring. From 64 to 256 GPUs, NVIDIA's runs add
# 384 steps and 4.5 ms, so a step takes at most 12 microseconds.
_HOP = 10e-6


@dataclasses.dataclass(frozen=True)
class _Published:
    """A table that NVIDIA published: BERT-large, sequences/s on A100 80GB.

    NVIDIA/DeepLearningExamples, TensorFlow2/LanguageModeling/BERT/README.md at
    49e23b4: "Pre-training training performance", single-node and multi-node.

    Attributes:
      length: Tokens of a sequence.
      batch: Sequences of a step.
      one: Sequences/s of one GPU.
      hosts: Sequences/s by the number of hosts, each with 8 GPUs.
      gradient_bytes: Bytes of a number in the all-reduce; Horovod sends float16
        if the model computes in float16.
    """

    length: int
    batch: int
    one: float
    hosts: dict[int, float]
    gradient_bytes: int


_FLOAT16_128 = _Published(
    length=128,
    batch=79872,
    one=485.59,
    hosts={1: 3803.82, 2: 7551.37, 8: 29711.11, 32: 110280.73},
    gradient_bytes=2,
)
_TF32_128 = _Published(
    length=128,
    batch=90112,
    one=282.98,
    hosts={1: 2062.98, 2: 4084.76, 8: 16134.02, 32: 59569.77},
    gradient_bytes=4,
)
_FLOAT16_512 = _Published(
    length=512,
    batch=30720,
    one=96.52,
    hosts={1: 749.73, 2: 1491.87, 8: 5870.83, 32: 22506.23},
    gradient_bytes=2,
)


def read_config(name: str) -> BertConfig:
    """Reads a configuration of bert_tf/recipes/configs."""
    folder = _ROOT / "bert_tf" / "recipes" / "configs"
    path = folder / name / "bert_config.json"
    return BertConfig(**json.loads(path.read_text(encoding="utf-8")))


def parameters(config: BertConfig) -> int:
    """Returns the number of weights of a model with both pretraining heads."""
    hidden, inner = config.hidden_size, config.intermediate_size
    tables = (
        config.vocab_size
        + config.max_position_embeddings
        + config.type_vocab_size
    )
    norm = 2 * hidden
    square = hidden * hidden + hidden
    layer = 4 * square + 2 * hidden * inner + inner + hidden + 2 * norm
    masked_lm = square + norm + config.vocab_size
    next_sentence = 2 * hidden + 2
    return (
        tables * hidden
        + norm
        + config.num_hidden_layers * layer
        + square  # The pooler.
        + masked_lm
        + next_sentence
    )


def operations(config: BertConfig, length: int, predictions: int) -> int:
    """Returns the FLOP of a sequence, forward and backward.

    Only matrix products count, with a multiplication and an addition for each
    term. The backward pass has two products for each one of the forward pass.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    layer = length * (4 * hidden * hidden + 2 * hidden * inner)
    attention = 2 * length * length * hidden
    head = predictions * hidden * (hidden + config.vocab_size)
    products = config.num_hidden_layers * (layer + attention) + head
    return 3 * 2 * (products + hidden * hidden)


def reduce_seconds(num_bytes: float, count: int, network: float) -> float:
    """Returns the time of an all-reduce in a ring.

    Args:
      num_bytes: Size of the gradients.
      count: Number of accelerators, 8 in a host.
      network: GB/s between hosts.
    """
    rate = (_IN_HOST if count <= _PER_HOST else network) * 1e9
    sent = num_bytes * 2 * (count - 1) / count
    return sent / rate + 2 * (count - 1) * _HOP


def _fits() -> list[float]:
    """Returns the GB/s between hosts that would explain each published rate."""
    weights = parameters(read_config("large"))
    rates = []
    for table in (_FLOAT16_128, _TF32_128):
        num_bytes = weights * table.gradient_bytes
        inside = reduce_seconds(num_bytes, _PER_HOST, _IN_HOST)
        for hosts, rate in table.hosts.items():
            if hosts == 1:
                continue
            count = hosts * _PER_HOST
            alone = table.batch / (table.hosts[1] * hosts)
            added = table.batch / rate - alone + inside
            hops = 2 * (count - 1) * _HOP
            sent = num_bytes * 2 * (count - 1) / count
            rates.append(sent / (added - hops) / 1e9)
    return rates


def fitted_network() -> float:
    """Returns the median GB/s that NVIDIA's hosts reached in training."""
    return statistics.median(_fits())


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The model, hardware and batch of a prediction.

    Attributes:
      rates: FLOP/s of one accelerator in training, by precision.
      network: GB/s of an all-reduce between hosts.
    """

    rates: dict[str, float]
    network: float

    def compute_seconds(self, config, precision, sequences) -> float:
        """Returns the time that one accelerator takes for the sequences."""
        work = operations(config, _LENGTH, _PREDICTIONS)
        return work * sequences / self.rates[precision]

    def efficiency(self, config, precision, count, batch) -> float:
        """Returns the speedup over one accelerator, divided by `count`.

        Args:
          config: The model's shape.
          precision: A key of `rates`.
          count: Number of accelerators.
          batch: Sequences of a step on all accelerators.
        """
        share = self.compute_seconds(config, precision, batch / count)
        # If the batch does not divide evenly, all wait for the largest share.
        longest = self.compute_seconds(config, precision, -(-batch // count))
        num_bytes = parameters(config) * _GRADIENT_BYTES
        reduce = reduce_seconds(num_bytes, count, self.network)
        return share / (longest + reduce)


def published_cluster() -> Cluster:
    """Returns a cluster of A100s with NVIDIA's rates for BERT-large."""
    work = operations(read_config("large"), _LENGTH, _PREDICTIONS)
    rates = {
        "float32": work * _TF32_128.one,
        "bfloat16": work * _FLOAT16_128.one,
    }
    return Cluster(rates, fitted_network())


def layout(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a table in Markdown."""
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _columns() -> list[tuple[str, str]]:
    return [(model, name) for model in _MODELS for name in _PRECISIONS]


def _headings() -> list[str]:
    return [f"{model}, {precision}" for model, precision in _columns()]


def step_table() -> str:
    """Returns a table of a step's operations and bytes, one row per model."""
    rows = []
    for name in _MODELS:
        config = read_config(name)
        weights = parameters(config)
        work = operations(config, _LENGTH, _PREDICTIONS)
        rows.append(
            [
                name,
                f"{weights:,}",
                f"{weights * _GRADIENT_BYTES / 1e6:,.0f} MB",
                f"{work / 1e9:.1f} GFLOP",
                f"{operations(config, 512, 77) / 1e9:.1f} GFLOP",
                f"{work / _LENGTH / 1e6:,.0f} MFLOP",
            ]
        )
    return layout(
        [
            "model",
            "weights",
            "gradients",
            "a sequence of 128",
            "of 512",
            "a token of 128",
        ],
        rows,
    )


def efficiency_table(cluster: Cluster, batch: int) -> str:
    """Returns a table of efficiencies with `batch` sequences of 128 tokens."""
    rows = []
    for count in _COUNTS:
        shares = [
            cluster.efficiency(read_config(model), precision, count, batch)
            for model, precision in _columns()
        ]
        rows.append(
            [
                f"{count:,}",
                f"{-(-batch // count):,}",
                *(f"{100 * share:.1f}%" for share in shares),
            ]
        )
    return layout(["accelerators", "sequences each", *_headings()], rows)


def _networks(cluster: Cluster) -> dict[str, float]:
    return {
        "NVLink, one host": _IN_HOST,
        "4 x 200 Gb/s InfiniBand a host": _NCCL_4_X_200,
        "as NVIDIA's hosts reached in training": cluster.network,
        "100 Gb/s a host": 12.5 * _NETWORK_SHARE,
        "10 Gb/s a host": 1.25 * _NETWORK_SHARE,
    }


def _long_rate() -> float:
    """Returns FLOP/s at length 512 as a share of the FLOP/s at length 128."""
    config = read_config("large")
    long = operations(config, 512, 77) * _FLOAT16_512.one
    return long / (operations(config, _LENGTH, _PREDICTIONS) * _FLOAT16_128.one)


def training_hours(cluster: Cluster, recipe: str, count: int) -> float:
    """Returns the hours of a recipe with BERT-base in bfloat16."""
    config = read_config("base")
    num_bytes = parameters(config) * _GRADIENT_BYTES
    seconds = 0.0
    for steps, batch, length, predictions in _RECIPES[recipe]:
        work = operations(config, length, predictions) * -(-batch // count)
        rate = cluster.rates["bfloat16"]
        if length > _LENGTH:
            rate *= _long_rate()
        reduce = reduce_seconds(num_bytes, count, cluster.network)
        seconds += steps * (work / rate + reduce)
    return seconds / 3600


def cost_table(cluster: Cluster) -> str:
    """Returns hours and dollars of training BERT-base, for pretraining.md."""
    rows = []
    for name, phases in _RECIPES.items():
        tokens = sum(
            steps * batch * length for steps, batch, length, _ in phases
        )
        for count in _COST_COUNTS:
            hours = training_hours(cluster, name, count)
            rows.append(
                [
                    f"`{name}`",
                    f"{tokens / 1e9:.0f} billion",
                    str(count),
                    f"{hours:.1f}",
                    f"{hours * count:,.0f}",
                    *(f"${hours * count * price:,.0f}" for price in _PRICES),
                ]
            )
    return layout(
        [
            "recipe",
            "tokens",
            "accelerators",
            "hours",
            "accelerator-hours",
            *(f"at ${price} an hour" for price in _PRICES),
        ],
        rows,
    )


def network_table(cluster: Cluster) -> str:
    """Returns a table of the sequences per accelerator for 90% efficiency."""
    rows = []
    for name, network in _networks(cluster).items():
        needed = []
        for model, precision in _columns():
            config = read_config(model)
            # With many accelerators, each sends nearly all gradients twice.
            sent = 2 * parameters(config) * _GRADIENT_BYTES
            reduce = sent / (network * 1e9)
            compute = cluster.compute_seconds(config, precision, 1)
            needed.append(f"{9 * reduce / compute:,.0f}")
        rows.append([name, f"{network:.1f} GB/s", *needed])
    return layout(["network", "all-reduce", *_headings()], rows)


def published_table(cluster: Cluster) -> str:
    """Returns a table of NVIDIA's scaling, published and predicted."""
    config = read_config("large")
    columns = {
        "float16, 128": _FLOAT16_128,
        "TF32, 128": _TF32_128,
        "float16, 512": _FLOAT16_512,
    }
    rows = []
    for hosts in _FLOAT16_128.hosts:
        row = [str(hosts), str(hosts * _PER_HOST)]
        for table in columns.values():
            num_bytes = parameters(config) * table.gradient_bytes
            one, many = (
                reduce_seconds(num_bytes, count, cluster.network)
                for count in (_PER_HOST, hosts * _PER_HOST)
            )
            # The step on one host, which includes the host's all-reduce.
            alone = table.batch / table.hosts[1]
            step = (alone - one) / hosts + many
            row.append(f"{table.hosts[hosts] / table.hosts[1]:.2f}")
            row.append(f"{alone / step:.2f}")
        rows.append(row)
    names = [
        f"{name}: {said}"
        for name in columns
        for said in ("published", "predicted")
    ]
    return layout(["hosts", "GPUs", *names], rows)


def tables(cluster: Cluster) -> dict[str, str]:
    """Returns all tables by heading."""
    fast = dataclasses.replace(cluster, network=_NCCL_4_X_200)
    return {
        "A step": step_table(),
        "Efficiency, 65,536 sequences a step (lamb.flags)": efficiency_table(
            cluster, 65536
        ),
        f"The same with {_NCCL_4_X_200:g} GB/s": efficiency_table(fast, 65536),
        "Efficiency, 256 sequences a step (base.flags)": efficiency_table(
            cluster, 256
        ),
        "Sequences of 128 an accelerator, for 90%": network_table(cluster),
        "NVIDIA's hosts": published_table(published_cluster()),
    }


def quantities(cluster: Cluster) -> list[str]:
    """Returns the inputs of the predictions, as benchmarks/log.md has them."""
    return [
        *(f"{rate / 1e12:.1f} TFLOP/s" for rate in cluster.rates.values()),
        f"{_IN_HOST:.1f} GB/s",
        f"{cluster.network:.1f} GB/s",
        f"{_NCCL_4_X_200:g} GB/s",
        f"({min(_fits()):.1f} to {max(_fits()):.1f})",
        f"{_HOP * 1e6:g} us",
    ]


def _measured_cluster() -> Cluster:
    """Returns the published cluster, with the rates that flags replace."""
    cluster = published_cluster()
    if _TOKENS_PER_SECOND.value is not None:
        work = operations(read_config("base"), _LENGTH, _PREDICTIONS)
        rate = _TOKENS_PER_SECOND.value * work / _LENGTH
        rates = dict.fromkeys(cluster.rates, rate)
        cluster = dataclasses.replace(cluster, rates=rates)
    if _NETWORK.value is not None:
        cluster = dataclasses.replace(cluster, network=_NETWORK.value)
    return cluster


def main(argv: list[str]) -> None:
    del argv
    cluster = _measured_cluster()
    print("\n".join(quantities(cluster)))
    for name, table in tables(cluster).items():
        print(f"\n{name}\n\n{table}", end="")
    print(f"\nHours and dollars of base\n\n{cost_table(cluster)}", end="")


if __name__ == "__main__":
    app.run(main)

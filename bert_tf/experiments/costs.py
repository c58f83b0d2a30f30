"""Estimates how long jobs take, before and while they run.

The cost is counted in floating-point operations, six for each weight and token
in training and two in evaluation, which is rough. Jobs that have finished in
the same folder correct the speed.
"""

import math
import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

# Seconds to start a script, with TensorFlow, and to compile its step.
START_SECONDS = 12.0
# Operations in a second on one core of a server of 2023.
_PER_CORE = 4.5e10
# Bytes of text that a core makes into records, or counts, in a second.
_TEXT_PER_CORE = 1e6
_CHARACTERS_PER_TOKEN = 4.0
# Units a direction of the BiLSTM head, unless flags have others. At
# --scale=small it has 7 times the encoder's weights: QNLI took 480 seconds with
# it and 98 without, SQuAD 1,150 and 166 (benchmarks/results/experiments/small).
_LSTM_SIZE = 768
# A few jobs tell little about the speed.
_PRIOR_JOBS = 2.0


def weights(config: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the weights of the encoder, and of the word embeddings."""
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    each = 4 * width * width + 2 * width * config["intermediate_size"]
    return layers * each, config["vocab_size"] * width


def pretraining(
    config: Mapping[str, Any], phases: Sequence[Mapping[str, Any]]
) -> float:
    """Returns the operations of pretraining.

    Args:
      config: The bert_config.json.
      phases: The flags of each phase, which ends at a step of the whole.
    """
    encoder, table = weights(config)
    work, done = 0.0, 0
    for flags in phases:
        length = int(flags.get("max_seq_length", 128))
        share = int(flags.get("max_predictions_per_seq", 20)) / length
        rows = int(flags.get("train_batch_size", 256))
        last = int(flags.get("num_train_steps", 1_000_000))
        last = min(int(flags.get("stop_at_step", last)), last)
        tokens = (last - done) * rows * length
        work += 6.0 * tokens * (encoder + share * table)
        done = last
    return work


def finetuning(
    config: Mapping[str, Any],
    flags: Mapping[str, Any],
    train_tokens: float,
    dev_tokens: float,
) -> float:
    """Returns the operations of fine-tuning and scoring."""
    encoder, _ = weights(config)
    if flags.get("approach") == "feature_based":
        encoder /= 2  # No backward pass, but two BiLSTMs.
    elif flags.get("head") == "bilstm":
        size = int(flags.get("lstm_size", _LSTM_SIZE))
        # Four gates in each of two directions.
        encoder += 2 * 4 * size * (config["hidden_size"] + size)
    epochs = [float(x) for x in _values(flags.get("num_train_epochs", 3))]
    # A list of values is a trial for each.
    others = ("train_batch_size", "learning_rate", "layer_combination")
    repeats = math.prod(len(_values(flags.get(x, ""))) for x in others)
    train, dev = sum(epochs) * train_tokens, len(epochs) * dev_tokens
    return repeats * encoder * (6.0 * train + 2.0 * dev)


def _values(flag: Any) -> list[str]:
    return str(flag).split(",")


def text_work(num_bytes: float) -> float:
    """Returns the operations that stand for reading a text."""
    return num_bytes / _TEXT_PER_CORE * _PER_CORE


def seconds(work: float, num_commands: int) -> float:
    """Returns the estimated seconds of a job on this machine."""
    cores = os.cpu_count() or 1
    return START_SECONDS * num_commands + work / (_PER_CORE * cores)


def correction(finished: Sequence[tuple[float, float]]) -> float:
    """Returns the factor between actual and estimated seconds.

    Args:
      finished: Estimated and actual seconds of each finished job.
    """
    if not finished:
        return 1.0
    expected = sum(x for x, _ in finished)
    actual = sum(x for _, x in finished)
    mean = expected / len(finished)
    prior = _PRIOR_JOBS * mean
    return (actual + prior) / (expected + prior)

"""Trains some steps in a process of its own and prints their memory.

python -m tests.support.memory_program '{"num_layers": 4, ...}'
"""

import json
import os
import resource
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from bert_tf.commands.pretrain import PretrainConfig  # noqa: E402
from bert_tf.config import BertConfig  # noqa: E402
from bert_tf.distribute import batches as batches_lib  # noqa: E402
from bert_tf.distribute import devices as device_setup  # noqa: E402
from bert_tf.errors import UserError  # noqa: E402
from bert_tf.modeling import bert as bert_model  # noqa: E402
from bert_tf.pretraining import run as pretraining  # noqa: E402
from bert_tf.training import state as training_state  # noqa: E402

_PREDICTIONS = 20


def _rows(count, length, vocab_size):
    """Returns the features of `count` examples without padding."""
    rng = np.random.default_rng(3)
    tokens = [count, length]
    predictions = [count, _PREDICTIONS]
    return {
        "input_ids": rng.integers(0, vocab_size, tokens).astype(np.int32),
        "input_mask": np.ones(tokens, np.int32),
        "segment_ids": np.zeros(tokens, np.int32),
        "masked_lm_positions": rng.integers(0, length, predictions).astype("i"),
        "masked_lm_ids": rng.integers(0, vocab_size, predictions).astype("i"),
        "masked_lm_weights": np.ones(predictions, np.float32),
        "next_sentence_labels": np.zeros([count, 1], np.int32),
        "dropout_seeds": np.arange(count, dtype=np.int32),
    }


def _peak():
    """Returns the peak in kB; getrusage would start at the parent's peak."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(x.split()[1]) for x in file if x.startswith("VmHWM:"))


def main(
    num_layers,
    hidden_size,
    batch_size,
    vocab_size=1000,
    max_seq_length=128,
    head_size=64,
    num_steps=2,
    limit=0,
    **flags,
):
    """Prints the bytes that steps take, and the sum of all weights.

    Args:
      num_layers: Layers of the model.
      hidden_size: The width of the model.
      batch_size: Examples of a step.
      vocab_size: The vocabulary size of the model.
      max_seq_length: Tokens of an example.
      head_size: The width of an attention head.
      num_steps: The number of steps.
      limit: Bytes of address space beyond those of the built model; 0 means
        no limit.
      **flags: Further flags of run/pretrain.py.
    """
    config = PretrainConfig(
        bert_config_file="",
        input_file="",
        output_dir="",
        do_train=True,
        max_seq_length=max_seq_length,
        max_predictions_per_seq=_PREDICTIONS,
        train_batch_size=batch_size,
        num_warmup_steps=0,
        **flags,
    )
    bert_config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // head_size,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=max_seq_length,
        type_vocab_size=2,
    )
    devices = device_setup.prepare(config)
    step = pretraining.build_training(config, bert_config, devices)
    variables = bert_model.named_variables(step.model)
    dataset = tf.data.Dataset.from_tensors(
        _rows(batch_size, max_seq_length, vocab_size)
    ).repeat()
    iterator = batches_lib.distribute_batches(
        devices.strategy, dataset, step.plan
    )
    if limit:
        with open("/proc/self/statm", encoding="utf-8") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + limit,) * 2)
    before = _peak()
    try:
        _, metrics, _ = step.run(iterator, num_steps)
    except UserError as error:
        sys.stdout.write(json.dumps({"error": str(error)}))
        return
    # Measure before reading the weights, which takes that memory again.
    peak = _peak()
    weights = training_state.read(variables, step.optimizer)
    numbers = {
        "added": peak - before,
        "loss": metrics["loss"],
        "weights": float(sum(np.abs(x).sum() for x in weights.values())),
    }
    sys.stdout.write(json.dumps(numbers))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))

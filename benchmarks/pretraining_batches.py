"""Batches of random tokens, and a step like run/pretrain.py's on one batch."""

import dataclasses
import os

import numpy as np

LENGTH = 128
_PREDICTIONS = 20
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def random_batch(
    vocab_size: int,
    batch_size: int,
    length: int = LENGTH,
    predictions: int = _PREDICTIONS,
    fill: float | None = None,
) -> dict[str, np.ndarray]:
    """Returns the features of a batch, of unequal lengths.

    Args:
      vocab_size: Ids are below this number.
      batch_size: Number of rows.
      length: Tokens of a row, padding included.
      predictions: Masked tokens of a row.
      fill: Share of positions without padding; most rows are full and others
        half full, as in records. By default lengths are random, half or more.
    """
    rng = np.random.default_rng(0)
    lengths = rng.integers(length // 2, length + 1, (batch_size, 1))
    if fill is not None:
        missing = round((1 - fill) * batch_size * length)
        lengths[:] = length
        for row in range(batch_size):
            lengths[row] -= min(missing, length // 2)
            missing -= length - lengths[row, 0]
    mask = (np.arange(length) < lengths).astype("int32")
    shape = (batch_size, predictions)
    return {
        "input_ids": rng.integers(1000, vocab_size, mask.shape, "int32") * mask,
        "input_mask": mask,
        "segment_ids": (np.arange(length) > lengths // 2).astype("int32")
        * mask,
        "masked_lm_positions": np.sort(
            rng.integers(1, length // 2, shape, "int32"), 1
        ),
        "masked_lm_ids": rng.integers(1000, vocab_size, shape, "int32"),
        "masked_lm_weights": np.ones(shape, "float32"),
        "next_sentence_labels": rng.integers(0, 2, (batch_size, 1), "int32"),
    }


def predictions_of(length: int) -> int:
    """Returns the number of masked tokens of a row, as in the recipes."""
    return round(0.15 * length) if length > LENGTH else _PREDICTIONS


def repeat(batch: dict[str, np.ndarray], strategy, plan, transform=None):
    """Returns an iterator that yields a batch forever, as in training."""
    import tensorflow as tf

    from bert_tf.distribute import batches as batches_lib

    rows = np.arange(len(batch["input_ids"]), dtype=np.int64)
    dataset = tf.data.Dataset.from_tensors(batch | {"example_index": rows})
    dataset = batches_lib.add_dropout_seeds(dataset.repeat(), seed=1)
    return batches_lib.distribute_batches(
        strategy, dataset, plan, transform=transform
    )


def build_model(strategy, config, fuse: bool, dtype: str):
    """Returns a model with random weights, and the original's optimizer."""
    import keras

    from bert_tf.modeling.bert import BertForPretraining
    from bert_tf.training.optimizer import build_optimizer

    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = BertForPretraining(config, fuse=fuse, dtype=dtype)
        optimizer = build_optimizer("bert_adam", 1e-4, 1000, 10)
        optimizer.build(model.trainable_variables)
    return model, optimizer


def build_step(size: str, length: int, batch_size: int, kind="", **flags):
    """Builds the step of run/pretrain.py, and an iterator of one batch.

    Args:
      size: A folder of bert_tf/recipes/configs.
      length: Tokens of a row.
      batch_size: Rows of a step.
      kind: The kind of device that the step is for; by default this machine's.
        A step for another kind can be traced, and a CPU can also compute it.
      **flags: Further flags of run/pretrain.py.

    Returns:
      The `Devices`, the `TrainingStep`, and its iterator.
    """
    from bert_tf.commands.pretrain import PretrainConfig
    from bert_tf.distribute import devices as device_setup
    from bert_tf.pretraining import data as pretraining_input
    from bert_tf.pretraining import run as pretraining
    from bert_tf.training import losses

    config = PretrainConfig(
        bert_config_file=os.path.join(
            _ROOT, f"bert_tf/recipes/configs/{size}/bert_config.json"
        ),
        input_file="",
        output_dir="",
        do_train=True,
        max_seq_length=length,
        max_predictions_per_seq=predictions_of(length),
        train_batch_size=batch_size,
        **flags,
    )
    devices = device_setup.prepare(config)
    if kind and kind != devices.kind:
        devices = dataclasses.replace(
            devices,
            kind=kind,
            precision=device_setup.resolve_precision(
                config.mixed_precision, kind
            ),
            deterministic=bool(config.deterministic),
        )
        losses.overwrites_logits = lambda: kind == "CPU"
    bert_config = pretraining_input.read_model_config(config)
    step = pretraining.build_training(config, bert_config, devices)
    batch = random_batch(
        bert_config.vocab_size, batch_size, length, predictions_of(length)
    )
    return devices, step, repeat(batch, devices.strategy, step.plan)

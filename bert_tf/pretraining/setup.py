"""Builds model, optimizer, step plan and training step for pretraining."""

from collections.abc import Mapping

import keras
from absl import logging

from bert_tf.config import BertConfig
from bert_tf.distribute.batches import StepPlan
from bert_tf.distribute.devices import Devices
from bert_tf.flags.options import Flags
from bert_tf.modeling import bert as bert_model
from bert_tf.modeling import encoder
from bert_tf.training import losses
from bert_tf.training import optimizer as optimizers
from bert_tf.training.step import TrainingStep
from bert_tf.training.xla import Compilation

# With more tokens at once a device gets hardly faster, but needs more memory.
_TOKENS_AT_ONCE = {"CPU": 1 << 12, "GPU": 1 << 15, "TPU": 1 << 15}
# Weights that only the next-sentence task trains.
_NEXT_SENTENCE_PARTS = ("bert/pooler/", "cls/seq_relationship/")

_ACTIVATION_NAMES = {
    "gelu": "gelu, the tanh form (--hidden_act=gelu_erf is the exact one)",
    "gelu_erf": "gelu_erf, the exact form",
}


def build_training(
    config: Flags,
    bert_config: BertConfig,
    devices: Devices,
    preferred_micro_batch: int = 0,
) -> TrainingStep:
    """Builds model, optimizer and training step, with new weights; logs sizes.

    With --micro_batch_size=auto, `preferred_micro_batch` is the size to use; 0
    for none.
    """
    strategy = devices.strategy
    keras.utils.set_random_seed(config.seed)
    if config.remat:
        encoder.keep_recomputation(len(strategy.extended.worker_devices))
    with strategy.scope():
        model = bert_model.BertForPretraining(
            bert_config,
            fuse=devices.fuse,
            remat=config.remat,
            dtype=devices.precision.policy,
        )
        variables = bert_model.named_variables(model)
        optimizer = _build_optimizer(config, variables)
    num_weights = sum(v.value.shape.num_elements() for v in variables.values())
    logging.info(
        "The model has %s parameters; its activation is %s.",
        f"{num_weights:,}",
        _ACTIVATION_NAMES.get(bert_config.hidden_act, bert_config.hidden_act),
    )
    plan = _plan(config, devices, preferred_micro_batch)
    return TrainingStep(
        strategy,
        model,
        losses.PretrainingObjective(config.use_next_sentence),
        optimizer,
        plan,
        devices.precision.needs_loss_scale,
        Compilation(
            config.xla, devices.kind, deterministic=devices.deterministic
        ),
        devices.all_reduce_dtype,
    )


def _build_optimizer(
    config: Flags, variables: Mapping[str, keras.Variable]
) -> optimizers.BertOptimizer:
    """Builds the optimizer with the variables that the losses reach."""
    untrained = ()
    if not config.use_next_sentence:
        untrained = _NEXT_SENTENCE_PARTS
        logging.info(
            "Without the next-sentence loss %s keep their initial values.",
            " and ".join(untrained),
        )
    optimizer = optimizers.build_optimizer(
        config.optimizer,
        config.learning_rate,
        config.num_train_steps,
        config.num_warmup_steps,
        config.weight_decay_rate,
        config.schedule_start_step,
    )
    optimizer.build(
        [
            variable
            for name, variable in variables.items()
            if not name.startswith(untrained)
        ]
    )
    return optimizer


def _plan(
    config: Flags, devices: Devices, preferred_micro_batch: int
) -> StepPlan:
    """Splits a step over replicas and micro-batches."""
    batch_size = config.train_batch_size
    num_replicas = devices.strategy.num_replicas_in_sync
    # Accumulated batches are never computed at once.
    whole = StepPlan(batch_size, num_replicas).per_replica
    if config.micro_batch_size == "auto":
        most = _TOKENS_AT_ONCE[devices.kind] // config.max_seq_length
        sizes = range(1, max(1, min(whole, most)) + 1)
        # A step that needs more memory than there is is repeated in halves.
        micro = max(size for size in sizes if whole % size == 0)
        # Another size than before the interruption would round differently.
        if preferred_micro_batch and whole % preferred_micro_batch == 0:
            micro = preferred_micro_batch
    else:
        micro = int(config.micro_batch_size) or whole
    return StepPlan(
        batch_size * config.gradient_accumulation_steps, num_replicas, micro
    )

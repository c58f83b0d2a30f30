"""A tiny model trained with `TrainingStep`, with any of its options."""

import dataclasses

import numpy as np
import tensorflow as tf

from bert_tf.distribute import batches as batches_lib
from bert_tf.distribute.batches import StepPlan
from bert_tf.modeling import bert as bert_model
from bert_tf.training import optimizer as optimizers
from bert_tf.training import state as training_state
from bert_tf.training import unpad as unpadding
from bert_tf.training.losses import PretrainingObjective
from bert_tf.training.step import TrainingStep
from bert_tf.training.xla import Compilation
from tests.support import record_files
from tests.support import tiny_pretraining

CONFIG = dataclasses.replace(tiny_pretraining.CONFIG, max_position_embeddings=8)


def examples(count):
    """Returns the features of `count` records, stacked."""
    records = [record_files.make_features(number) for number in range(count)]
    stacked = {
        name: np.stack([record[name] for record in records])
        for name in records[0]
    }
    return {
        name: x.astype(np.float32 if x.dtype.kind == "f" else np.int32)
        for name, x in stacked.items()
    } | {"example_index": np.arange(count, dtype=np.int64)}


def dataset(rows, batch_size, seed=5):
    """Repeats rows, with a new example index each time."""
    batches = tf.data.Dataset.from_tensor_slices(rows).repeat()
    batches = batches.batch(batch_size, drop_remainder=True).enumerate()

    def renumber(number, batch):
        index = number * batch_size + tf.range(batch_size, dtype=tf.int64)
        return batch | {"example_index": index}

    batches = batches.map(renumber)
    return batches_lib.add_dropout_seeds(batches, seed)


class StepTrainer:
    """A model and its training step, on 24 repeated examples.

    Args:
      devices: The number of devices.
      batch_size: Examples of a step.
      max_micro_batch_size: Maximum rows of a micro-batch; 0 means all.
      policy: The dtype policy.
      optimizer: Its name.
      learning_rate: The peak, reached after two steps; it falls to 0 at
        `num_train_steps`.
      num_train_steps: Steps of the schedule.
      dropout: The rate of all dropout.
      compilation: The `Compilation`; by default the chains.
      model_arguments: Further arguments of the model.
      use_next_sentence: Whether to include the next-sentence loss.
      weight_scale: Standard deviation of the initial weights.
      seed: The seed of dropout.
      objective: The class of the objective.
      all_reduce_dtype: The dtype in which gradients are summed over devices.
      unpad: Whether to compute without padding.
    """

    def __init__(
        self,
        devices=1,
        batch_size=8,
        max_micro_batch_size=0,
        policy="float32",
        optimizer="bert_adam",
        learning_rate=0.01,
        num_train_steps=20,
        dropout=0.1,
        compilation=None,
        model_arguments=(),
        use_next_sentence=True,
        weight_scale=0.3,
        seed=5,
        objective=PretrainingObjective,
        all_reduce_dtype="float32",
        unpad=False,
    ):
        config = dataclasses.replace(
            CONFIG,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
        names = [f"CPU:{index}" for index in range(devices)]
        self.strategy = tf.distribute.OneDeviceStrategy("CPU:0")
        if devices > 1:
            self.strategy = tf.distribute.MirroredStrategy(names)
        with self.strategy.scope():
            model = bert_model.BertForPretraining(
                config, dtype=policy, **dict(model_arguments)
            )
            self.variables = bert_model.named_variables(model)
            rng = np.random.default_rng(4)
            for variable in self.variables.values():
                variable.assign(
                    rng.normal(size=variable.shape, scale=weight_scale)
                )
            self.optimizer = optimizers.build_optimizer(
                optimizer, learning_rate, num_train_steps, 2
            )
            self.optimizer.build(
                [
                    variable
                    for name, variable in self.variables.items()
                    if use_next_sentence
                    or not name.startswith(("bert/pooler", "cls/seq_rel"))
                ]
            )
        self.plan = StepPlan(batch_size, devices, max_micro_batch_size)
        self.training_step = TrainingStep(
            self.strategy,
            model,
            objective(use_next_sentence),
            self.optimizer,
            self.plan,
            policy == "mixed_float16",
            compilation or Compilation(),
            all_reduce_dtype=all_reduce_dtype,
        )
        self._unpad = unpad
        self._dataset = dataset(examples(24), batch_size, seed)
        self.read_again()
        self.metrics = []
        self.is_finite = True

    def read_again(self):
        """Starts at the first batch again; returns itself."""
        plan, transform = self.training_step.plan, None
        if self._unpad:
            transform = unpadding.token_finder(
                plan, [CONFIG.max_position_embeddings]
            )
        self.iterator = batches_lib.distribute_batches(
            self.strategy, self._dataset, plan, transform=transform
        )
        return self

    def train(self, *calls):
        """Trains calls[i] steps in call i into the graph; returns itself."""
        for count in calls:
            self.is_finite, metrics, self.sums = self.training_step.run(
                self.iterator, count
            )
            self.metrics.append(metrics)
        return self

    def state(self):
        """Returns the tensors of a checkpoint."""
        return training_state.read(self.variables, self.optimizer)

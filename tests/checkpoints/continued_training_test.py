"""Tests for training continued from the original's checkpoint and slots."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.checkpoints import load as checkpoint_loading
from bert_tf.checkpoints import model_directory
from bert_tf.checkpoints.tf1 import checkpoint as tf1_checkpoint
from bert_tf.distribute import batches as batches_lib
from bert_tf.distribute.batches import StepPlan
from bert_tf.modeling import bert as bert_model
from bert_tf.training import state as training_state
from bert_tf.training.losses import PretrainingObjective
from bert_tf.training.step import TrainingStep
from tests.support import files_case
from tests.support import golden_training
from tests.support.shared_data import golden


def _continue_training(stored, num_steps):
    """Trains on the golden file's batch; returns the losses and the state."""
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = checkpoint_loading.build_model(stored)
        optimizer = golden_training.build_optimizer(model)
    variables = bert_model.named_variables(model)
    training_state.assign_optimizer(
        variables, optimizer, stored.optimizer_state, stored.path
    )
    batch = golden_training.read_batch()
    batch["example_index"] = np.arange(4, dtype=np.int64)
    dataset = batches_lib.add_dropout_seeds(
        tf.data.Dataset.from_tensors(batch).repeat(), seed=5
    )
    loop = TrainingStep(
        strategy, model, PretrainingObjective(), optimizer, StepPlan(4)
    )
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    losses = [loop.run(iterator, 1)[1]["loss"] for _ in range(num_steps)]
    return losses, training_state.read(variables, optimizer)


class ContinuedTrainingTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        for name in (
            "after_12_steps.ckpt.index",
            "after_12_steps.ckpt.data-00000-of-00001",
            "bert_config.json",
            "vocab.txt",
        ):
            shutil.copy(golden(f"model/{name}"), self.folder)

    @pytest.mark.slow
    def test_13_more_steps_match_the_original(self):
        stored = tf1_checkpoint.read_model(self.folder)
        losses, state = _continue_training(stored, 13)
        expected = golden_training.read_trajectory()["losses_before_each_step"]
        self.assertAllClose(losses, expected[12:], rtol=1e-4, atol=0)
        golden_training.assert_same_state(
            self, state, golden_training.read_checkpoint("after_25_steps.ckpt")
        )

    @pytest.mark.slow
    def test_model_directory_resumes_bit_for_bit(self):
        stored = tf1_checkpoint.read_model(self.folder)
        path = self.path("directory")
        os.mkdir(path)
        model_directory.write_model(path, stored)
        _, expected = _continue_training(stored, 3)
        _, state = _continue_training(model_directory.read_model(path), 3)
        self.assertEqual(state["global_step"], 15)
        self.assertAllClose(state, expected, rtol=0, atol=0)


if __name__ == "__main__":
    tf.test.main()

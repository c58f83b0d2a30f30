"""Tests for bert_tf.pretraining.setup."""

from unittest import mock

import tensorflow as tf

from bert_tf.distribute import devices
from bert_tf.distribute.batches import StepPlan
from bert_tf.pretraining import setup as training_setup
from tests.support import tiny_pretraining


class BuildTrainingTest(tf.test.TestCase):
    def _build(self, preferred_micro_batch=0, **flags):
        folder = self.create_tempdir().full_path
        config = tiny_pretraining.make_config(folder, **flags)
        return training_setup.build_training(
            config,
            tiny_pretraining.CONFIG,
            devices.prepare(config),
            preferred_micro_batch,
        )

    def test_accumulated_batches_make_one_step(self):
        setup = self._build(train_batch_size=4, gradient_accumulation_steps=2)
        self.assertEqual(setup.plan, StepPlan(8, 1, 4))
        self.assertEqual(setup.plan.num_micro_batches, 2)

    def test_micro_batch_is_of_use_or_stays_as_before(self):
        flags = {"train_batch_size": 12, "micro_batch_size": "auto"}
        with mock.patch.dict(training_setup._TOKENS_AT_ONCE, CPU=5 * 8):
            few = self._build(**flags)
            as_before = self._build(preferred_micro_batch=6, **flags)
        self.assertEqual(few.plan.micro_batch_size, 4)
        self.assertEqual(as_before.plan.micro_batch_size, 6)

    def test_flags_reach_the_model(self):
        setup = self._build(remat=True, xla="off", schedule_start_step=3)
        self.assertTrue(setup.model.bert.encoder.remat)
        self.assertFalse(setup.model.fuse)
        rates = [
            float(setup.optimizer.learning_rate_at(tf.constant(step)))
            for step in (3, 4)
        ]
        self.assertAllClose(rates, [0.0, 0.005])


if __name__ == "__main__":
    tf.test.main()

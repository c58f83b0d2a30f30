"""Tests for bert_tf.training.unpad: training without padding is the same."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.distribute.batches import StepPlan
from bert_tf.errors import UserError
from bert_tf.training import unpad as unpadding
from bert_tf.training.xla import Compilation
from tests.support import logical_devices
from tests.support.step_trainer import StepTrainer

logical_devices.make()

_COMPILED = (("fuse", True),)
_REMAT = (("fuse", True), ("remat", True))


def _train(num_steps, **options):
    """Returns the losses of a model that was trained for some steps."""
    trainer = StepTrainer(num_train_steps=60, **options)
    trainer.train(*[1] * num_steps)
    return [metrics["loss"] for metrics in trainer.metrics]


@functools.cache
def _padded(**options):
    return _train(4, **options)


@pytest.mark.slow
class TrainingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        {},
        {"devices": 2, "max_micro_batch_size": 2},
        {"model_arguments": _COMPILED},
        {"model_arguments": _REMAT},
        {"compilation": Compilation("on"), "max_micro_batch_size": 4},
    )
    def test_losses_are_those_of_padded_batches(self, **options):
        losses = _train(4, unpad=True, **options)
        self.assertAllClose(losses[:1], _padded()[:1], rtol=1e-6, atol=0)
        self.assertAllClose(losses, _padded(), rtol=1e-5, atol=0)

    def test_losses_of_many_steps(self):
        # At a rate that does not magnify the rounding of each step.
        losses = _train(50, unpad=True, learning_rate=0.005)
        expected = _train(50, learning_rate=0.005)
        self.assertAllClose(losses, expected, rtol=1e-4, atol=0)
        self.assertLess(losses[-1], 0.8 * losses[0])

    def test_bfloat16_is_as_close_as_other_micro_batches(self):
        padded = np.array(_padded(policy="mixed_bfloat16"))
        parts = _train(4, policy="mixed_bfloat16", max_micro_batch_size=2)
        losses = _train(4, policy="mixed_bfloat16", unpad=True)
        self.assertLessEqual(
            np.abs(losses - padded).max(),
            max(np.abs(parts - padded).max(), 1e-3 * padded.max()),
        )


class ChooseTest(tf.test.TestCase, parameterized.TestCase):
    def choose(self, flag, kind="CPU", is_faster=True, **values):
        return unpadding.choose(flag, kind, lambda: is_faster, **values)

    def test_auto_is_on_where_a_cpu_is_faster(self):
        self.assertTrue(self.choose("auto"))
        self.assertFalse(self.choose("auto", is_faster=False))
        # Not measured there.
        self.assertFalse(self.choose("auto", "GPU"))
        self.assertFalse(self.choose("auto", "TPU"))

    def test_flags_override_the_device(self):
        self.assertTrue(self.choose("on", "GPU", is_faster=False))
        self.assertFalse(self.choose("off"))

    @parameterized.parameters(True, False)
    def test_auto_keeps_the_choice_of_the_checkpoint(self, stored):
        chosen = self.choose("auto", is_faster=not stored, stored=stored)
        self.assertEqual(chosen, stored)

    def test_padding_is_computed_where_its_outputs_are_read(self):
        self.assertFalse(self.choose("auto", reads_padding=True))
        with self.assertRaisesRegex(UserError, "drop --unpad"):
            self.choose("on", reads_padding=True)

    def test_a_tpu_computes_padding(self):
        self.assertFalse(self.choose("auto", "TPU", stored=True))
        with self.assertRaisesRegex(UserError, "A TPU runs programs for one"):
            self.choose("on", "TPU")

    @parameterized.parameters(
        (0.82, 1 << 20, True), (0.99, 1 << 20, False), (0.82, 1 << 10, False)
    )
    def test_pays_for_much_padding_in_large_batches(self, share, size, pays):
        self.assertEqual(unpadding.pays(share, size), pays)

    def test_log_gives_the_number_of_programs(self):
        with self.assertLogs(level="INFO") as logs:
            unpadding.token_finder(StepPlan(32, 2, 8), [128])
        (line,) = logs.output
        self.assertIn("8 examples has a multiple of 32 rows", line)
        self.assertIn("at most 32 numbers of rows", line)
        self.assertIn("at most 32 pairs of length and rows", line)


if __name__ == "__main__":
    tf.test.main()

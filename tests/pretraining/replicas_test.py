"""Tests that a step does not depend on the number of devices.

Other splits round differently, so trajectories agree within a tolerance. The
rate is small because Adam turns even tiny differences into whole steps.
"""

import functools

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.support import logical_devices
from tests.support.step_trainer import StepTrainer

logical_devices.make()

_CALLS = (1, 4, 15, 30)
# Its gradient is only rounding, so the values of two runs may differ.
_WITHOUT_GRADIENT = "/key/bias"


def _train(**options):
    return StepTrainer(learning_rate=1e-3, num_train_steps=60, **options).train(
        *_CALLS
    )


@functools.cache
def _one_device(**options):
    return _train(**options)


class _TestCase(tf.test.TestCase, parameterized.TestCase):
    def assert_same_run(self, received, expected, tolerance=1e-5):
        self.assertAllClose(
            received.metrics, expected.metrics, tolerance, tolerance
        )
        state = expected.state()
        for name, value in received.state().items():
            if _WITHOUT_GRADIENT not in name:
                self.assertAllClose(
                    value, state[name], tolerance, tolerance, name
                )


@pytest.mark.slow
class FewStepsTest(_TestCase):
    def test_clips_the_gradient_of_all_devices_together(self):
        options = {
            "batch_size": 7,
            "optimizer": "lamb",
            "learning_rate": 1e-3,
            "weight_scale": 1.0,
        }
        expected = StepTrainer(**options).train(1, 4)
        # Norms over 1 are clipped; clipping each device's part would differ.
        for metrics in expected.metrics:
            self.assertGreater(metrics["grad_norm"], 2.0)
        received = StepTrainer(devices=2, **options).train(1, 4)
        self.assert_same_run(received, expected, 1e-4)


@pytest.mark.thorough
class FiftyStepsTest(_TestCase):
    # Devices, rows of a micro-batch (0 means all), and optimizer.
    @parameterized.parameters(
        (1, 2, "bert_adam"),
        (2, 0, "lamb"),
        (4, 0, "bert_adam"),
        (4, 1, "lamb"),
    )
    def test_trajectory_equals_one_device(
        self, devices, max_micro_batch_size, optimizer
    ):
        options = {"optimizer": optimizer, "dropout": 0.0}
        received = _train(
            devices=devices,
            max_micro_batch_size=max_micro_batch_size,
            **options,
        )
        self.assertEqual(received.training_step.global_step, 50)
        self.assert_same_run(received, _one_device(**options))


if __name__ == "__main__":
    tf.test.main()

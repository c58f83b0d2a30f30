"""Tests for bert_tf.training.xla."""

from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.training import xla
from bert_tf.training.step import TrainingStep
from bert_tf.training.xla import Compilation
from tests.support import logical_devices
from tests.support.step_trainer import StepTrainer
from tests.support.task_trainer import TASKS
from tests.support.task_trainer import TaskTrainer

logical_devices.make()

# Their gradient is only rounding, which Adam turns into whole steps: softmax
# does not change when the same number is added to all of its arguments.
_WITHOUT_GRADIENT = (
    "/key/bias",
    "cls/multiple_choice/output_bias",
    "cls/squad/output_bias",
)


def _graphs_of_steps():
    """Patches the training step to collect the graphs of a device's step."""
    graphs = []
    original = TrainingStep._replica_gradients

    def compute(self, *args):
        graphs.append(tf.compat.v1.get_default_graph())
        return original(self, *args)

    patch = mock.patch.object(TrainingStep, "_replica_gradients", compute)
    return patch, graphs


class ChooseTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("off", "CPU", "off"),
        ("auto", "CPU", "chains"),
        ("on", "CPU", "step"),
        ("auto", "GPU", "step"),
        ("on", "GPU", "step"),
        ("auto", "TPU", "step"),
        ("on", "TPU", "step"),
    )
    def test_chooses_by_flag_and_device(self, flag, kind, expected):
        self.assertEqual(xla.choose(flag, kind), expected)

    def test_a_deterministic_gpu_compiles_the_step_only_on_demand(self):
        self.assertEqual(xla.choose("auto", "GPU", True), "chains")
        self.assertEqual(xla.choose("on", "GPU", True), "step")

    def test_a_tpu_refuses_xla_off(self):
        with self.assertRaisesRegex(UserError, "--xla=off"):
            xla.choose("off", "TPU")

    @parameterized.parameters(
        ("on", 0, 4), ("on", 2, 0), ("auto", 0, 0), ("off", 0, 0)
    )
    def test_a_compiled_step_has_few_lengths(self, flag, buckets, expected):
        self.assertEqual(xla.max_lengths(flag, "CPU", True, buckets), expected)
        self.assertEqual(xla.max_lengths("auto", "GPU", False, 0), 4)


class _TestCase(tf.test.TestCase, parameterized.TestCase):
    def assert_same_weights(self, received, expected):
        for name, value in expected.items():
            if not any(part in name for part in _WITHOUT_GRADIENT):
                # Adam amplifies small differences: 1.3e-5 was measured.
                self.assertAllClose(received[name], value, 3e-5, 3e-5, name)

    def assert_compiles(self, graphs):
        """Checks that nothing in a step has an unknown shape or a string."""
        self.assertNotEmpty(graphs)
        for graph in graphs:
            # Gradients compute the axes to sum over, which XLA knows when it
            # compiles.
            tensors = [
                tensor
                for op in graph.get_operations()
                if not op.name.startswith("gradient_tape/")
                for tensor in op.outputs
            ]
            self.assertNotEmpty(tensors)
            for tensor in tensors:
                self.assertNotEqual(tensor.dtype, tf.string, tensor.name)
                self.assertTrue(
                    tensor.shape.is_fully_defined(),
                    f"{tensor.name} {tensor.shape}",
                )


@pytest.mark.slow
class PretrainingTest(_TestCase):
    def _train(self, flag, **options):
        options["model_arguments"] = {"fuse": flag != "off"}
        trainer = StepTrainer(
            compilation=Compilation(flag), learning_rate=1e-3, **options
        )
        return trainer.train(1, 1, 1)

    def _compare(self, tolerance=1e-5, **options):
        """Trains with and without XLA; returns both trainers."""
        expected = self._train("off", **options)
        self.assertEqual(
            expected.training_step.compiled, "XLA (--xla=off, CPU): nothing."
        )
        patch, graphs = _graphs_of_steps()
        with patch:
            received = self._train("on", **options)
        self.assertIn("a device (1 program)", received.training_step.compiled)
        self.assertIn("updates of the weights", received.training_step.compiled)
        self.assert_compiles(graphs)
        self.assertAllClose(
            received.metrics, expected.metrics, tolerance, tolerance
        )
        return received, expected

    def test_compiled_steps_are_the_same_steps(self):
        received, expected = self._compare()
        self.assert_same_weights(received.state(), expected.state())

    @pytest.mark.thorough
    def test_with_micro_batches(self):
        received, expected = self._compare(max_micro_batch_size=2)
        self.assert_same_weights(received.state(), expected.state())

    def test_logical_devices_of_a_cpu_are_refused(self):
        with self.assertRaisesRegex(UserError, "for 2 logical devices"):
            self._train("on", devices=2)

    @parameterized.parameters("mixed_float16", "mixed_bfloat16")
    @pytest.mark.thorough
    def test_in_half_precision(self, policy):
        # XLA keeps some intermediate values in float32.
        self._compare(2e-2, policy=policy)


class TasksTest(_TestCase):
    # Taggers with LSTMs do what other taggers do, and more.
    @parameterized.parameters(*sorted(TASKS.keys() - {"tagging"}))
    @pytest.mark.thorough
    def test_every_task_has_a_program_for_each_length(self, name):
        expected = TaskTrainer(name, "off")
        patch, graphs = _graphs_of_steps()
        with patch:
            received = TaskTrainer(name, "on")
        self.assertLen(received.row_shapes, 2)
        self.assertLen(graphs, 2)
        self.assertIn("a device (2 programs)", received.training_step.compiled)
        self.assert_compiles(graphs)
        self.assertAllClose(received.losses, expected.losses, 1e-5, 1e-5)
        self.assert_same_weights(received.weights(), expected.weights())


if __name__ == "__main__":
    tf.test.main()

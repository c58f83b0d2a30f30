"""Tests for bert_tf.distribute.batches."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.distribute import batches as batches_lib
from bert_tf.distribute import devices as device_setup
from bert_tf.distribute.batches import StepPlan
from tests.support import logical_devices

logical_devices.make()


def _numbers(batch_size):
    """Returns batches of the numbers from 1, with masks of ones."""
    dataset = tf.data.Dataset.range(1, 100).batch(
        batch_size, drop_remainder=True
    )
    return dataset.map(
        lambda row: {
            "row": row,
            "input_mask": tf.ones([batch_size, 3], tf.int32),
        }
    )


class StepPlanTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ((24,), 24, 1),
        ((24, 2, 4), 4, 3),
        # Two replicas get 5 and 4 of 9 rows; three get 11, 11 and 10 of 32.
        ((9, 2), 5, 1),
        ((32, 3, 4), 4, 3),
        # 10 rows, at most 8 at once, are 5 and 5: 8 and 2 would pad 6 rows.
        ((10, 1, 8), 5, 2),
        ((2, 4), 1, 1),
    )
    def test_rows_are_split_evenly(self, sizes, at_once, times):
        plan = StepPlan(*sizes)
        self.assertEqual(plan.micro_batch_size, at_once)
        self.assertEqual(plan.num_micro_batches, times)
        self.assertEqual(plan.per_replica, at_once * times)


class _Worker:
    """A fake strategy that has the rows of one worker, replica by replica."""

    def __init__(self, context):
        self._context = context

    def distribute_datasets_from_function(self, function):
        self.dataset = function(self._context)
        return self.dataset


class DistributeBatchesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(
        devices=(1, 2, 3, 4), batch_size=(2, 6, 7), max_micro_batch_size=(0, 2)
    )
    def test_each_row_goes_to_one_replica(
        self, devices, batch_size, max_micro_batch_size
    ):
        strategy = device_setup.build_strategy("mirrored", devices)
        plan = StepPlan(batch_size, devices, max_micro_batch_size)
        iterator = batches_lib.distribute_batches(
            strategy, _numbers(batch_size), plan
        )
        for step in range(3):
            batch = next(iterator)
            rows = strategy.experimental_local_results(batch["row"])
            masks = strategy.experimental_local_results(batch["input_mask"])
            weights = [
                batches_lib.example_weights({"input_mask": mask})
                for mask in masks
            ]
            self.assertLen(rows, devices)
            for part in rows:
                self.assertEqual(part.shape, [plan.per_replica])
            first = 1 + step * batch_size
            numbers = np.zeros(devices * plan.per_replica)
            numbers[:batch_size] = np.arange(first, first + batch_size)
            self.assertAllEqual(np.concatenate(rows), numbers)
            self.assertAllEqual(np.concatenate(weights), numbers > 0)

    @parameterized.product(
        workers=(2, 3, 5), replicas=(1, 2), batch_size=(2, 7)
    )
    def test_each_row_goes_to_one_worker(self, workers, replicas, batch_size):
        num_replicas = workers * replicas
        plan = StepPlan(batch_size, num_replicas)
        numbers = []
        for worker in range(workers):
            context = tf.distribute.InputContext(workers, worker, num_replicas)
            iterator = batches_lib.distribute_batches(
                _Worker(context), _numbers(batch_size), plan
            )
            for _ in range(replicas):
                part = next(iterator)
                self.assertEqual(part["row"].shape, [plan.per_replica])
                weights = batches_lib.example_weights(part)
                self.assertAllEqual(weights, part["row"] > 0)
                numbers += part["row"].numpy().tolist()
        blanks = [0] * (num_replicas * plan.per_replica - batch_size)
        self.assertEqual(numbers, [*range(1, batch_size + 1), *blanks])

    def test_finite_batches_end(self):
        strategy = device_setup.build_strategy("mirrored", 2)
        dataset = _numbers(6).take(2)
        batches = batches_lib.distribute_batches(
            strategy, dataset, StepPlan(6, 2), True
        )
        self.assertLen(list(batches), 2)

    def test_batches_start_no_thread_that_delays_the_end_of_a_run(self):
        worker = _Worker(tf.distribute.InputContext(1, 0, 1))
        batches_lib.distribute_batches(worker, _numbers(6), StepPlan(6))
        self.assertFalse(worker.dataset.options().autotune.enabled)


class ExampleWeightsTest(tf.test.TestCase):
    def test_rows_with_an_empty_mask_are_blank(self):
        mask = np.zeros([3, 2, 4], np.int32)
        mask[0, 1, 2] = 1
        mask[2] = 1
        self.assertAllEqual(
            batches_lib.example_weights({"input_mask": mask}), [1, 0, 1]
        )


if __name__ == "__main__":
    tf.test.main()

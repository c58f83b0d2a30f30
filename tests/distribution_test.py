"""Tests for bert_tf.distribution."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf import distribution
from bert_tf.errors import UserError
from tests import logical_devices

logical_devices.make_two()


class BuildStrategyTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("one_device", 0, tf.distribute.OneDeviceStrategy, 1),
        ("one_device", 1, tf.distribute.OneDeviceStrategy, 1),
        # Logical CPU devices are for tests; nobody means them by "auto".
        ("auto", 0, tf.distribute.OneDeviceStrategy, 1),
        ("mirrored", 0, tf.distribute.MirroredStrategy, 2),
        ("mirrored", 2, tf.distribute.MirroredStrategy, 2),
        ("mirrored", 1, tf.distribute.MirroredStrategy, 1),
    )
    def test_takes_the_devices_asked_for(self, name, count, kind, replicas):
        strategy = distribution.build_strategy(name, count)
        self.assertIsInstance(strategy, kind)
        self.assertEqual(strategy.num_replicas_in_sync, replicas)
        self.assertEqual(distribution.device_type(strategy), "CPU")

    @parameterized.parameters(
        ("mirrored", 5, "--num_gpus=5 asks for more.*2 CPU"),
        ("one_device", 2, "--distribution_strategy=mirrored"),
    )
    def test_refuses_devices_that_are_not_there(self, name, count, message):
        with self.assertRaisesRegex(UserError, message):
            distribution.build_strategy(name, count)

    def test_a_tpu_that_is_not_there_is_one_sentence(self):
        with self.assertRaisesRegex(UserError, "No TPU answers at --tpu=''"):
            distribution.build_strategy("tpu")


class DistributeTest(tf.test.TestCase):
    def test_each_replica_gets_its_rows_of_a_batch(self):
        dataset = tf.data.Dataset.range(24).batch(6, drop_remainder=True)
        dataset = dataset.map(lambda row: {"row": row})
        strategy = distribution.build_strategy("mirrored", 2)
        iterator = distribution.distribute(strategy, dataset, 6)
        for first in (0, 6, 12):
            parts = strategy.experimental_local_results(next(iterator)["row"])
            self.assertAllEqual(parts[0], np.arange(first, first + 3))
            self.assertAllEqual(parts[1], np.arange(first + 3, first + 6))

    def test_one_device_gets_whole_batches_of_a_known_shape(self):
        dataset = tf.data.Dataset.range(24).batch(6, drop_remainder=True)
        dataset = dataset.map(lambda row: {"row": row})
        strategy = distribution.build_strategy("one_device")
        iterator = distribution.distribute(strategy, dataset, 6)
        self.assertEqual(iterator.element_spec["row"].shape, [6])
        self.assertAllEqual(next(iterator)["row"], np.arange(6))


if __name__ == "__main__":
    tf.test.main()

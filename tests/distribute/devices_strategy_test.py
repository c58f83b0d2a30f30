"""Tests for building the strategy in bert_tf.distribute.devices."""

import urllib.error
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.distribute import devices as device_setup
from bert_tf.errors import UserError
from tests.support import logical_devices

logical_devices.make()


class BuildStrategyTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("one_device", 0, tf.distribute.OneDeviceStrategy, 1),
        ("one_device", 1, tf.distribute.OneDeviceStrategy, 1),
        # Logical CPU devices are for tests; "auto" does not use them.
        ("auto", 0, tf.distribute.OneDeviceStrategy, 1),
        ("mirrored", 0, tf.distribute.MirroredStrategy, 4),
        ("mirrored", 2, tf.distribute.MirroredStrategy, 2),
        ("mirrored", 1, tf.distribute.MirroredStrategy, 1),
        # A cluster of one worker.
        ("multi_worker_mirrored", 0, tf.distribute.OneDeviceStrategy, 1),
    )
    def test_uses_the_requested_devices(self, name, count, kind, replicas):
        strategy = device_setup.build_strategy(name, count)
        self.assertIsInstance(strategy, kind)
        self.assertEqual(strategy.num_replicas_in_sync, replicas)
        self.assertEqual(device_setup.device_type(strategy), "CPU")

    @parameterized.parameters(
        ("mirrored", 5, "--num_gpus=5 is more.*4 CPU"),
        ("one_device", 2, "--distribution_strategy=mirrored"),
        ("auto", 5, "4 CPU. To split.*--distribution_strategy=mirrored"),
    )
    def test_refuses_missing_devices(self, name, count, message):
        with self.assertRaisesRegex(UserError, message):
            device_setup.build_strategy(name, count)

    def test_a_missing_tpu_is_an_error(self):
        with self.assertRaisesRegex(UserError, "No TPU answers at --tpu=''"):
            device_setup.build_strategy("tpu")

    def test_an_unknown_tpu_address_is_an_error(self):
        resolver = tf.distribute.cluster_resolver
        unknown = urllib.error.URLError("Name or service not known")
        with mock.patch.object(
            resolver, "TPUClusterResolver", side_effect=unknown
        ):
            with self.assertRaisesRegex(
                UserError, "at --tpu='my-slice' .*not known.*; give its name"
            ):
                device_setup.build_strategy("tpu", tpu="my-slice")


if __name__ == "__main__":
    tf.test.main()

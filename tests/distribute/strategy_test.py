"""Tests for bert_tf.distribute.strategy."""

import urllib.error
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.distribute import strategy as strategies
from bert_tf.distribute.cluster import Cluster
from bert_tf.errors import UserError
from tests.support import logical_devices

logical_devices.make()


class BuildStrategyTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("one_device", 0, tf.distribute.OneDeviceStrategy, 1),
        ("one_device", 1, tf.distribute.OneDeviceStrategy, 1),
        # Logical CPU devices are for tests; nobody means them by "auto".
        ("auto", 0, tf.distribute.OneDeviceStrategy, 1),
        ("mirrored", 0, tf.distribute.MirroredStrategy, 4),
        ("mirrored", 2, tf.distribute.MirroredStrategy, 2),
        ("mirrored", 1, tf.distribute.MirroredStrategy, 1),
        # The only one of its workers.
        ("multi_worker_mirrored", 0, tf.distribute.OneDeviceStrategy, 1),
    )
    def test_takes_the_devices_asked_for(self, name, count, kind, replicas):
        strategy = strategies.build(name, count)
        self.assertIsInstance(strategy, kind)
        self.assertEqual(strategy.num_replicas_in_sync, replicas)
        self.assertEqual(strategies.device_type(strategy), "CPU")

    @parameterized.parameters(
        ("mirrored", 5, "--num_gpus=5 asks for more.*4 CPU"),
        ("one_device", 2, "--distribution_strategy=mirrored"),
    )
    def test_refuses_devices_that_are_not_there(self, name, count, message):
        with self.assertRaisesRegex(UserError, message):
            strategies.build(name, count)

    def test_refuses_devices_that_a_worker_has_not(self):
        cluster = Cluster(("a:1", "b:2"), 1)
        with self.assertRaisesRegex(UserError, r"worker 1 \(at b:2\) has"):
            strategies.build("auto", 2, cluster=cluster)

    def test_a_tpu_that_is_not_there_is_one_sentence(self):
        with self.assertRaisesRegex(UserError, "No TPU answers at --tpu=''"):
            strategies.build("tpu")

    def test_a_tpu_whose_service_is_not_there_is_one_sentence(self):
        resolver = tf.distribute.cluster_resolver
        unknown = urllib.error.URLError("Name or service not known")
        with mock.patch.object(
            resolver, "TPUClusterResolver", side_effect=unknown
        ):
            with self.assertRaisesRegex(
                UserError, "at --tpu='my-slice' .*not known.*; give its name"
            ):
                strategies.build("tpu", tpu="my-slice")


if __name__ == "__main__":
    tf.test.main()

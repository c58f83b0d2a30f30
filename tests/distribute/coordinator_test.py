"""Tests for bert_tf.distribute.coordinator with one worker."""

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.distribute import devices as device_setup
from bert_tf.distribute.cluster import Cluster
from bert_tf.distribute.coordinator import Coordinator
from bert_tf.errors import UserError
from tests.support import logical_devices

logical_devices.make()

_CLUSTER = Cluster(("a:1", "b:2", "c:3"), 0)


class SingleWorkerTest(tf.test.TestCase):
    def test_returns_its_own_values(self):
        coordinator = Coordinator(device_setup.build_strategy("one_device"))
        self.assertTrue(coordinator.is_chief)
        self.assertEqual(coordinator.index, 0)
        self.assertEqual(coordinator.num_workers, 1)
        coordinator.agree({"seed": 1}, "flags")
        coordinator.barrier("the end")
        self.assertEqual(coordinator.from_chief([1, "a"]), [1, "a"])
        self.assertEqual(coordinator.next_call(7, True), (7, True))


class _ChiefOfThree(Coordinator):
    """The chief of three workers, with fixed values of the others."""

    def __init__(self, others):
        super().__init__(tf.distribute.get_strategy(), _CLUSTER)
        self._others = others

    def _exchange(self, value):
        return [value, *self._others]


class AgreeTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ([{"a": 1, "b": [2]}] * 2, None),
        (
            [{"a": 1, "b": [2]}, {"a": 5, "b": [2]}],
            r"same flags, but worker 2 \(at c:3\).*: a is 5 there, and 1 on "
            "the chief; give",
        ),
        (
            [{"a": 1}, {"a": 1, "b": [2]}],
            r"worker 1 .*: b is nothing there, and \[2\] on the chief; give",
        ),
    )
    def test_names_worker_and_values_that_differ(self, others, message):
        coordinator = _ChiefOfThree(others)
        values = {"a": 1, "b": [2]}
        if message is None:
            coordinator.agree(values, "flags")
            return
        with self.assertRaisesRegex(UserError, message):
            coordinator.agree(values, "flags")


if __name__ == "__main__":
    tf.test.main()

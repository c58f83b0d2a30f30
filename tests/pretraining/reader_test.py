"""Tests for bert_tf.pretraining.reader."""

import dataclasses
from unittest import mock

import numpy as np
import tensorflow as tf

from bert_tf.data.records.repair import Budget
from bert_tf.distribute import devices as device_setup
from bert_tf.distribute import health as worker_health
from bert_tf.distribute.cluster import Cluster
from bert_tf.distribute.coordinator import Coordinator
from bert_tf.errors import UserError
from bert_tf.flags.devices import DeviceConfig
from bert_tf.pretraining import reader as pretraining_reader


class LeaveOutDamagedTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.devices = device_setup.prepare(DeviceConfig())
        self.source = mock.Mock()
        self.source.record_files = ["a.tfrecord", "b.tfrecord"]
        self.source.record_counts = np.array([7, 4])
        self.source.budget = Budget(3)
        self.source.explain.return_value = None

    def _leave_out(self, errors):
        """Runs an action that fails once for each error."""
        return pretraining_reader.leave_out_damaged(
            "training",
            mock.Mock(side_effect=[*errors, "done"]),
            self.source,
            self.devices,
            64,
        )

    def test_continues_while_records_can_be_repaired(self):
        error = tf.errors.DataLossError(None, None, "corrupted record")
        self.source.repair.return_value = True
        self.assertEqual(self._leave_out([error, error]), "done")
        self.source.repair.return_value = False
        with self.assertRaises(tf.errors.DataLossError):
            self._leave_out([error])
        self.source.explain.return_value = UserError("a.tfrecord is corrupt")
        with self.assertRaisesRegex(UserError, "a.tfrecord is corrupt"):
            self._leave_out([error])

    def test_damage_on_one_worker_ends_the_run(self):
        cluster = Cluster(("a:1", "b:1", "c:1"), 2)
        self.devices = device_setup.Devices(
            self.devices.strategy,
            "CPU",
            self.devices.precision,
            Coordinator(self.devices.strategy),
            cluster,
        )
        error = tf.errors.DataLossError(None, None, "corrupted record")
        with mock.patch.object(worker_health, "meet", return_value=[1]) as meet:
            with self.assertRaisesRegex(
                UserError, "that worker 1 .*can .corrupted record."
            ):
                self._leave_out([error])
        meet.assert_called_once_with(cluster, "training 0", mock.ANY)
        self.source.repair.assert_not_called()

    def test_workers_must_have_the_same_records(self):
        self.source.budget.spend("b.tfrecord", 3, 96, "a bad checksum")
        coordinator = mock.create_autospec(Coordinator, instance=True)
        self.devices = dataclasses.replace(
            self.devices, coordinator=coordinator
        )
        self.assertEqual(self._leave_out([]), "done")
        (values, _), _ = coordinator.agree.call_args
        self.assertEqual(
            values,
            {
                "the number of records in a.tfrecord": 7,
                "the number of records in b.tfrecord": 4,
                "record 3 of b.tfrecord": "a bad checksum",
            },
        )
        # The copies of damaged files are always removed.
        self.source.close.assert_called_once_with()
        coordinator.agree.side_effect = UserError("All workers must have")
        with self.assertRaisesRegex(UserError, "All workers must have"):
            self._leave_out([])

    def test_a_single_worker_does_not_wait(self):
        self.assertEqual(worker_health.meet(None, "training 0", 1000.0), [])


if __name__ == "__main__":
    tf.test.main()

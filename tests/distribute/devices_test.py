"""Tests for bert_tf.distribute.devices."""

import dataclasses
import faulthandler
import signal
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.distribute import devices as device_setup
from bert_tf.distribute.cluster import Cluster
from bert_tf.distribute.coordinator import Coordinator
from bert_tf.errors import UserError
from bert_tf.flags import options
from bert_tf.flags.groups import DeviceConfig
from bert_tf.flags.groups import TrainingDeviceConfig
from tests.support import worker_processes


@dataclasses.dataclass(frozen=True, kw_only=True)
class _TrainingFlags(TrainingDeviceConfig):
    do_train: bool = options.training(True, "Whether to train.")


class DevicesTest(tf.test.TestCase, parameterized.TestCase):
    def test_workers_must_use_the_same_precision(self):
        prepared = device_setup.prepare(DeviceConfig())
        coordinator = mock.create_autospec(Coordinator, instance=True)
        devices = device_setup.Devices(
            prepared.strategy, "CPU", prepared.precision, coordinator
        )
        with devices.together():
            (values, *_), _ = coordinator.agree.call_args
        # The precision chosen for --mixed_precision=auto.
        self.assertEqual(
            values, {"the device": "CPU", "the precision": "float32"}
        )
        coordinator.agree.side_effect = UserError("All workers must have")
        with self.assertRaisesRegex(UserError, "All workers must have"):
            with devices.together():
                self.fail("The block was entered.")

    def test_warns_of_flags_without_effect(self):
        flags = _TrainingFlags(
            tpu_name="mine", tensor_float_32=False, all_reduce_dtype="bfloat16"
        )
        self.addCleanup(
            tf.config.experimental.enable_tensor_float_32_execution,
            tf.config.experimental.tensor_float_32_execution_enabled(),
        )
        with self.assertLogs(level="WARNING") as logs:
            devices = device_setup.prepare(flags)
        self.assertEqual(devices.all_reduce_dtype, "bfloat16")
        for name in ("tpu_name", "tensor_float_32", "all_reduce_dtype"):
            self.assertIn(f"--{name}", "\n".join(logs.output))
        self.assertLen(logs.output, 3)
        self.assertFalse(
            tf.config.experimental.tensor_float_32_execution_enabled()
        )

    @parameterized.parameters(
        (None, "CPU", True),
        (None, "GPU", False),
        (None, "TPU", True),
        (True, "GPU", True),
        (False, "CPU", False),
    )
    def test_chooses_and_reports_determinism(self, flag, kind, expected):
        config = tf.config.experimental
        with (
            mock.patch.object(device_setup, "device_type", return_value=kind),
            mock.patch.object(config, "enable_op_determinism") as enable,
            self.assertLogs(level="INFO") as logs,
        ):
            devices = device_setup.prepare(DeviceConfig(deterministic=flag))
        self.assertEqual(devices.deterministic, expected)
        self.assertEqual(enable.called, expected)
        strategy, determinism = logs.output
        self.assertIn("1 " + kind + " (CPU:0)", strategy)
        self.assertEqual("are deterministic" in determinism, expected)
        self.assertIn("a run that resumes", determinism)

    def test_missing_devices_are_an_error_before_startup(self):
        hosts = worker_processes.free_hosts(2)
        flags = DeviceConfig(
            distribution_strategy="multi_worker_mirrored",
            worker_hosts=",".join(hosts),
            task_index=1,
            num_gpus=64,
        )
        with self.assertRaisesRegex(UserError, "--num_gpus=64 .*worker 1"):
            device_setup.prepare(flags)

    def test_connecting_has_a_timeout(self):
        before = signal.getsignal(signal.SIGTERM)
        handlers = []

        def connect(*_):
            limit.assert_called_once_with(180, exit=True, file=mock.ANY)
            handlers.append(signal.getsignal(signal.SIGTERM))
            raise UserError("Enough.")

        clusters = mock.Mock()
        clusters.find.return_value = Cluster(("a:1", "b:1"), 1)
        with (
            mock.patch.object(device_setup, "clusters", clusters),
            mock.patch.object(device_setup, "build_strategy", connect),
            mock.patch.object(device_setup, "_prefix_log"),
            mock.patch.object(faulthandler, "dump_traceback_later") as limit,
            mock.patch.object(faulthandler, "cancel_dump_traceback_later"),
            self.assertRaisesRegex(UserError, "Enough"),
        ):
            device_setup.prepare(DeviceConfig())
        self.assertEqual(handlers, [signal.SIG_DFL])
        self.assertEqual(signal.getsignal(signal.SIGTERM), before)


if __name__ == "__main__":
    tf.test.main()

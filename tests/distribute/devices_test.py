"""Tests for bert_tf.distribute.devices."""

import dataclasses
import faulthandler
import os
import signal
import urllib.error
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.distribute import devices as device_setup
from bert_tf.distribute import packed_weights
from bert_tf.distribute.cluster import Cluster
from bert_tf.distribute.coordinator import Coordinator
from bert_tf.errors import UserError
from bert_tf.flags import options
from bert_tf.flags.groups import DeviceConfig
from bert_tf.flags.groups import TrainingDeviceConfig
from tests.support import logical_devices
from tests.support import worker_processes


@dataclasses.dataclass(frozen=True, kw_only=True)
class _TrainingFlags(TrainingDeviceConfig):
    do_train: bool = options.training("Whether to train.", True)


class DevicesTest(tf.test.TestCase, parameterized.TestCase):
    def test_workers_must_use_the_same_precision(self):
        prepared = device_setup.prepare(DeviceConfig())
        coordinator = mock.create_autospec(Coordinator, instance=True)
        devices = device_setup.Devices(
            prepared.strategy, "CPU", prepared.precision, coordinator
        )
        with devices.together():
            (values, *_), _ = coordinator.agree.call_args
        # Workers compare the precision that auto chose, not the flag.
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


logical_devices.make()


class BuildStrategyTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("one_device", 0, tf.distribute.OneDeviceStrategy, 1),
        ("one_device", 1, tf.distribute.OneDeviceStrategy, 1),
        # Logical CPU devices are for tests only, so "auto" takes one.
        ("auto", 0, tf.distribute.OneDeviceStrategy, 1),
        ("mirrored", 0, tf.distribute.MirroredStrategy, 4),
        ("mirrored", 2, tf.distribute.MirroredStrategy, 2),
        ("mirrored", 1, tf.distribute.MirroredStrategy, 1),
        # A cluster of one worker exchanges nothing, so one device is enough.
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


class PrecisionTest(tf.test.TestCase, parameterized.TestCase):
    def _with_cpu(self, flags):
        path = os.path.join(self.create_tempdir().full_path, "cpuinfo")
        with open(path, "w") as file:
            file.write(f"model name\t: X\nflags\t\t: fpu {flags}\n" * 2)
        self.enter_context(
            mock.patch.object(packed_weights, "_FLAGS_FILE", path)
        )

    @parameterized.parameters(
        ("float32", "avx512_bf16", "float32", "--mixed_precision=float32"),
        ("auto", "avx512f", "float32", "none of avx512_bf16, amx_bf16"),
        ("auto", "avx512_bf16", "bfloat16", "has avx512_bf16"),
        ("auto", "amx_tile amx_bf16", "bfloat16", "has amx_bf16"),
        ("bfloat16", "amx_bf16", "bfloat16", "--mixed_precision=bfloat16"),
        # Emulated bfloat16 is slow, so even a request gives float32.
        ("bfloat16", "avx512f", "float32", "would only emulate"),
        ("float16", "avx512f", "float16", "--mixed_precision=float16"),
    )
    def test_precision_follows_the_instructions_of_a_cpu(
        self, flag, flags, name, reason
    ):
        self._with_cpu(flags)
        chosen = device_setup.resolve_precision(flag, "CPU")
        self.assertEqual(chosen.name, name)
        self.assertIn(reason, chosen.reason)

    def test_without_cpu_flags_auto_is_float32(self):
        with mock.patch.object(packed_weights, "_FLAGS_FILE", "/nowhere"):
            self.assertEqual(
                device_setup.resolve_precision("auto", "CPU").name, "float32"
            )

    @parameterized.parameters(
        ((9, 0), "bfloat16"), ((7, 5), "float16"), ((6, 1), "float32")
    )
    def test_precision_follows_the_capability_of_a_gpu(self, capability, name):
        with mock.patch.object(
            device_setup, "_gpu_capability", return_value=capability
        ):
            self.assertEqual(
                device_setup.resolve_precision("auto", "GPU").name, name
            )

    def test_precision_is_bfloat16_on_a_tpu(self):
        self.assertEqual(
            device_setup.resolve_precision("auto", "TPU").name, "bfloat16"
        )


if __name__ == "__main__":
    tf.test.main()

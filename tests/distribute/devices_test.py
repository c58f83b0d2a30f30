"""Tests for bert_tf.distribute.devices."""

import dataclasses
import faulthandler
import os
import signal
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

    def test_warns_of_flags_of_training_without_training(self):
        flags = _TrainingFlags(
            do_train=False, xla="on", remat=True, all_reduce_dtype="bfloat16"
        )
        with self.assertLogs(level="WARNING") as logs:
            device_setup.prepare(flags)
        lines = [x for x in logs.output if "without --do_train" in x]
        self.assertLen(lines, 3)

    def test_warns_of_xla_on_a_tpu(self):
        with (
            mock.patch.object(device_setup, "device_type", return_value="TPU"),
            self.assertLogs(level="WARNING") as logs,
        ):
            device_setup.prepare(_TrainingFlags(xla="on"))
        (line,) = logs.output
        self.assertIn("--xla=on has no effect: a TPU only runs", line)

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

    def test_reports_how_float32_is_multiplied(self):
        enabled = "tensor_float_32_execution_enabled"
        for is_used, reported in ((True, "in TF32"), (False, "in float32")):
            with (
                mock.patch.object(
                    device_setup, "device_type", return_value="GPU"
                ),
                mock.patch(
                    "bert_tf.distribute.devices._gpu_capability",
                    return_value=(8, 0),
                ),
                mock.patch.object(
                    tf.config.experimental, enabled, return_value=is_used
                ),
                self.assertLogs(level="INFO") as logs,
            ):
                device_setup.prepare(DeviceConfig())
            self.assertIn(reported, logs.output[-1])

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
            handlers.append(signal.getsignal(signal.SIGTERM))
            raise UserError("Enough.")

        with (
            mock.patch.object(device_setup.clusters, "wait_for_all"),
            mock.patch.object(device_setup.clusters, "export"),
            mock.patch.object(device_setup, "_prefix_log"),
            mock.patch.object(
                device_setup.clusters,
                "find",
                return_value=Cluster(("a:1", "b:1"), 1),
            ),
            mock.patch.object(device_setup, "build_strategy", connect),
            mock.patch.object(
                faulthandler, "dump_traceback_later"
            ) as set_timeout,
            mock.patch.object(
                faulthandler, "cancel_dump_traceback_later"
            ) as cancel,
        ):
            with self.assertRaisesRegex(UserError, "Enough"):
                device_setup.prepare(DeviceConfig())
        set_timeout.assert_called_once_with(
            device_setup._SECONDS_TO_CONNECT, exit=True, file=mock.ANY
        )
        cancel.assert_called_once_with()
        self.assertEqual(handlers, [signal.SIG_DFL])
        self.assertEqual(signal.getsignal(signal.SIGTERM), before)


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
        # Never emulated, even on request.
        ("bfloat16", "avx512f", "float32", "would only emulate"),
        ("float16", "avx512f", "float16", "--mixed_precision=float16"),
    )
    def test_on_a_cpu(self, flag, flags, name, reason):
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
    def test_on_a_gpu(self, capability, name):
        with mock.patch.object(
            device_setup, "_gpu_capability", return_value=capability
        ):
            self.assertEqual(
                device_setup.resolve_precision("auto", "GPU").name, name
            )

    def test_on_a_tpu(self):
        self.assertEqual(
            device_setup.resolve_precision("auto", "TPU").name, "bfloat16"
        )

    def test_policies(self):
        policies = {
            name: device_setup.Precision(name, "").policy
            for name in ("float32", "bfloat16", "float16")
        }
        self.assertEqual(
            policies,
            {
                "float32": "float32",
                "bfloat16": "mixed_bfloat16",
                "float16": "mixed_float16",
            },
        )
        self.assertTrue(device_setup.Precision("float16", "").needs_loss_scale)
        self.assertFalse(
            device_setup.Precision("bfloat16", "").needs_loss_scale
        )


if __name__ == "__main__":
    tf.test.main()

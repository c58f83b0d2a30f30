"""Tests for choosing the precision in bert_tf.distribute.devices."""

import os
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.distribute import devices
from bert_tf.distribute import packed_weights


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
        chosen = devices.resolve_precision(flag, "CPU")
        self.assertEqual(chosen.name, name)
        self.assertIn(reason, chosen.reason)

    def test_without_cpu_flags_auto_is_float32(self):
        with mock.patch.object(packed_weights, "_FLAGS_FILE", "/nowhere"):
            self.assertEqual(
                devices.resolve_precision("auto", "CPU").name, "float32"
            )

    @parameterized.parameters(
        ((9, 0), "bfloat16"), ((7, 5), "float16"), ((6, 1), "float32")
    )
    def test_on_a_gpu(self, capability, name):
        with mock.patch.object(
            devices, "_gpu_capability", return_value=capability
        ):
            self.assertEqual(
                devices.resolve_precision("auto", "GPU").name, name
            )

    def test_on_a_tpu(self):
        self.assertEqual(
            devices.resolve_precision("auto", "TPU").name, "bfloat16"
        )

    def test_policies(self):
        policies = {
            name: devices.Precision(name, "").policy
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
        self.assertTrue(devices.Precision("float16", "").needs_loss_scale)
        self.assertFalse(devices.Precision("bfloat16", "").needs_loss_scale)


if __name__ == "__main__":
    tf.test.main()

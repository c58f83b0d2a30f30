"""Tests for bert_tf.training.available_memory."""

import os
import pathlib
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.training import available_memory


class AvailableMemoryTest(tf.test.TestCase, parameterized.TestCase):
    def test_available_memory_of_this_machine(self):
        self.assertBetween(available_memory.available_bytes("CPU"), 1e8, 1e14)
        self.assertIsNone(available_memory.available_bytes("TPU"))

    def test_cached_files_count_as_available(self):
        folder = pathlib.Path(self.create_tempdir().full_path)
        for name, value in (("max", 10**8), ("current", 9 * 10**7)):
            (folder / f"memory.{name}").write_text(f"{value}\n")
        limits = [(f"{folder}/memory.max", f"{folder}/memory.current")]
        with mock.patch.object(available_memory, "_CGROUP_LIMITS", limits):
            self.assertEqual(available_memory.available_bytes("CPU"), 10**7)
            (folder / "memory.stat").write_text(
                f"anon 5\ninactive_file {4 * 10**7}\n"
            )
            self.assertEqual(available_memory.available_bytes("CPU"), 5 * 10**7)

    def _free_gpu_memory(self, visible, script):
        """Returns the answer with a program `nvidia-smi`, and its arguments."""
        folder = pathlib.Path(self.create_tempdir().full_path)
        program = folder / "nvidia-smi"
        program.write_text(
            f'#!/bin/sh\necho "$@" >> {folder}/arguments\n{script}\n'
        )
        program.chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        with mock.patch.dict(
            os.environ, {"PATH": path, "CUDA_VISIBLE_DEVICES": visible}
        ):
            free = available_memory.available_bytes("GPU")
        return free, (folder / "arguments").read_text()

    @parameterized.parameters(
        ("8000, Disabled\n3000, [N/A]\n", 3000 << 20),
        ("[N/A], [N/A]\n", None),
        ("8000, Disabled\n9000, Enabled\n", None),
        ("", None),
    )
    def test_available_memory_of_gpus(self, answer, expected):
        free, arguments = self._free_gpu_memory("1, 2", f"printf '{answer}'")
        self.assertEqual(free, expected)
        self.assertIn("memory.free,mig.mode.current", arguments)
        self.assertIn("--id=1,2", arguments)

    def test_memory_of_an_unnamed_part_of_a_gpu_is_unknown(self):
        for visible in ("", "0"):
            free, _ = self._free_gpu_memory(visible, "echo 80000, Enabled")
            self.assertIsNone(free, visible)

    def test_available_memory_of_parts_of_gpus(self):
        # As nvidia-smi prints them, shortened.
        names = """
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4)
  MIG 1g.5gb      Device  1: (UUID: MIG-cba663e8-9bed)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-84e4f2a0)
"""
        memory = """
<gpu><mig_devices>
<mig_device><index>0</index><fb_memory_usage><total>20096 MiB</total>
<reserved>0 MiB</reserved><used>96 MiB</used><free>20000 MiB</free>
</fb_memory_usage><bar1_memory_usage><free>7 MiB</free></bar1_memory_usage>
</mig_device>
<mig_device><index>1</index><fb_memory_usage><total>4864 MiB</total>
<used>64 MiB</used><free>4800 MiB</free></fb_memory_usage></mig_device>
</mig_devices></gpu>
<gpu><mig_devices>None</mig_devices><fb_memory_usage><total>40960 MiB</total>
<free>40000 MiB</free></fb_memory_usage></gpu>
"""
        script = f"[ $1 = -L ] && echo '{names}' || echo '{memory}'"
        for visible, mebibytes in (
            ("MIG-cba663e8-9bed", 4800),
            ("MIG-c6d4f1ef-42e4, MIG-cba663e8-9bed", 4800),
            ("MIG-c6d4f1ef", 20000),
        ):
            free, _ = self._free_gpu_memory(visible, script)
            self.assertEqual(free, mebibytes << 20, visible)
        free, _ = self._free_gpu_memory("MIG-0", script)
        self.assertIsNone(free)


if __name__ == "__main__":
    tf.test.main()

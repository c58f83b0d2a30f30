"""Tests for bert_tf.training.memory."""

import dataclasses
import os
import pathlib
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import BertConfig
from bert_tf.training import memory
from bert_tf.training.memory import MemoryEstimate

_BASE = BertConfig(vocab_size=30522, type_vocab_size=2)


def _estimate(config=_BASE, length=128, predictions=20, **options):
    return memory.estimate(config, 110_106_428, length, predictions, **options)


class MemoryEstimateTest(tf.test.TestCase, parameterized.TestCase):
    def test_estimates_bert_base(self):
        estimate = _estimate()
        # Four float32 values per weight, and one more to sum gradients.
        self.assertAlmostEqual(estimate.fixed / 1e9, 1.76, delta=0.01)
        self.assertAlmostEqual(estimate.summed / 1e9, 0.44, delta=0.01)
        # Measured on a CPU: 16 sequences of 128 take 1.3 GB.
        self.assertBetween(16 * estimate.per_example, 1.3e9, 2.0e9)

    def test_grows_with_lengths_precision_and_layers(self):
        base = _estimate().per_example
        self.assertGreater(_estimate(length=512).per_example, 4 * base)
        self.assertGreater(_estimate(predictions=77).per_example, base)
        self.assertLess(_estimate(activation_bytes=2).per_example, base)
        self.assertLess(_estimate(remat=True).per_example, base / 3)
        self.assertEqual(
            base - _estimate(logits_copies=1).per_example, 3 * 4 * 20 * 30522
        )
        deeper = dataclasses.replace(_BASE, num_hidden_layers=24)
        self.assertGreater(_estimate(deeper).per_example, 1.5 * base)

    def test_total_counts_shared_memory_and_summed_gradients(self):
        estimate = MemoryEstimate(100, 10, summed=25, runtime=7)
        self.assertEqual(estimate.total(3), 137)
        self.assertEqual(estimate.total(3, 2), 162)
        estimate = dataclasses.replace(estimate, num_devices=2)
        self.assertEqual(estimate.total(3), 2 * 162)

    @parameterized.parameters(
        (10_000, 12),
        # 0.8 * 1,000 - 100 leaves room for 7 of 100 each.
        (1_000, 6),
        (500, 3),
        (400, 2),
        # One at a time even if it does not fit.
        (10, 1),
    )
    def test_largest_micro_batch_divides_and_fits(self, available, expected):
        estimate = MemoryEstimate(fixed=100, per_example=100)
        self.assertEqual(estimate.largest_micro_batch(12, available), expected)

    def test_micro_batches_have_a_useful_maximum(self):
        estimate = MemoryEstimate(fixed=100, per_example=100)
        self.assertEqual(estimate.largest_micro_batch(12, 10_000, most=5), 4)
        largest = memory.largest_useful_micro_batch
        self.assertEqual(largest("CPU", max_seq_length=128), 32)
        self.assertEqual(largest("CPU", max_seq_length=5000), 1)
        self.assertIsNone(largest("GPU", max_seq_length=128))

    def test_available_memory_of_this_machine(self):
        self.assertBetween(memory.available_bytes("CPU"), 1e8, 1e14)
        self.assertIsNone(memory.available_bytes("TPU"))

    def test_cached_files_count_as_available(self):
        folder = pathlib.Path(self.create_tempdir().full_path)
        for name, value in (("max", 10**8), ("current", 9 * 10**7)):
            (folder / f"memory.{name}").write_text(f"{value}\n")
        limits = [(f"{folder}/memory.max", f"{folder}/memory.current")]
        with mock.patch.object(memory, "_CGROUP_LIMITS", limits):
            self.assertEqual(memory.available_bytes("CPU"), 10**7)
            (folder / "memory.stat").write_text(
                f"anon 5\ninactive_file {4 * 10**7}\n"
            )
            self.assertEqual(memory.available_bytes("CPU"), 5 * 10**7)

    @parameterized.parameters(
        ("8000\n3000\n", 3000 << 20), ("[N/A]\n", None), ("", None)
    )
    def test_available_memory_of_a_gpu(self, answer, expected):
        folder = pathlib.Path(self.create_tempdir().full_path)
        program = folder / "nvidia-smi"
        program.write_text(
            f"#!/bin/sh\necho \"$@\" > {folder}/arguments\nprintf '{answer}'\n"
        )
        program.chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        with mock.patch.dict(
            os.environ, {"PATH": path, "CUDA_VISIBLE_DEVICES": "1,2"}
        ):
            self.assertEqual(memory.available_bytes("GPU"), expected)
        self.assertIn("--id=1,2", (folder / "arguments").read_text())


class PeakMeterTest(tf.test.TestCase):
    def test_measures_memory_taken_after_construction(self):
        meter = memory.PeakMeter("CPU", 1000)
        before = meter.peak()
        block = np.ones(200_000_000, np.int8)
        del block
        self.assertBetween(meter.peak() - before, 1.5e8, 3e8)
        self.assertIsNone(memory.PeakMeter("TPU", 1000).peak())


if __name__ == "__main__":
    tf.test.main()

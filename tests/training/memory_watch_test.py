"""Tests for bert_tf.training.memory_watch, estimates against measured peaks."""

import functools
import json
import subprocess
import sys
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import BertConfig
from bert_tf.distribute.batches import StepPlan
from bert_tf.training import losses
from bert_tf.training import memory
from bert_tf.training.memory_watch import MemoryWatch
from bert_tf.training.memory_watch import StepSizes

_SIZES = StepSizes(
    config=BertConfig(vocab_size=30522, type_vocab_size=2),
    num_weights=110_106_428,
    max_seq_length=128,
    max_predictions_per_seq=20,
    precision="float32",
    kind="GPU",
    num_devices=2,
    remat=False,
    compiles_step=False,
)
_OUT_OF_MEMORY = tf.errors.ResourceExhaustedError(
    None,
    None,
    "Graph execution error:\n\nDetected at node 'MatMul'\n"
    "OOM when allocating tensor with shape[64,512] and type float on /device:"
    "GPU:0 by allocator GPU_0_bfc\n\t [[{{node MatMul}}]]",
)


def _watch(free, **values):
    with mock.patch.object(memory, "available_bytes", return_value=free):
        plan = StepPlan(values.pop("batch_size", 256), 2)
        sizes = StepSizes(**(vars(_SIZES) | values))
        return MemoryWatch(sizes, plan)


class MemoryWatchTest(tf.test.TestCase, parameterized.TestCase):
    def test_logs_the_estimate(self):
        with self.assertLogs(level="INFO") as logs:
            _watch(60_000_000_000)
        (line,) = logs.output
        self.assertRegex(
            line,
            r"Memory of a step: about 1\d\.\d GB with 128 sequences.* 0\.0 GB "
            r"more while a checkpoint is written; available: 61\.3 GB\.",
        )

    def test_suggests_flags_if_it_does_not_fit(self):
        with (
            self.assertLogs(level="WARNING") as logs,
            mock.patch(
                "bert_tf.distribute.precision._gpu_capability",
                return_value=(8, 0),
            ),
        ):
            _watch(8_000_000_000)
        (line,) = logs.output
        self.assertRegex(
            line,
            r"does not fit; to reduce it: --micro_batch_size=32 \(\d\.\d GB\), "
            r"--remat \(\d\.\d GB\), --mixed_precision=bfloat16 \(\d+\.\d GB\)",
        )

    def test_explains_out_of_memory(self):
        watch = _watch(60_000_000_000, remat=True)
        error = watch.explain(_OUT_OF_MEMORY)
        self.assertRegex(
            str(error),
            r"Out of memory \(OOM when allocating tensor with shape\[64,512\].*"
            r"GPU_0_bfc\): a step of 128 sequences at once on a device was "
            r"estimated to take \d\.\d GB.*--micro_batch_size=64",
        )
        self.assertNotIn("\n", str(error))
        self.assertNotIn("--remat", str(error))

    @parameterized.parameters(
        tf.errors.ResourceExhaustedError(None, None, "x; No space left"),
        tf.errors.InvalidArgumentError(None, None, "OOM when allocating"),
    )
    def test_other_errors_have_no_explanation(self, error):
        self.assertIsNone(_watch(None).explain(error))

    def test_counts_the_copies_of_the_logits(self):
        def per_example(precision, overwrites):
            sizes = StepSizes(**(vars(_SIZES) | {"precision": precision}))
            with mock.patch.object(
                losses, "overwrites_logits", return_value=overwrites
            ):
                return sizes.estimate().per_example

        logits = 4 * _SIZES.max_predictions_per_seq * _SIZES.config.vocab_size
        for precision, more in {"float32": 3, "bfloat16": 2}.items():
            self.assertEqual(
                per_example(precision, False) - per_example(precision, True),
                more * logits,
            )

    def test_devices_of_a_cpu_share_its_memory(self):
        one = _SIZES
        self.assertEqual(one.sharing, 1)
        two = StepSizes(**(vars(_SIZES) | {"kind": "CPU"}))
        self.assertEqual(two.held, 2 * one.held)
        self.assertEqual(two.saving, one.held)
        self.assertGreater(two.estimate().total(8), 2 * one.estimate().total(8))


@functools.cache
def _measure(**values):
    """Returns the output of tests/support/memory_program.py."""
    values = {"num_layers": 8, "hidden_size": 128, "batch_size": 96} | values
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.support.memory_program",
            json.dumps(values),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return json.loads(process.stdout.splitlines()[-1])


_TWO_DEVICES = {"distribution_strategy": "mirrored", "num_gpus": 2}


@pytest.mark.thorough
class MeasuredTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        {},
        {"remat": True},
        {"num_layers": 4, "hidden_size": 512, "batch_size": 32},
        {"num_layers": 2, "vocab_size": 100_000},
        {"remat": True} | _TWO_DEVICES,
    )
    def test_peak_is_within_a_fifth_of_the_estimate(self, **values):
        numbers = _measure(**values)
        self.assertBetween(numbers["peak"] / numbers["estimated"], 1 / 1.2, 1.2)

    def test_remat_takes_less_memory_and_trains_the_same(self):
        kept, remat = _measure(), _measure(remat=True)
        self.assertEqual(remat["loss"], kept["loss"])
        self.assertEqual(remat["weights"], kept["weights"])
        self.assertGreater(
            kept["peak"] - kept["held"], 1.5 * (remat["peak"] - remat["held"])
        )

    def test_out_of_memory_names_estimate_and_flags(self):
        # An array of attention scores takes 137 GB, all others together far
        # less than the limit. So no other allocation fails: oneDNN and LLVM
        # abort the process if one of theirs does.
        error = _measure(
            num_layers=2,
            hidden_size=64,
            head_size=1,
            batch_size=32,
            max_seq_length=4096,
            limit=16_000_000_000,
        )["error"]
        self.assertRegex(
            error,
            r"^Out of memory \(OOM when allocating tensor with shape"
            r"\[32,64,4096,4096\]",
        )
        self.assertRegex(error, r"32 sequences.*estimated to take 8\d\d\.\d GB")
        self.assertRegex(error, r", 1\d\.\d GB available; to reduce it")
        self.assertRegex(error, r"--micro_batch_size=\d+ \(.*--remat \(")


if __name__ == "__main__":
    tf.test.main()

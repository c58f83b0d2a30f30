"""Tests for memory in training: its end, and what --remat saves."""

import functools
import json
import subprocess
import sys

import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.training import step as training_step


class OutOfMemoryTest(tf.test.TestCase, parameterized.TestCase):
    def test_names_reason_and_flags(self):
        error = tf.errors.ResourceExhaustedError(
            None,
            None,
            "Graph execution error:\n\nDetected at node 'MatMul'\n"
            "OOM when allocating tensor with shape[64,512] and type float on "
            "/device:GPU:0 by allocator GPU_0_bfc\n\t [[{{node MatMul}}]]",
        )
        text = str(training_step.explain_out_of_memory(error, 128))
        self.assertRegex(
            text,
            r"Out of memory \(OOM when allocating tensor with shape\[64,512\].*"
            r"GPU_0_bfc\) in a step of 128 .*--micro_batch_size=64, --remat",
        )
        self.assertNotIn("\n", text)
        one = str(training_step.explain_out_of_memory(error, 1))
        self.assertNotIn("--micro_batch_size", one)

    @parameterized.parameters(
        ("Failed to load CUBIN: CUDA_ERROR_OUT_OF_MEMORY: out of memory",) * 2,
        ("x: RESOURCE_EXHAUSTED: 9 bytes", "RESOURCE_EXHAUSTED: 9 bytes"),
    )
    def test_explains_out_of_memory_of_the_compiler(self, message, reason):
        for kind in (tf.errors.InternalError, tf.errors.UnknownError):
            error = training_step.explain_out_of_memory(
                kind(None, None, message), 8
            )
            reason = reason.removeprefix("Failed to load CUBIN: ")
            self.assertStartsWith(str(error), f"Out of memory ({reason}) ")

    @parameterized.parameters(
        tf.errors.ResourceExhaustedError(None, None, "x; No space left"),
        tf.errors.InvalidArgumentError(None, None, "OOM when allocating"),
        tf.errors.InternalError(
            None, None, "RESOURCE_EXHAUSTED: Shared memory size limit exceeded"
        ),
        tf.errors.UnknownError(None, None, "RESOURCE_EXHAUSTED: No space left"),
        tf.errors.InternalError(
            None, None, "RESOURCE_EXHAUSTED:\nShared memory size exceeded"
        ),
    )
    def test_other_errors_have_no_explanation(self, error):
        self.assertIsNone(training_step.explain_out_of_memory(error, 8))


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


@pytest.mark.thorough
class MeasuredTest(tf.test.TestCase):
    def test_remat_takes_less_memory_and_trains_the_same(self):
        kept, remat = _measure(), _measure(remat=True)
        self.assertEqual(remat["loss"], kept["loss"])
        self.assertEqual(remat["weights"], kept["weights"])
        self.assertGreater(kept["added"], 1.5 * remat["added"])

    def test_out_of_memory_is_one_sentence(self):
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


if __name__ == "__main__":
    tf.test.main()

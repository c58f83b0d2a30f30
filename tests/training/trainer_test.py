"""Tests for bert_tf.training.trainer."""

import itertools
import types
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.training import trainer
from bert_tf.training.checkpoints import CheckpointStore
from bert_tf.training.losses import PretrainingObjective
from tests.support import pretrain_case


def _need_memory_for(
    most_rows,
    is_short=lambda: True,
    error_class=MemoryError,
    message="out of memory, as a test wants it",
):
    """Patches the objective to run out of memory for more rows at once.

    Args:
      most_rows: The rows of a micro-batch for which memory suffices.
      is_short: Called in each larger micro-batch; false lets it pass.
      error_class: The class of the error.
      message: The message of the error.
    """
    compute_sums = PretrainingObjective.compute_sums

    def check():
        if is_short():
            raise error_class(message)

    def patched(self, outputs, rows):
        if rows["input_ids"].shape[0] > most_rows:
            with tf.control_dependencies([tf.py_function(check, [], [])]):
                outputs = tf.nest.map_structure(tf.identity, outputs)
        return compute_sums(self, outputs, rows)

    return mock.patch.object(PretrainingObjective, "compute_sums", patched)


# Compiling takes most of the time and changes nothing here, so skip it.
_FLAGS = {"train_batch_size": 8, "xla": "off"}


class CheckpointIntervalTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (10, 120, 100, False, True),
        (11, 120, 100, False, False),
        (30, 120, 1, True, True),
        (11, 120, 120, False, True),
        (11, 120, 120, True, False),
        (11, 0, 500, False, False),
    )
    def test_saves_by_steps_and_by_time(
        self, step, save_seconds, seconds, is_writing, expected
    ):
        stub = types.SimpleNamespace(
            _config=trainer.TrainerConfig(30, 1, 8, 9.5),
            _flags=types.SimpleNamespace(
                save_checkpoints_steps=10, save_checkpoints_secs=save_seconds
            ),
            _saved_at=1000.0,
            checkpoints=types.SimpleNamespace(is_writing=is_writing),
        )
        clock = mock.patch.object(
            trainer.time, "monotonic", lambda: 1000.0 + seconds
        )
        with clock:
            is_due = trainer.Trainer._checkpoint_is_due(stub, step)
        self.assertEqual(is_due, expected)


class OutOfMemoryTest(pretrain_case.PretrainCase):
    def _train(self, output_dir, **flags):
        """Returns the log and the last checkpoint of a run."""
        flags = _FLAGS | flags
        log = self.pretrain(output_dir=self.path(output_dir), **flags)
        return log, self._read(output_dir)

    def _train_small(self):
        """Returns the last checkpoint of a run in small micro-batches."""
        self.copy_run("small", **_FLAGS, micro_batch_size="2")
        return self._read("small")

    def _read(self, output_dir):
        store = CheckpointStore(self.path(output_dir), 1, writable=False)
        return store.restore_latest()

    def test_halves_the_micro_batch_and_trains_on(self):
        with _need_memory_for(2):
            log, received = self._train("short")
        lines = [line for line in log if "Training continues" in line]
        self.assertLen(lines, 2)
        self.assertRegex(lines[0], "Out of memory .out of memory, as a test.*")
        self.assertIn("from step 0 with micro-batches of 4", lines[0])
        self.assertIn("from step 0 with micro-batches of 2", lines[1])
        expected = self._train_small()
        self.assertEqual(received.step, 6)
        self.assertEqual(received.metadata["micro_batch_size"], 2)
        for name, value in expected.tensors.items():
            self.assertAllEqual(received.tensors[name], value, name)

    def test_no_step_is_lost_or_repeated(self):
        calls = itertools.count()
        # Memory runs out in the second step of a call of two. TensorFlow raises
        # an UnknownError for it, which the compiler might raise, too.
        error = (RuntimeError, "CUDA_ERROR_OUT_OF_MEMORY: out of memory")
        with _need_memory_for(4, lambda: next(calls) == 3, *error):
            log, received = self._train("short")
        (line,) = [line for line in log if "Training continues" in line]
        self.assertIn("from step 3 with micro-batches of 4", line)
        expected = self._train_small()
        self.assertEqual(received.step, 6)
        for name, value in expected.tensors.items():
            if "/key/bias" not in name:
                self.assertAllClose(
                    received.tensors[name], value, 1e-4, 1e-4, name
                )

    def test_ends_with_advice_where_nothing_is_left_to_halve(self):
        with _need_memory_for(0):
            with self.assertRaisesRegex(UserError, "a step of 1 sequences"):
                self._train("none", train_batch_size=2)


class PacerTest(tf.test.TestCase):
    def _run(self, seconds_per_step, last_step, intervals, step=0):
        """Returns the steps at which calls end, and the seconds of each."""
        now = 100.0
        ends, lengths = [], []
        with mock.patch.object(trainer.time, "monotonic", lambda: now):
            pacer = trainer.Pacer(last_step, intervals)
            while step < last_step:
                count = pacer.next_call(step)
                pacer.start()
                now += count * seconds_per_step(step)
                lengths.append(pacer.stop(count))
                step += count
                ends.append(step)
        return ends, lengths

    def test_ends_at_the_first_step_and_at_intervals(self):
        ends, _ = self._run(lambda step: 1e-4, 50, (20, 15))
        self.assertEqual(ends[0], 1)
        self.assertContainsSubset([15, 20, 30, 40, 45, 50], ends)

    def test_a_call_takes_at_most_ten_seconds(self):
        for seconds in (0.01, 0.3, 1.9, 4.0):
            ends, lengths = self._run(lambda _, s=seconds: s, 2000, (1000,))
            self.assertLessEqual(max(lengths), 10.0)
            # Calls must not be shorter than necessary once the pace is known.
            self.assertLess(len(ends), 12 + 2000 * seconds / 3.5)

    def test_ignores_the_time_of_compilation(self):
        ends, _ = self._run(
            lambda step: 60.0 if step == 0 else 0.001, 1000, (1000,)
        )
        self.assertLess(len(ends), 12)

    def test_resumes_between_two_intervals(self):
        ends, _ = self._run(lambda step: 1e-4, 30, (20,), step=13)
        self.assertContainsSubset([20, 30], ends)


if __name__ == "__main__":
    tf.test.main()

"""Tests for bert_tf.training.pacer."""

from unittest import mock

import tensorflow as tf

from bert_tf.training import pacer as pacer_lib


class PacerTest(tf.test.TestCase):
    def _run(self, seconds_per_step, last_step, intervals, step=0):
        """Returns the steps at which calls end, and the seconds of each."""
        now = 100.0
        ends, lengths = [], []
        with mock.patch.object(pacer_lib.time, "monotonic", lambda: now):
            pacer = pacer_lib.Pacer(last_step, intervals)
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
            # But no shorter than necessary, once the pace is measured.
            self.assertLess(len(ends), 12 + 2000 * seconds / 3.5)

    def test_slow_steps_run_one_by_one(self):
        ends, _ = self._run(lambda step: 30.0, 5, (1000,))
        self.assertEqual(ends, [1, 2, 3, 4, 5])

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

"""Tests for bert_tf.io.progress: bars on terminals and in files."""

from unittest import mock

import tensorflow as tf
import tqdm

from bert_tf.io import progress
from tests.support.streams import Stream


class RateTest(tf.test.TestCase):
    def test_leaves_out_calls_that_compile(self):
        rate = progress.Rate()
        values = []
        # Units and seconds; the first and the third call compile.
        calls = ((1, 30), (1, 2), (1, 20), (2, 6), (4, 10), (10, 20))
        for units, seconds in calls:
            rate.add(units, seconds)
            values.append(rate.value)
        expected = [None, None, 1 / 2, 3 / 8, 7 / 18, 17 / 38]
        self.assertEqual(values, expected)


class BarTest(tf.test.TestCase):
    def _bar(self, stream, *args, **kwargs):
        """Returns a bar whose clock is `self.now`."""
        self.now = 100.0
        for patch in (
            mock.patch("sys.stderr", stream),
            mock.patch.object(tqdm.std, "time", lambda: self.now),
        ):
            patch.start()
            self.addCleanup(patch.stop)
        return progress.bar(*args, **kwargs)

    def test_a_terminal_shows_whole_numbers_rate_and_remaining_time(self):
        stream = Stream(True)
        bar = self._bar(stream, 1560, "training", "step")
        self.now += 20.0  # Compilation.
        bar.move_to(1, None)
        last = stream.getvalue().split("\r")[-1]
        self.assertStartsWith(last, "training 1/1560 |")
        self.assertEndsWith(last, "| ?step/s, ? left")
        self.now += 10.0
        bar.set_postfix_str("loss 0.5", False)
        bar.move_to(1351, 135.0)
        last = stream.getvalue().split("\r")[-1]
        self.assertStartsWith(last, "training 1351/1560 |")
        self.assertEndsWith(last, "| 135.00step/s, 00:01 left, loss 0.5")

    def test_a_file_gets_a_line_every_ten_seconds(self):
        stream = Stream(False)
        bar = self._bar(stream, 200, "predicting", "row")
        for seconds, rows in ((1, 1), (8, 2), (4, 3), (1, 1), (19, 80)):
            self.now += seconds
            bar.update(rows)
        self.assertEqual(
            stream.getvalue(),
            "predicting: 6 of 200,  2.17s/row, 07:00 left\n"
            "predicting: 87 of 200,  2.93row/s, 00:38 left\n",
        )

    def test_units_of_an_earlier_run_are_no_part_of_the_rate(self):
        stream = Stream(False)
        bar = self._bar(stream, 200, "predicting", "row", initial=100)
        self.now += 20.0
        bar.update(40)
        self.assertEqual(
            stream.getvalue(),
            "predicting: 140 of 200,  2.00row/s, 00:30 left\n",
        )


if __name__ == "__main__":
    tf.test.main()

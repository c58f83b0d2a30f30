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

    def test_a_second_call_that_compiles_is_never_counted(self):
        rate = progress.Rate()
        values = []
        # The second call has several steps beside the program that it compiles.
        for units, seconds in ((1, 30), (10, 16), (10, 5), (8, 4), (2, 1)):
            rate.add(units, seconds)
            values.append(rate.value)
        self.assertEqual(values, [None, None, 2.0, 2.0, 2.0])

    def test_keeps_long_rows_and_follows_a_change(self):
        rate = progress.Rate()
        for seconds in [1, 1, 4] * 10:
            rate.add(1, seconds)
        self.assertEqual(rate.value, 29 / 59)
        for _ in range(100):
            rate.add(1, 8)
        self.assertEqual(rate.value, 1 / 8)


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

    def test_a_file_gets_no_line_twice(self):
        stream = Stream(False)
        bar = self._bar(stream, 200, "predicting", "row")
        for rows, what in ((0, "loading"), (0, "loading"), (80, "loading")):
            self.now += 20.0
            bar.set_postfix_str(what, refresh=False)
            bar.move_to(bar.n + rows, 4.0)
            bar.refresh()
        self.assertEqual(
            stream.getvalue(),
            "predicting: 0 of 200,  4.00row/s, 00:50 left, loading\n"
            "predicting: 80 of 200,  4.00row/s, 00:30 left, loading\n",
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

    def test_a_file_gets_no_line_of_what_is_short(self):
        stream = Stream(False)
        bar = self._bar(stream, 200, "predicting", "row")
        self.now += 9.0
        bar.update(200)
        bar.close()
        self.assertEqual(stream.getvalue(), "")


if __name__ == "__main__":
    tf.test.main()

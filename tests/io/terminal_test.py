"""Tests of log lines, noise and bars on terminals, and of train.log."""

import io
import logging as python_logging
import os
import re
import signal
import subprocess
import sys
from unittest import mock

import tensorflow as tf
import tqdm
from absl import logging
from absl.testing import flagsaver
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.io import progress
from bert_tf.io import terminal
from bert_tf.io import train_log
from tests.support.repository import ROOT


class Stream(io.StringIO):
    """Standard error, as a terminal or as a file."""

    def __init__(self, is_terminal):
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal


_PROGRAM = """
import sys
from bert_tf.io import terminal
terminal.drop_noise()
import tensorflow as tf

@tf.function(jit_compile=True)
def double(x):
    return x + x

double(tf.ones([3]))
sys.stderr.write("end of the program\\n")
sys.stderr.flush()
# TensorFlow aborts the process.
tf.expand_dims(tf.zeros([1] * 254), 0)
"""


class ShowLogTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        # tf.test.main sets this flag, which would log each line twice.
        self.enter_context(flagsaver.flagsaver(alsologtostderr=False))
        handler = logging.get_absl_handler()
        python_handler = handler.python_handler
        before = (
            logging.get_verbosity(),
            handler.level,
            python_handler.formatter,
            python_handler.stream,
            python_handler.filters[:],
            handler in python_logging.getLogger().handlers,
        )

        def restore():
            logging.set_verbosity(before[0])
            handler.setLevel(before[1])
            handler.setFormatter(before[2])
            python_handler.stream = before[3]
            python_handler.filters[:] = before[4]
            if not before[5]:
                python_logging.getLogger().removeHandler(handler)

        self.addCleanup(restore)

    def _log(self, verbosity, is_terminal=False):
        """Logs lines of each kind; returns the lines of standard error."""
        with mock.patch("sys.stderr", Stream(is_terminal)) as stream:
            terminal.show_log(verbosity)
            for shown in ("sometimes", "sometimes", "always"):
                logging.info("Step: %s", shown, extra={terminal.SHOWN: shown})
            logging.debug("Details.")
            terminal.detail("Hidden %s.", "numbers")
            python_logging.getLogger("matplotlib.font_manager").info("Fonts.")
            logging.info("Read %d rows.", 3)
            logging.warning("No labels.")
        text = stream.getvalue()
        times = re.findall(r"(?m)^\d\d:\d\d:\d\d ", text)
        self.assertLen(times, text.count("\n"))
        return re.sub(r"(?m)^[\d:]+ ", "", text).splitlines()

    @parameterized.parameters(
        (
            1,
            ["DEBUG: Details.", "Hidden numbers.", "Read 3 rows."]
            + ["WARNING: No labels."],
        ),
        (0, ["Read 3 rows.", "WARNING: No labels."]),
        (-1, ["WARNING: No labels."]),
        (-2, []),
    )
    def test_shows_the_lines_of_a_verbosity(self, verbosity, expected):
        self.assertEqual(self._log(verbosity, is_terminal=True), expected)

    def test_files_get_lines_of_steps_at_intervals(self):
        self.assertEqual(
            self._log(0)[:3],
            ["Step: sometimes", "Step: always", "Read 3 rows."],
        )

    @parameterized.parameters(
        (True, "one --two_three\n         four\n"),
        (False, "one --two_three four\n"),
    )
    def test_lines_break_at_words_on_a_terminal(self, is_terminal, expected):
        self.enter_context(mock.patch.dict(os.environ, COLUMNS="18"))
        with mock.patch("sys.stderr", Stream(is_terminal)):
            self.assertEqual(terminal.wrap("one --two_three four\n"), expected)
            table = "head\n" + "x " * 20
            self.assertEqual(terminal.wrap(table), table)

    def test_lines_appear_above_a_bar(self):
        with mock.patch("sys.stderr", Stream(True)) as stream:
            terminal.show_log(0)
            with progress.bar(46, "training", "step") as bar:
                bar.update(35)
                logging.info("Saved.")
        parts = stream.getvalue().split("\r")
        (line,) = [part for part in parts if "Saved" in part]
        self.assertRegex(line, r"^\d\d:\d\d:\d\d Saved\.\n$")
        self.assertIn("training 35/46 |", parts[-1])


class DropNoiseTest(tf.test.TestCase):
    def _run(self, **environment):
        """Returns the standard error of a program that aborts."""
        kept = os.environ | {"PYTHONPATH": str(ROOT)}
        kept.pop("TF_CPP_MIN_LOG_LEVEL", None)
        process = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env=kept | environment,
            capture_output=True,
            text=True,
        )
        self.assertEqual(process.returncode, -signal.SIGABRT)
        return process.stderr

    def test_nothing_but_errors_is_written(self):
        written = self._run()
        self.assertStartsWith(written, "end of the program\n")
        self.assertIn("Too many dimensions", written)

    def test_all_is_written_if_the_user_wants_it(self):
        written = self._run(TF_CPP_MIN_LOG_LEVEL="0")
        self.assertIn("Compiled cluster using XLA", written)


class RateTest(tf.test.TestCase):
    def test_leaves_out_calls_that_compile(self):
        rate = progress.Rate()
        values = []
        # (units, seconds): calls 1 and 3 compile, so they must not count.
        calls = ((1, 30), (1, 2), (1, 20), (2, 6), (4, 10), (10, 20))
        for units, seconds in calls:
            rate.add(units, seconds)
            values.append(rate.value)
        expected = [None, None, 1 / 2, 1 / 3, 2 / 5, 2 / 5]
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
        self.now += 20.0  # Compilation must not count.
        bar.move_to(1, None)
        last = stream.getvalue().split("\r")[-1]
        self.assertStartsWith(last, "training 1/1560 |")
        self.assertEndsWith(last, "| ?step/s, time left unknown")
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


class TrainLogTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = os.path.join(self.create_tempdir().full_path, "out")

    def _lines(self):
        path = os.path.join(self.folder, train_log.FILE)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        date = r"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "
        self.assertLen(re.findall(date, text), text.count("\n"))
        return re.sub(date, "", text).splitlines()

    def test_has_the_lines_from_the_start_and_those_of_a_second_run(self):
        for number in (1, 2):
            with train_log.recording():
                logging.info("Start %d.", number)
                train_log.open_in(self.folder)
                logging.warning("Middle %d.", number)
        expected = ["Start {0}.", "WARNING: Middle {0}."]
        self.assertEqual(
            self._lines(), [x.format(i) for i in (1, 2) for x in expected]
        )
        logging.info("After.")
        self.assertLen(self._lines(), 4)

    def test_ends_with_the_error(self):
        with self.assertRaises(UserError), train_log.recording():
            train_log.open_in(self.folder)
            raise UserError("Too few rows.")
        self.assertEqual(self._lines(), ["Too few rows."])

    def test_a_refused_run_leaves_nothing(self):
        with self.assertRaises(UserError), train_log.recording():
            logging.info("Start.")
            raise UserError("No such file.")
        self.assertFalse(os.path.exists(self.folder))

    def test_a_full_disk_ends_the_file_alone(self):
        os.makedirs(self.folder)
        os.symlink("/dev/full", os.path.join(self.folder, train_log.FILE))
        with self.assertLogs(level="INFO") as logs:
            with train_log.recording():
                train_log.open_in(self.folder)
                logging.info("First.")
                logging.info("Second.")
        first, end, second = logs.output
        self.assertEndsWith(first, "First.")
        self.assertRegex(end, "^ERROR.*train.log ends here: .*No space left")
        self.assertEndsWith(second, "Second.")


if __name__ == "__main__":
    tf.test.main()

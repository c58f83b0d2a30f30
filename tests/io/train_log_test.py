"""Tests for bert_tf.io.train_log."""

import os
import re

import tensorflow as tf
from absl import logging

from bert_tf.errors import UserError
from bert_tf.io import train_log


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

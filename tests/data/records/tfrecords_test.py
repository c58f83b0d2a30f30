import os

import tensorflow as tf
from absl.testing import parameterized

from bert_tf import features
from bert_tf.data.records import tfrecords
from bert_tf.errors import UserError


class CountRecordsTest(tf.test.TestCase, parameterized.TestCase):
    def _write(self, *sizes: int) -> str:
        path = f"{self.create_tempdir().full_path}/x.tfrecord"
        with tf.io.TFRecordWriter(path) as writer:
            for size in sizes:
                writer.write(os.urandom(size))
        return path

    @parameterized.parameters(0, 1, 3, 20000)
    def test_counts_what_tensorflow_wrote(self, number):
        sizes = [20 + index % 301 for index in range(number)]

        self.assertEqual(tfrecords.count_records(self._write(*sizes)), number)

    def test_counts_records_longer_than_one_read(self):
        path = self._write(10, 5 << 20, 30, 9 << 20, 7)

        self.assertEqual(tfrecords.count_records(path), 5)

    # Two records, of 16 + 20 and of 16 + 30 bytes.
    @parameterized.parameters((82 - 1, 1, 36), (36 + 5, 1, 36), (35, 0, 0))
    def test_truncated_file_is_rejected(self, size, record, offset):
        path = self._write(20, 30)
        os.truncate(path, size)

        place = f"record {record} at byte {offset}: .* truncated"
        with self.assertRaisesRegex(UserError, place):
            tfrecords.count_records(path)

    def test_corrupt_length_is_rejected(self):
        path = self._write(20, 30)
        with open(path, "r+b") as file:
            file.seek(36)
            file.write(b"\xff")

        with self.assertRaisesRegex(UserError, "record 1 at byte 36: its"):
            tfrecords.count_records(path)


class CheckFirstRecordsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ({"input_ids": [1.5, 2.0]}, "of type int64. Received: float_list"),
        ({"input_ids": [1, 2, 3]}, r"2 values.*Received: 3"),
        ({"other": [1]}, "`input_ids` is missing. Received: other"),
        (b"junk", "record 0: not a tf.train.Example"),
    )
    def test_names_what_is_wrong(self, record, message):
        path = f"{self.create_tempdir().full_path}/x.tfrecord"
        if isinstance(record, dict):
            ((name, values),) = record.items()
            kind = "float_list" if 1.5 in values else "int64_list"
            example = tf.train.Example()
            stored = example.features.feature[name]
            getattr(stored, kind).value.extend(values)
            record = example.SerializeToString()
        with tf.io.TFRecordWriter(path) as writer:
            writer.write(record)

        with self.assertRaisesRegex(UserError, message):
            tfrecords.check_first_records([path], {features.INPUT_IDS: 2})


if __name__ == "__main__":
    tf.test.main()

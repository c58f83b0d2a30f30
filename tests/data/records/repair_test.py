"""Tests for bert_tf.data.records.repair, and for how it is used."""

import os
import struct

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.data.generators.counts import FileCounts
from bert_tf.data.input_pipeline import PretrainingInput
from bert_tf.data.records import repair as record_repair
from bert_tf.data.records.repair import Budget
from bert_tf.distribute import batches as batches_lib
from bert_tf.errors import UserError
from bert_tf.features import PRETRAINING
from bert_tf.text.masking import DynamicMasking
from tests.support import record_files

_SIZES = {feature: feature.size(8, 3) for feature in PRETRAINING}
_COUNT = 12


def _offsets(path):
    """Where each record begins, and the end of the file."""
    with open(path, "rb") as file:
        contents = file.read()
    offsets = [0]
    while offsets[-1] < len(contents):
        (length,) = struct.unpack_from("<Q", contents, offsets[-1])
        offsets.append(offsets[-1] + length + 16)
    return offsets


def _flip(path, place, bits=255):
    with open(path, "r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ bits]))


class RecordRepairTestCase(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.path = self.write("x.tfrecord", range(1, 1 + _COUNT))
        self.offsets = _offsets(self.path)
        self.described = FileCounts(_COUNT, self.offsets[-1])
        self.copies = self.create_tempdir().full_path

    def write(self, name, numbers):
        return record_files.write(os.path.join(self.folder, name), numbers)

    def repair(self, most=4, described=True):
        """Returns the first ids of the records, 0 for blank ones."""
        self.budget = Budget(most)
        known = self.described if described is True else described
        path, count = record_repair.repair(
            self.path, known, _SIZES, self.copies, self.budget
        )
        records = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
        self.assertLen(records, count)
        found = []
        for record in records:
            values = tf.train.Example.FromString(record).features.feature
            number = values["input_ids"].int64_list.value[0]
            found.append(number)
            if number:
                self.assertEqual(
                    record,
                    record_files.serialize(record_files.make_features(number)),
                )
            else:
                for feature, size in _SIZES.items():
                    is_float = feature.stored_dtype == "float32"
                    kind = "float_list" if is_float else "int64_list"
                    value = getattr(values[feature.name], kind).value
                    self.assertEqual(list(value), [0] * size)
        return found

    def expected(self, *lost):
        return [0 if n in lost else n + 1 for n in range(_COUNT)]

    def left_out(self):
        return [(item.record, item.offset) for item in self.budget.left_out]


class RepairTest(RecordRepairTestCase):
    def test_an_intact_file_is_not_copied(self):
        path, count = record_repair.repair(
            self.path, self.described, _SIZES, self.copies, Budget(1)
        )
        self.assertEqual((path, count), (self.path, _COUNT))
        self.assertEmpty(os.listdir(self.copies))
        self.assertEmpty(record_repair.find_damaged([self.path], _SIZES))

    @parameterized.parameters(
        (0, 12, "checksum"),  # Contents.
        (5, 40, "checksum"),
        (11, -4, "checksum"),  # The checksum of the contents.
        (0, 0, "length of a record"),  # The length.
        (7, 1, "length of a record"),
        (7, 7, "length of a record"),
        (7, 9, "length of a record"),  # The checksum of the length.
        (11, 2, "no whole record follows"),
    )
    def test_one_byte(self, record, byte, reason):
        of = self.offsets[record + (byte < 0)]
        _flip(self.path, of + byte)
        self.assertEqual(
            record_repair.find_damaged([self.path], _SIZES), [self.path]
        )
        for described in (self.described, None):
            self.assertEqual(
                self.repair(described=described), self.expected(record)
            )
            self.assertEqual(self.left_out(), [(record, self.offsets[record])])
            self.assertIn(reason, self.budget.left_out[0].reason)

    def test_a_stretch_over_several_records(self):
        start, stop = self.offsets[3] + 30, self.offsets[6] + 5
        with open(self.path, "r+b") as file:
            file.seek(start)
            file.write(b"\xaa" * (stop - start))
        found = self.repair()
        self.assertEqual(found, self.expected(3, 4, 5, 6))
        self.assertLen(self.budget.left_out, 4)
        # Only record 3 has its length.
        self.assertEqual(
            self.left_out(),
            [(3, self.offsets[3])] + [(n, self.offsets[4]) for n in (4, 5, 6)],
        )

    @parameterized.parameters((7, 20), (7, 0), (11, 3), (9, 0))
    def test_a_truncated_file(self, record, byte):
        os.truncate(self.path, self.offsets[record] + byte)
        lost = range(record, _COUNT)
        self.assertEqual(self.repair(9), self.expected(*lost))
        self.assertEqual([r for r, _ in self.left_out()], list(lost))
        # Without a count, the end of the file is the end.
        found = self.repair(9, described=None)
        self.assertEqual(found[:record], self.expected()[:record])
        self.assertLen(found, record + (byte > 0))

    def test_several_faults_of_several_kinds(self):
        _flip(self.path, self.offsets[1] + 40)
        _flip(self.path, self.offsets[4] + 1)
        os.truncate(self.path, self.offsets[10] + 9)
        self.assertEqual(self.repair(), self.expected(1, 4, 10, 11))

    def test_records_of_another_kind(self):
        with tf.io.TFRecordWriter(self.path) as writer:
            for number in range(_COUNT):
                features = record_files.make_features(
                    number + 1, max_seq_length=9 if number == 2 else 8
                )
                if number == 6:
                    del features["segment_ids"]
                record = record_files.serialize(features)
                writer.write(b"no example" if number == 9 else record)
        self.described = None
        self.assertEqual(
            record_repair.find_damaged([self.path], _SIZES), [self.path]
        )
        self.assertEqual(self.repair(), self.expected(2, 6, 9))
        reasons = [item.reason for item in self.budget.left_out]
        self.assertRegex(reasons[0], "`input_ids` must have 8 values")
        self.assertRegex(reasons[1], "`segment_ids` is missing")
        self.assertRegex(reasons[2], "not a tf.train.Example")

    def test_error_names_the_record_beyond_the_budget(self):
        _flip(self.path, self.offsets[2] + 40)
        _flip(self.path, self.offsets[5] + 40)
        with self.assertRaisesRegex(
            UserError,
            f"x.tfrecord, record 5 at byte {self.offsets[5]}: .*checksum.*"
            "--max_corrupt_records=1",
        ):
            self.repair(1)
        self.repair(2)

    def test_rejects_a_file_without_records(self):
        with open(self.path, "w") as file:
            file.write("Not a record file, but some text.\n" * 9)
        with self.assertRaisesRegex(UserError, "is not a record file"):
            self.repair(described=None)
        with self.assertRaisesRegex(UserError, "is not the file that was"):
            self.described = FileCounts(0, 20)
            self.repair()


class PretrainingInputTest(RecordRepairTestCase):
    """Damage found at once or late gives the same stream."""

    def setUp(self):
        super().setUp()
        self.paths = [self.path]
        self.paths.append(self.write("y.tfrecord", range(20, 27)))
        self.paths.append(self.write("z.tfrecord", range(30, 35)))
        self.expected_stream = self.stream(self.input(0))

    def input(self, most, **options):
        return PretrainingInput(
            self.paths,
            8,
            3,
            4,
            seed=5,
            budget=Budget(most),
            files_per_group=2,
            records_per_block=6,
            **options,
        )

    def stream(self, source, start=0, num_batches=18):
        batches = list(source.dataset(start).take(num_batches))
        return {
            name: np.concatenate([batch[name] for batch in batches])
            for name in batches[0]
        }

    def assert_blank_where(self, lost, actual, start=0):
        """`lost` are first ids; everything else is as without damage."""
        is_lost = np.isin(self.expected_stream["input_ids"][:, 0], lost)
        self.assertGreater(is_lost.sum(), 2)
        for name, value in self.expected_stream.items():
            expected = value.copy()
            if name != "example_index":
                expected[is_lost] = 0
            self.assertAllEqual(actual[name], expected[start:])
        self.assertAllEqual(
            batches_lib.example_weights(actual), ~is_lost[start:]
        )

    @pytest.mark.slow
    def test_damage_found_while_reading(self):
        source = self.input(3)
        before = self.stream(source, num_batches=2)
        _flip(self.path, self.offsets[4] + 40)
        _flip(self.paths[1], _offsets(self.paths[1])[2] + 3)
        with self.assertRaises(tf.errors.DataLossError) as caught:
            self.stream(source)
        self.assertTrue(source.repair(caught.exception))
        after = self.stream(source, start=8, num_batches=16)
        self.assert_blank_where([5, 22], after, start=8)
        for name, value in before.items():
            self.assertAllEqual(value, self.expected_stream[name][:8])
        self.assertFalse(source.repair(caught.exception))
        other = tf.errors.ResourceExhaustedError(None, None, "no memory")
        self.assertFalse(source.repair(other))
        self.assertEqual(
            [(item.file, item.record) for item in source.budget.left_out],
            [(self.paths[0], 4), (self.paths[1], 2)],
        )

    def test_damage_found_at_the_start(self):
        # The counts of these files are in the cache of an earlier run.
        cache = os.path.join(self.folder, "counts.json")
        self.input(0, counts_file=cache)
        os.truncate(self.path, self.offsets[10] + 7)
        _flip(self.paths[2], 40)
        source = self.input(3, counts_file=cache)
        self.assertEqual(source.num_records, 24)
        self.assert_blank_where([11, 12, 30], self.stream(source))

    def test_all_workers_count_and_one_writes_the_cache(self):
        cache = os.path.join(self.folder, "counts.json")
        self.input(0, counts_file=cache, keep_counts=False)
        self.assertFalse(os.path.exists(cache))
        self.input(0, counts_file=cache)
        # Damaged since: same size, both ends as they were.
        _flip(self.path, self.offsets[6] + 1)
        sources = [
            self.input(3, counts_file=cache, keep_counts=keep)
            for keep in (True, False)
        ]
        self.assertEmpty(sources[0].budget.left_out)
        self.assertEqual(sources[0].budget.left_out, sources[1].budget.left_out)

    def test_skipped_records_of_earlier_processes_are_kept(self):
        first, second = Budget(3), Budget(3)
        first.spend("a.tfrecord", 3, 96, "cut short")
        first.spend("b.tfrecord", 3, 96, "cut short")
        second.spend("b.tfrecord", 3, 96, "cut short")
        second.spend("b.tfrecord", 5, 180, "a bad checksum")
        self.assertEqual(
            [
                (entry["file"], entry["record"])
                for entry in second.describe(first.describe())
            ],
            [("a.tfrecord", 3), ("b.tfrecord", 3), ("b.tfrecord", 5)],
        )

    def test_copies_are_removed(self):
        source = self.input(3)
        source.close()
        _flip(self.path, self.offsets[6] + 1)
        source = self.input(3)
        (copy,) = {*source._read_from} - {*source.record_files}
        self.assertTrue(os.path.exists(copy))
        source.close()
        self.assertFalse(os.path.exists(os.path.dirname(copy)))

    def test_damaged_lengths_without_a_count(self):
        _flip(self.path, self.offsets[6] + 1)
        source = self.input(1)
        self.assert_blank_where([7], self.stream(source))
        with self.assertRaisesRegex(UserError, "not the length of a record"):
            self.input(0)

    def test_nothing_is_skipped_without_a_budget(self):
        source = self.input(0)
        _flip(self.path, self.offsets[4] + 40)
        with self.assertRaises(tf.errors.DataLossError) as caught:
            self.stream(source)
        self.assertFalse(source.repair(caught.exception))
        self.assertRegex(
            str(source.explain(caught.exception)), "record 4, at byte"
        )

    def test_another_length_is_not_repaired(self):
        with self.assertRaisesRegex(
            UserError, "must have 9 values .*--max_seq_length=9"
        ):
            PretrainingInput(self.paths, 9, 3, 4, budget=Budget(5))

    @pytest.mark.slow
    def test_blank_records_get_no_masks(self):
        masking = DynamicMasking(
            vocab_size=50, cls_id=48, sep_id=49, mask_id=4, masked_lm_prob=0.4
        )
        clean = self.stream(self.input(0, masking=masking))
        _flip(self.path, self.offsets[4] + 40)
        source = self.input(1, masking=masking)
        with self.assertRaises(tf.errors.DataLossError) as caught:
            self.stream(source)
        source.repair(caught.exception)
        actual = self.stream(source)
        is_lost = self.expected_stream["input_ids"][:, 0] == 5
        for name, value in actual.items():
            if name != "example_index":
                self.assertFalse(value[is_lost].any(), name)
            self.assertAllEqual(value[~is_lost], clean[name][~is_lost])

    def test_an_evaluation_reads_blank_records_too(self):
        source = self.input(1)
        _flip(self.path, self.offsets[4] + 40)
        with self.assertRaises(tf.errors.DataLossError) as caught:
            list(source.evaluation_dataset())
        self.assertTrue(source.repair(caught.exception))
        first, second, *_ = source.evaluation_dataset()
        self.assertAllEqual(first["input_ids"][:, 0], [1, 2, 3, 4])
        self.assertAllEqual(second["input_ids"][:, 0], [0, 6, 7, 8])
        self.assertAllEqual(batches_lib.example_weights(second), [0.0, 1, 1, 1])


if __name__ == "__main__":
    tf.test.main()

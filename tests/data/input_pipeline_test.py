"""Tests for bert_tf.data.input_pipeline."""

import os
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.data import input_pipeline
from bert_tf.data.input_pipeline import PretrainingInput
from bert_tf.distribute import batches as batches_lib
from bert_tf.errors import UserError
from bert_tf.text.masking import DynamicMasking
from tests.support import files_case
from tests.support import record_files
from tests.support.shared_data import golden

_COUNTS = (5, 0, 1, 13, 7, 2, 9)
_TOTAL = sum(_COUNTS)
_MASKING = DynamicMasking(
    token_ids=tuple(range(50)),
    cls_id=48,
    sep_id=49,
    mask_id=4,
    masked_lm_prob=0.4,
)


def _expected_order(seed, epoch, files_per_group=3, records_per_block=6):
    """Returns an epoch's record numbers by simulating the three rules."""
    firsts = np.cumsum([0, *_COUNTS])
    order = input_pipeline.file_order(len(_COUNTS), seed, epoch).numpy()
    sequence = []
    for start in range(0, len(order), files_per_group):
        rows = [
            list(range(firsts[file], firsts[file + 1]))
            for file in order[start : start + files_per_group]
        ]
        while any(rows):
            sequence += [row.pop(0) for row in rows if row]
    permuted = []
    for block in range(-(-_TOTAL // records_per_block)):
        first = block * records_per_block
        part = sequence[first : first + records_per_block]
        places = input_pipeline.block_order(len(part), seed, epoch, block)
        permuted += [part[place] for place in places.numpy()]
    return permuted


class PretrainingInputTest(files_case.FolderCase):
    def setUp(self):
        super().setUp()
        self.enter_context(
            mock.patch.multiple(
                input_pipeline, FILES_PER_GROUP=3, RECORDS_PER_BLOCK=6
            )
        )
        self.files = []
        for index, count in enumerate(_COUNTS):
            first = sum(_COUNTS[:index])
            path = self.path(f"{index}.tfrecord")
            self.files.append(
                record_files.write(path, range(first, first + count))
            )

    def _input(self, seed=3, batch_size=4, **options):
        return PretrainingInput(self.files, 8, 3, batch_size, seed, **options)

    def test_order_is_the_documented_one_in_each_epoch(self):
        data = self._input()
        self.assertEqual(data.num_records, _TOTAL)
        batches = list(data.dataset().take(3 * _TOTAL // 4))
        numbers = np.concatenate([b["input_ids"][:, 0] for b in batches])
        index = np.concatenate([b["example_index"] for b in batches])
        self.assertAllEqual(index, np.arange(len(index)))
        for epoch in (0, 1):
            read = numbers[epoch * _TOTAL : (epoch + 1) * _TOTAL].tolist()
            self.assertCountEqual(read, range(_TOTAL))
            self.assertEqual(read, _expected_order(3, epoch))

    @parameterized.parameters((0, 3), (1, 2), (3, 1), (4, 0))
    def test_rows_are_those_of_the_whole_batch(self, first, count):
        data = self._input(masking=_MASKING)
        rows = data.dataset(6, (first, count))
        self.assertEqual(rows.element_spec["input_ids"].shape, [count, 8])
        self.assertEqual(rows.element_spec["example_index"].shape, [count])
        for whole, part in zip(
            data.dataset(6).take(3), rows.take(3), strict=True
        ):
            self.assertEqual(whole.keys(), part.keys())
            for name, value in whole.items():
                self.assertAllEqual(part[name], value[first : first + count])

    @parameterized.parameters(1, 6, 17, 36, 37, 74, 75 + 37 * 1000)
    def test_any_start_equals_skipping(self, start):
        epoch, position = divmod(start, _TOTAL)
        expected = _expected_order(3, epoch) + _expected_order(3, epoch + 1)
        batches = list(self._input().dataset(start).take(5))
        numbers = np.concatenate([b["input_ids"][:, 0] for b in batches])
        self.assertAllEqual(numbers, expected[position : position + 20])
        index = np.concatenate([b["example_index"] for b in batches])
        self.assertAllEqual(index, start + np.arange(20))

    def test_rows_have_values_dtypes_and_static_shapes(self):
        data = self._input()
        spec = data.dataset().element_spec
        self.assertEqual(spec["masked_lm_weights"].shape, [4, 3])
        self.assertEqual(spec["next_sentence_labels"].shape, [4, 1])
        self.assertEqual(spec["example_index"].dtype, tf.int64)
        (batch,) = data.dataset(17).take(1)
        for row in range(4):
            number = int(batch["input_ids"][row, 0])
            for name, value in record_files.make_features(number).items():
                self.assertAllEqual(batch[name][row], value)
                is_float = name == "masked_lm_weights"
                dtype = tf.float32 if is_float else tf.int32
                self.assertEqual(batch[name].dtype, dtype)

    def test_evaluation_reads_once_in_order_and_pads_with_blank_rows(self):
        dataset = self._input(batch_size=8).evaluation_dataset()
        batches = list(dataset)
        self.assertLen(batches, 5)
        self.assertEqual(dataset.cardinality(), 5)
        joined = {
            name: np.concatenate([batch[name] for batch in batches])
            for name in batches[0]
        }
        self.assertAllEqual(joined["input_ids"][:_TOTAL, 0], range(_TOTAL))
        self.assertAllEqual(joined["example_index"][:_TOTAL], range(_TOTAL))
        self.assertAllEqual(joined["example_index"][_TOTAL:], [-1] * 3)
        weights = batches_lib.example_weights(joined)
        self.assertAllEqual(weights, [1.0] * _TOTAL + [0.0] * 3)
        joined.pop("example_index")
        for value in joined.values():
            self.assertAllEqual(value[_TOTAL:], np.zeros_like(value[_TOTAL:]))

    def test_dynamic_masks_are_the_same_from_any_start(self):
        data = self._input(batch_size=_TOTAL, masking=_MASKING)
        first, second = data.dataset().take(2)
        (later,) = data.dataset(_TOTAL).take(1)
        for name, value in second.items():
            self.assertAllEqual(value, later[name])
        # Most records must have other masks in another epoch.
        rows = [np.argsort(b["example_index"]) for b in (first, second)]
        order = [_expected_order(3, epoch) for epoch in (0, 1)]
        differ = 0
        for number in range(_TOTAL):
            positions = [
                batch["masked_lm_positions"][row[places.index(number)]].numpy()
                for batch, row, places in zip(
                    (first, second), rows, order, strict=True
                )
            ]
            differ += not np.array_equal(*positions)
        self.assertGreater(differ, _TOTAL // 2)

    def test_golden_records_are_read_in_full(self):
        path = golden("pretraining_data/default.0-of-1.tfrecord")
        stored = [
            tf.train.Example.FromString(record).features.feature
            for record in tf.data.TFRecordDataset(path).as_numpy_iterator()
        ]
        data = PretrainingInput([path], 128, 20, 60)
        self.assertEqual(data.num_records, len(stored))
        batches = list(data.evaluation_dataset())
        for name, example in stored[0].items():
            kind = example.WhichOneof("kind")
            values = np.array([getattr(e[name], kind).value for e in stored])
            read = np.concatenate([batch[name] for batch in batches])
            self.assertAllEqual(read[: len(stored)], values)

    def test_rejects_files_without_records(self):
        with self.assertRaisesRegex(UserError, "no record"):
            PretrainingInput([self.files[1]], 8, 3, 4)

    def test_explains_corruption_found_while_reading(self):
        size = len(record_files.serialize(record_files.make_features(6))) + 16
        with tf.io.gfile.GFile(self.files[3], "rb") as file:
            contents = bytearray(file.read())
        contents[size + 40] ^= 255  # In the second record.
        with tf.io.gfile.GFile(self.files[3], "wb") as file:
            file.write(bytes(contents))
        data = self._input(batch_size=_TOTAL)
        with self.assertRaises(tf.errors.DataLossError) as caught:
            next(iter(data.dataset()))
        explained = data.explain(caught.exception)
        self.assertIsInstance(explained, UserError)
        self.assertRegex(str(explained), f"3.tfrecord.* 1 at byte {size}:")

    def test_explains_a_record_of_another_length_among_others(self):
        with tf.io.TFRecordWriter(self.files[3]) as writer:
            writer.write(record_files.serialize(record_files.make_features(1)))
            writer.write(
                record_files.serialize(record_files.make_features(2, 9))
            )
        data = self._input(batch_size=20)
        with self.assertRaises(tf.errors.InvalidArgumentError) as caught:
            for _ in data.dataset().take(2):
                pass
        explained = data.explain(caught.exception)
        self.assertRegex(str(explained), "record 1 .*must have 8 .*: 9")
        # Lack of memory is not the files' fault, so no file is named.
        other = tf.errors.ResourceExhaustedError(None, None, "no memory")
        self.assertIsNone(data.explain(other))


class DamagedRecordsTest(tf.test.TestCase):
    """Blank records replace damaged ones, so no other record moves."""

    def setUp(self):
        super().setUp()
        self.enter_context(
            mock.patch.multiple(
                input_pipeline, FILES_PER_GROUP=2, RECORDS_PER_BLOCK=6
            )
        )
        folder = self.create_tempdir().full_path
        self.paths = [
            record_files.write(os.path.join(folder, f"{name}.tfrecord"), ids)
            for name, ids in (
                ("x", range(1, 13)),
                ("y", range(20, 27)),
                ("z", range(30, 35)),
            )
        ]
        self.intact = self._read(self._input(0))

    def _input(self, most, **options):
        return PretrainingInput(
            self.paths,
            *(8, 3, 4),
            seed=5,
            max_corrupt=most,
            **options,
        )

    def _read(self, source):
        batches = list(source.dataset().take(18))
        return {
            name: np.concatenate([batch[name] for batch in batches])
            for name in batches[0]
        }

    def _damage(self):
        """Damages three records; returns their first ids."""
        record_files.damage(self.paths[0], 4)
        record_files.damage(self.paths[0], 11)
        record_files.damage(self.paths[2], 0)
        return [5, 12, 30]

    def test_others_keep_their_places(self):
        is_lost = np.isin(self.intact["input_ids"][:, 0], self._damage())
        source = self._input(3)
        self.assertEqual(
            [(record.path, record.number) for record in source.skipped],
            [(self.paths[0], 4), (self.paths[0], 11), (self.paths[2], 0)],
        )
        actual = self._read(source)
        for name, value in self.intact.items():
            expected = value.copy()
            if name != "example_index":
                expected[is_lost] = 0
            self.assertAllEqual(actual[name], expected)
        self.assertAllEqual(batches_lib.example_weights(actual), ~is_lost)
        copies = {*source._read_from} - {*self.paths}
        self.assertLen(copies, 2)
        source.close()
        self.assertFalse(any(map(os.path.exists, copies)))

    def test_blank_records_get_no_masks(self):
        intact = self._read(self._input(0, masking=_MASKING))
        is_lost = np.isin(self.intact["input_ids"][:, 0], self._damage())
        actual = self._read(self._input(3, masking=_MASKING))
        for name, value in actual.items():
            if name != "example_index":
                self.assertFalse(value[is_lost].any(), name)
            self.assertAllEqual(value[~is_lost], intact[name][~is_lost])

    def test_an_evaluation_reads_blank_records_too(self):
        self._damage()
        first, second, *_ = self._input(3).evaluation_dataset()
        self.assertAllEqual(first["input_ids"][:, 0], [1, 2, 3, 4])
        self.assertAllEqual(second["input_ids"][:, 0], [0, 6, 7, 8])
        self.assertAllEqual(batches_lib.example_weights(second), [0.0, 1, 1, 1])

    def test_more_than_allowed_are_refused(self):
        self._damage()
        with self.assertRaisesRegex(UserError, "z.tfrecord, record 0 .*=3"):
            self._input(2)
        with self.assertRaisesRegex(UserError, "9 values .*--max_seq_length=9"):
            PretrainingInput(self.paths[1:2], 9, 3, 4, max_corrupt=5)

    def test_damaged_lengths_are_refused(self):
        with open(self.paths[1], "r+b") as file:
            file.seek(1)
            file.write(b"\xff")
        with self.assertRaisesRegex(UserError, "its length is damaged"):
            self._input(9)


class RecordOrderTest(tf.test.TestCase):
    def test_orders_depend_on_seed_epoch_and_block(self):
        orders = [
            input_pipeline.file_order(50, 1, 0),
            input_pipeline.file_order(50, 2, 0),
            input_pipeline.file_order(50, 1, 1),
            input_pipeline.block_order(50, 1, 0, 0),
            input_pipeline.block_order(50, 1, 0, 1),
        ]
        for order in orders:
            self.assertAllEqual(np.sort(order), np.arange(50))
        self.assertLen({tuple(order.numpy()) for order in orders}, 5)
        again = input_pipeline.file_order(50, 1, 0)
        self.assertAllEqual(orders[0], again)

    def test_every_position_starts_at_its_record(self):
        counts = np.array([2, 0, 3, 1, 0, 3])
        starts = [input_pipeline.find_start(counts, i, 3) for i in range(9)]
        self.assertEqual(
            [(files[0], skips[0]) for _, files, skips in starts],
            # Two groups of three files; the files of a group take turns.
            [(0, 0), (2, 0), (0, 1), (2, 1), (2, 2)]
            + [(3, 0), (5, 0), (5, 1), (5, 2)],
        )


if __name__ == "__main__":
    tf.test.main()

"""Tests for bert_tf.data.records.order."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.data.records import order as record_order


def _round_robin(counts, files_per_group):
    """The interleaved sequence as (file, record in file), by simulation."""
    sequence = []
    for first in range(0, len(counts), files_per_group):
        left = {
            file: iter(range(counts[file]))
            for file in range(first, min(first + files_per_group, len(counts)))
        }
        while left:
            for file in list(left):
                record = next(left[file], None)
                if record is None:
                    del left[file]
                else:
                    sequence.append((file, record))
    return sequence


def _read_from(start, counts, files_per_group):
    """Reads on from a start point, by simulation."""
    offset = start.group * files_per_group
    iterators = {
        file: iter(range(skip, counts[file]))
        for file, skip in zip(start.files, start.skips, strict=True)
    }
    sequence = []
    while iterators:
        for file in list(iterators):
            record = next(iterators[file], None)
            if record is None:
                del iterators[file]
            else:
                sequence.append((file, record))
    behind = offset + files_per_group
    later = _round_robin([0] * behind + list(counts[behind:]), files_per_group)
    return sequence + later


class RecordOrderTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ([5, 1, 13, 7, 2, 9], 3),
        ([4, 4, 4, 4], 16),
        ([6], 16),
        ([0, 3, 0, 8, 1, 0, 0, 2], 2),
    )
    def test_start_points_equal_simulation(self, counts, files_per_group):
        sequence = _round_robin(counts, files_per_group)
        self.assertLen(sequence, sum(counts))
        for position in range(len(sequence)):
            start = record_order.find_start(
                np.array(counts), position, files_per_group
            )
            self.assertEqual(
                _read_from(start, counts, files_per_group), sequence[position:]
            )

    def test_orders_depend_on_seed_epoch_and_block(self):
        orders = [
            record_order.file_order(50, 1, 0),
            record_order.file_order(50, 2, 0),
            record_order.file_order(50, 1, 1),
            record_order.block_order(50, 1, 0, 0),
            record_order.block_order(50, 1, 0, 1),
        ]
        for order in orders:
            self.assertAllEqual(np.sort(order), np.arange(50))
        self.assertLen({tuple(order.numpy()) for order in orders}, 5)
        again = record_order.file_order(50, 1, 0)
        self.assertAllEqual(orders[0], again)


if __name__ == "__main__":
    tf.test.main()

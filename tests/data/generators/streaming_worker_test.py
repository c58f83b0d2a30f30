import pathlib
import subprocess
import sys

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.data.generators import streaming_worker
from bert_tf.data.generators.instances import Instances
from bert_tf.data.generators.streaming_worker import PartsPlan
from bert_tf.data.token_store import TokenStore
from bert_tf.data.token_store import TokenStoreWriter

_ROOT = str(pathlib.Path(__file__).resolve().parents[3])


class PermutedTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(1, 2, 3, 4, 5, 16, 17, 1000, 4096, 70001)
    def test_is_a_permutation(self, size):
        everything = np.arange(size)
        image = streaming_worker.permuted(everything, size, 3)
        self.assertAllEqual(np.sort(image), everything)
        # The image of a number does not depend on the other numbers.
        some = everything[size // 3 :: 7]
        self.assertAllEqual(
            streaming_worker.permuted(some, size, 3), image[size // 3 :: 7]
        )
        if size >= 1000:
            other = streaming_worker.permuted(everything, size, 4)
            self.assertLess(np.mean(other == image), 0.01)
            # Adjacent numbers are spread everywhere.
            gaps = np.abs(np.diff(image)).mean() / size
            self.assertNear(gaps, 1 / 3, 0.03)

    def test_reaches_far(self):
        size = (1 << 40) + 12345
        indices = np.arange(size - 1000, size)
        image = streaming_worker.permuted(indices, size, 5)
        self.assertAllInRange(image, 0, size - 1)
        self.assertLen(np.unique(image), 1000)
        self.assertNear(image.mean() / size, 0.5, 0.05)


class MakeRecordsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.create_tempdir().full_path
        writer = TokenStoreWriter(folder, 200)
        writer.append(np.arange(110, 140), np.array([30]), np.array([0]))
        writer.finish()
        self.store = TokenStore.open(folder, 200)

    def plan(self, next_sentence_pairs):
        return PartsPlan(
            config=CreatePretrainingDataConfig(
                input_file="",
                output_file="",
                vocab_file="",
                max_seq_length=10,
                max_predictions_per_seq=3,
                next_sentence_pairs=next_sentence_pairs,
                mask_rate=0.0,
                same_rate=1.0,
                random_rate=0.0,
            ),
            store_folder="",
            parts_folder="",
            num_parts=1,
            cls_id=101,
            sep_id=102,
            mask_id=103,
            starts_word=np.ones(200, bool),
            token_ids=np.arange(200),
        )

    def make(
        self, next_sentence_pairs, a_starts, a_lengths, b_starts, b_lengths
    ):
        instances = Instances(
            a_starts=np.array(a_starts),
            a_lengths=np.array(a_lengths),
            b_starts=np.array(b_starts),
            b_lengths=np.array(b_lengths),
            random_next=np.arange(len(a_starts)) % 2,
            truncated=np.zeros(len(a_starts), bool),
        )
        return streaming_worker.make_records(
            self.plan(next_sentence_pairs),
            self.store,
            instances,
            np.random.default_rng(1),
        )

    def test_pairs(self):
        records = self.make(True, [0, 20, 3], [1, 3, 5], [5, 29, 10], [2, 1, 2])
        self.assertAllEqual(
            records["input_ids"],
            [
                [101, 110, 102, 115, 116, 102, 0, 0, 0, 0],
                [101, 130, 131, 132, 102, 139, 102, 0, 0, 0],
                [101, 113, 114, 115, 116, 117, 102, 120, 121, 102],
            ],
        )
        self.assertAllEqual(
            records["segment_ids"],
            [
                [0, 0, 0, 1, 1, 1, 0, 0, 0, 0],
                [0, 0, 0, 0, 0, 1, 1, 0, 0, 0],
                [0, 0, 0, 0, 0, 0, 0, 1, 1, 1],
            ],
        )
        self.assertAllEqual(
            records["input_mask"],
            [[1] * 6 + [0] * 4, [1] * 7 + [0] * 3, [1] * 10],
        )
        self.assertAllEqual(records["next_sentence_labels"], [[0], [1], [0]])
        # 15% of 6, 7 and 10 tokens; halves round to even.
        self.assertAllEqual(
            records["masked_lm_weights"], [[1, 0, 0], [1, 0, 0], [1, 1, 0]]
        )
        self.assertNotIn(102, records["masked_lm_ids"])

    def test_one_segment(self):
        records = self.make(False, [0, 7], [8, 3], [0, 0], [0, 0])
        self.assertAllEqual(
            records["input_ids"],
            [
                [101, *range(110, 118), 102],
                [101, 117, 118, 119, 102, 0, 0, 0, 0, 0],
            ],
        )
        self.assertFalse(records["segment_ids"].any())
        self.assertAllEqual(records["input_mask"].sum(axis=1), [10, 5])


class WorkerTest(tf.test.TestCase):
    def test_does_not_import_tensorflow(self):
        # Each worker would take half a gigabyte and seconds to start.
        code = (
            "import sys\n"
            "from bert_tf.data.generators import streaming_worker\n"
            "from bert_tf.io import worker_processes\n"
            "assert len(streaming_worker.split_lines(['One. Two.'])[0]) == 2\n"
            "assert 'tensorflow' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", code], cwd=_ROOT, check=True)

    def test_splits_lines(self):
        sentences, counts = streaming_worker.split_lines(
            ["It rains. It pours.", "All 3.5 dogs bark."]
        )
        self.assertEqual(
            sentences, ["It rains.", "It pours.", "All 3.5 dogs bark."]
        )
        self.assertAllEqual(counts, [2, 1])


if __name__ == "__main__":
    tf.test.main()

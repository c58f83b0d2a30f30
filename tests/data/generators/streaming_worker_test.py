import pathlib
import subprocess
import sys

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.data.generators import streaming_worker
from bert_tf.data.generators.streaming_worker import InstancePlanner
from bert_tf.data.generators.streaming_worker import Instances
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


class InstancePlannerTest(tf.test.TestCase, parameterized.TestCase):
    def store(self, documents):
        """A store of documents, given as lists of sentence lengths."""
        folder = self.create_tempdir().full_path
        writer = TokenStoreWriter(folder, 100)
        for number, lengths in enumerate(documents):
            writer.append(
                np.full(sum(lengths), number % 100),
                np.array(lengths, np.int64),
                np.full(len(lengths), number),
            )
        writer.finish()
        return TokenStore.open(folder, 100)

    def plan(self, documents, max_seq_length, passes=None, **options):
        store = self.store(documents)
        values = {"short_seq_prob": 0.0, "next_sentence_pairs": True}
        planner = InstancePlanner(store, max_seq_length, **(values | options))
        if passes is None:
            passes = range(store.num_passes)
        return store, planner.plan(passes, seed=5)

    def test_single_segments_fill_up_to_the_target(self):
        _, plan = self.plan(
            [[4, 3, 3, 4, 4, 9, 2], [1, 1]], 12, next_sentence_pairs=False
        )
        spans = sorted(zip(plan.a_starts, plan.a_lengths, strict=True))
        # Target 10: 4+3+3; 4+4+9 loses 7 from its ends; 2; 1+1.
        self.assertLen(spans, 4)
        self.assertEqual([spans[0], *spans[2:]], [(0, 10), (27, 2), (29, 2)])
        self.assertEqual(spans[1][1], 10)
        self.assertBetween(spans[1][0], 10, 17)
        self.assertAllEqual(plan.b_lengths, [0] * 4)
        self.assertAllEqual(plan.random_next, [0] * 4)
        self.assertEqual(plan.truncated.sum(), 1)

    def test_every_sentence_is_used_once_in_a_pass(self):
        # Sentences fit exactly, so that nothing is truncated, and what a
        # random next sentence displaces has to come back.
        documents = [[5] * (7 + 3 * number) for number in range(40)]
        store, plan = self.plan(documents, 33)
        self.assertFalse(plan.truncated.any())
        used = np.zeros(len(store.tokens), np.int64)
        for row in range(len(plan)):
            start = plan.a_starts[row]
            used[start : start + plan.a_lengths[row]] += 1
            if not plan.random_next[row]:
                stop = start + plan.a_lengths[row]
                self.assertEqual(plan.b_starts[row], stop)
                used[stop : stop + plan.b_lengths[row]] += 1
        self.assertAllEqual(used, np.ones_like(used))

    def test_random_next_begins_with_any_sentence_of_another_document(self):
        documents = [[2, 3, 4], [5] * 9, [1] * 30, [6, 1]] * 30
        store, plan = self.plan(documents, 43, passes=list(range(120)) * 20)
        rows = np.flatnonzero((plan.random_next == 1) & ~plan.truncated)
        offsets = store.sentence_offsets
        first = np.searchsorted(offsets, plan.b_starts[rows])
        self.assertAllEqual(offsets[first], plan.b_starts[rows])
        last = np.searchsorted(
            offsets, plan.b_starts[rows] + plan.b_lengths[rows]
        )
        to_document = np.repeat(np.arange(120), np.diff(store.document_offsets))
        others = to_document[first]
        self.assertAllEqual(others, to_document[last - 1])
        own = to_document[np.searchsorted(offsets, plan.a_starts[rows])]
        self.assertFalse((others == own).any())
        # No sentence too many: without the last, B and A miss the target,
        # and with it they reach it or the document ends.
        room = 40 - plan.a_lengths[rows]
        before_last = offsets[last - 1] - plan.b_starts[rows]
        self.assertTrue(((before_last < room) | (last == first + 1)).all())
        ends = np.isin(last, store.document_offsets)
        self.assertTrue((ends | (plan.b_lengths[rows] >= room)).all())

    def test_the_only_document_is_its_own_random_next(self):
        _, plan = self.plan([[3] * 50], 18, passes=[0] * 30)
        random = plan.random_next == 1
        self.assertGreater(random.sum(), 50)
        self.assertGreater(len(set(plan.b_starts[random].tolist())), 20)

    def test_single_sentence_always_gets_a_random_next(self):
        _, plan = self.plan([[50], [60], [70]], 40, passes=[0, 1, 2] * 30)
        self.assertAllEqual(plan.random_next, [1] * 90)
        self.assertAllEqual(plan.a_lengths + plan.b_lengths, [37] * 90)


class TruncatedLengthsTest(tf.test.TestCase):
    def test_equals_taking_token_by_token(self):
        a, b = (grid.ravel() for grid in np.mgrid[1:40, 0:40])
        for room in range(2, 25):
            kept = streaming_worker.truncated_lengths(a, b, room)
            expected = []
            for longer_a, longer_b in zip(a, b, strict=True):
                while longer_a + longer_b > room:
                    if longer_a > longer_b:
                        longer_a -= 1
                    else:
                        longer_b -= 1
                expected.append((longer_a, longer_b))
            self.assertAllEqual(np.stack(kept, axis=1), expected)


if __name__ == "__main__":
    tf.test.main()

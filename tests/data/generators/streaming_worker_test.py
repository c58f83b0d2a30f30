import bisect
import collections
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


def make_config(**flags):
    files = dict.fromkeys(("input_file", "output_file", "vocab_file"), "x")
    return CreatePretrainingDataConfig(**files, **flags)


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
            config=make_config(
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
        flags = {"max_seq_length": max_seq_length, "short_seq_prob": 0.0}
        planner = InstancePlanner(store, make_config(**(flags | options)))
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

    def test_random_documents_are_drawn_evenly(self):
        documents = [[1] * 3, [1] * 400, [1] * 20]
        _, plan = self.plan(documents, 8, passes=[1] * 40)
        random = plan.b_starts[plan.random_next == 1]
        self.assertGreater(len(random), 1000)
        from_first = np.mean(random < 3)
        # Own document: one time in 3^10 only.
        self.assertTrue(((random < 3) | (random >= 403)).all())
        error = np.sqrt(0.25 / len(random))
        self.assertNear(from_first, 0.5, 4 * error)
        starts = collections.Counter(random[random >= 403].tolist())
        self.assertLen(starts, 20)

    def test_the_only_document_is_its_own_random_next(self):
        _, plan = self.plan([[3] * 50], 18, passes=[0] * 30)
        random = plan.random_next == 1
        self.assertGreater(random.sum(), 50)
        self.assertGreater(len(set(plan.b_starts[random].tolist())), 20)

    def test_single_sentence_always_gets_a_random_next(self):
        _, plan = self.plan([[50], [60], [70]], 40, passes=[0, 1, 2] * 30)
        self.assertAllEqual(plan.random_next, [1] * 90)
        self.assertAllEqual(plan.a_lengths + plan.b_lengths, [37] * 90)

    def test_pairs_are_random_half_of_the_time(self):
        _, plan = self.plan([[2] * 1000] * 20, 13, passes=range(20))
        # Chunks of five sentences; a single sentence is left over at times.
        self.assertNear(np.mean(plan.random_next), 0.5, 0.02)
        following = plan.a_lengths[plan.random_next == 0]
        shares = np.bincount(following // 2, minlength=5)[1:] / len(following)
        self.assertAllClose(shares, [0.25] * 4, 0, 0.03)

    def test_a_short_pass_has_one_target(self):
        documents = [[1] * 500 for _ in range(300)]
        _, plan = self.plan(
            documents, 22, short_seq_prob=1.0, next_sentence_pairs=False
        )
        lengths = {}
        for start, length in zip(plan.a_starts, plan.a_lengths, strict=True):
            if start % 500 + length < 500:  # Not the rest of the document.
                lengths.setdefault(start // 500, set()).add(int(length))
        self.assertLen(lengths, 300)
        targets = [next(iter(found)) for found in lengths.values()]
        self.assertEqual({len(found) for found in lengths.values()}, {1})
        self.assertEqual(set(targets), set(range(2, 21)))
        self.assertNear(np.mean(targets), 11, 4 * 5.5 / np.sqrt(300))

    def test_share_of_short_passes(self):
        documents = [[20]] * 4000
        _, plan = self.plan(
            documents, 22, short_seq_prob=0.3, next_sentence_pairs=False
        )
        self.assertAllEqual(plan.a_lengths, [20] * 4000)
        documents = [[1] * 20] * 2000
        _, plan = self.plan(
            documents, 22, short_seq_prob=0.3, next_sentence_pairs=False
        )
        # Unless the target drawn is the longest, one in 19.
        share = np.sum(plan.a_lengths == 20) / 2000
        expected = 0.7 + 0.3 / 19
        self.assertNear(share, expected, 4 * np.sqrt(0.21 / 2000))

    def test_truncation_takes_from_both_ends(self):
        _, plan = self.plan(
            [[1000]] * 50,
            102,
            passes=list(range(50)) * 10,
            next_sentence_pairs=False,
        )
        self.assertTrue(plan.truncated.all())
        cut = plan.a_starts % 1000
        # 900 of them, each from the front with p = 1/2.
        self.assertNear(cut.mean(), 450, 4 * 15 / np.sqrt(500))
        self.assertNear(cut.std(), 15, 3)

    def test_plan_is_a_function_of_the_seed(self):
        store = self.store([[3, 4, 5, 6]] * 20)
        planner = InstancePlanner(store, make_config(max_seq_length=20))
        first, again = planner.plan(range(20), 1), planner.plan(range(20), 1)
        other = planner.plan(range(20), 2)
        self.assertAllEqual(first.a_starts, again.a_starts)
        self.assertAllEqual(first.b_starts, again.b_starts)
        self.assertNotAllEqual(first.b_starts[:10], other.b_starts[:10])


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


class ReachTest(tf.test.TestCase):
    def test_equals_bisection(self):
        rng = np.random.default_rng(9)
        offsets = np.concatenate(([0], np.cumsum(rng.integers(1, 9, 500))))
        firsts = rng.integers(0, 500, 2000)
        stops = np.minimum(500, firsts + rng.integers(1, 60, 2000))
        goals = offsets[firsts] + rng.integers(-5, 200, 2000)
        actual = streaming_worker.reach(offsets, firsts, goals, stops)
        expected = [
            bisect.bisect_left(offsets, goal, first + 1, stop)
            for first, goal, stop in zip(firsts, goals, stops, strict=True)
        ]
        self.assertAllEqual(actual, expected)


if __name__ == "__main__":
    tf.test.main()

import collections
import itertools
import subprocess
import sys

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.data import token_store
from bert_tf.data.generators import masks
from bert_tf.data.generators import streaming_worker
from bert_tf.data.generators.streaming_worker import InstancePlanner
from bert_tf.data.token_store import TokenStore
from bert_tf.data.token_store import TokenStoreWriter
from tests.support import files_case
from tests.support.repository import ROOT


def make_config(**flags):
    files = dict.fromkeys(("input_file", "output_file", "vocab_file"), "x")
    return CreatePretrainingDataConfig(**files, **flags)


class PermutedTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(1, 2, 3, 4, 5, 16, 17, 1000, 4096, 70001)
    def test_is_a_permutation(self, size):
        everything = np.arange(size)
        image = streaming_worker.permuted(everything, size, 3)
        self.assertAllEqual(np.sort(image), everything)
        # The image of a number must not depend on the other numbers.
        some = everything[size // 3 :: 7]
        self.assertAllEqual(
            streaming_worker.permuted(some, size, 3), image[size // 3 :: 7]
        )
        if size >= 1000:
            other = streaming_worker.permuted(everything, size, 4)
            self.assertLess(np.mean(other == image), 0.01)
            # Two random points of an interval are 1/3 of it apart on average.
            gaps = np.abs(np.diff(image)).mean() / size
            self.assertNear(gaps, 1 / 3, 0.03)

    def test_last_indices_spread_over_the_whole_range(self):
        size = (1 << 40) + 12345
        indices = np.arange(size - 1000, size)
        image = streaming_worker.permuted(indices, size, 5)
        self.assertAllInRange(image, 0, size - 1)
        self.assertLen(np.unique(image), 1000)
        self.assertNear(image.mean() / size, 0.5, 0.05)


class WorkerTest(tf.test.TestCase):
    def test_does_not_import_tensorflow(self):
        # With TensorFlow each worker would take 0.5 GB, and seconds to start.
        code = (
            "import sys\n"
            "from bert_tf.data.generators import streaming_worker\n"
            "from bert_tf.io import worker_processes\n"
            "assert len(streaming_worker.split_lines(['One. Two.'])[0]) == 2\n"
            "assert 'tensorflow' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


class InstancePlannerTest(tf.test.TestCase):
    def store(self, documents):
        """Returns a store of documents, given as lists of sentence lengths."""
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
        # Target 10: 4+3+3 fits, 4+4+9 loses 7 at its ends, 2 and 1+1 remain.
        self.assertLen(spans, 4)
        self.assertEqual([spans[0], *spans[2:]], [(0, 10), (27, 2), (29, 2)])
        self.assertEqual(spans[1][1], 10)
        self.assertBetween(spans[1][0], 10, 17)
        self.assertAllEqual(plan.b_lengths, [0] * 4)
        self.assertAllEqual(plan.random_next, [0] * 4)
        self.assertEqual(plan.truncated.sum(), 1)

    def test_every_sentence_is_used_once_in_a_pass(self):
        # Sentences fit exactly, so nothing is truncated. A random next segment
        # displaces sentences, so a later record must use them.
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

    def test_the_only_document_is_its_own_random_next(self):
        _, plan = self.plan([[3] * 50], 18, passes=[0] * 30)
        random = plan.random_next == 1
        self.assertGreater(random.sum(), 50)
        self.assertGreater(len(set(plan.b_starts[random].tolist())), 20)


class NumPredictionsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(0.15, 0.1, 0.25, 0.5, 1.0, 0.0)
    def test_rounds_as_python_does(self, prob):
        lengths = np.arange(3, 513)
        expected = [
            min(77, max(1, int(round(int(length) * prob))))
            for length in lengths
        ]
        actual = masks.num_predictions(lengths, prob, 77)
        self.assertAllEqual(actual, expected)

    def test_all_are_chosen_where_too_few_can_be(self):
        candidates = np.array([[False, True, False, True, False]])
        rng = np.random.default_rng(1)
        chosen = masks.choose_tokens(candidates, np.array([4]), rng)
        self.assertAllEqual(chosen, candidates)


class ChooseWordsTest(tf.test.TestCase):
    def choose(self, starts, segments, wanted, rows):
        """`starts`: 1 starts a word, 0 continues it, None is no candidate."""
        candidates = np.tile([mark is not None for mark in starts], (rows, 1))
        return masks.choose_words(
            candidates,
            np.tile([mark != 0 for mark in starts], (rows, 1)),
            np.tile(segments, (rows, 1)),
            np.full(rows, wanted),
            1,
            np.random.default_rng(1),
        )

    def test_has_the_distribution_of_the_original(self):
        # Words of 1, 3, 2, 1 and 1 tokens; the last is in the other segment.
        words = [(1,), (2, 3, 4), (5, 6), (7,), (9,)]
        starts = [None, 1, 1, 0, 0, 1, 0, 1, None, 1, None]
        segments = [0] * 9 + [1] * 2
        expected = collections.Counter()
        for order in itertools.permutations(words):
            taken = []
            for word in order:
                if len(taken) + len(word) <= 3:
                    taken.extend(word)
            expected[tuple(sorted(taken))] += 1
        rows = 40000
        chosen = self.choose(starts, segments, 3, rows=rows)
        actual = collections.Counter(
            tuple(np.flatnonzero(row).tolist()) for row in chosen
        )
        self.assertEqual(set(actual), set(expected))
        for tokens, count in expected.items():
            share = count / 120
            error = np.sqrt(rows * share * (1 - share))
            self.assertNear(actual[tokens], rows * share, 4 * error)

    def test_continuation_joins_the_word_before_the_separator(self):
        # Truncation can leave B a "##" token in front, which joins the last
        # word of A. The first token of all always starts a word.
        chosen = self.choose([None, 0, 1, None, 0, None], [0] * 6, 2, rows=500)
        found = {tuple(np.flatnonzero(row).tolist()) for row in chosen}
        self.assertEqual(found, {(1,), (2, 4)})


_VOCAB_SIZE = 30522


def append(writer, sentences, documents):
    lengths = np.array([len(sentence) for sentence in sentences], np.int64)
    tokens = np.array([token for s in sentences for token in s], np.int32)
    writer.append(tokens, lengths, np.array(documents))
    writer.progress.lines += len(sentences)


class TokenStoreTest(files_case.FolderCase):
    def assert_holds(self, tokens, sentences, documents):
        store = TokenStore.open(self.folder, _VOCAB_SIZE)
        self.assertAllEqual(store.tokens, tokens)
        self.assertAllEqual(store.sentence_offsets, sentences)
        self.assertAllEqual(store.document_offsets, documents)
        return store

    def test_skips_empty_sentences(self):
        writer = TokenStoreWriter(self.folder, _VOCAB_SIZE)
        append(writer, [[5, 6], [], [7], []], [0, 0, 0, 1])
        append(writer, [[], []], [2, 2])
        append(writer, [[], [8, 9, 10]], [2, 4])
        writer.finish()
        store = self.assert_holds([5, 6, 7, 8, 9, 10], [0, 2, 3, 6], [0, 2, 3])
        self.assertEqual(store.num_documents, 2)
        self.assertEqual([store.span(0), store.span(1)], [(0, 0, 2), (1, 2, 3)])
        self.assertTrue(token_store.read_progress(self.folder).complete)

    def test_resumes_where_it_was_saved(self):
        writer = TokenStoreWriter(self.folder, _VOCAB_SIZE)
        append(writer, [[5, 6], [7]], [0, 1])
        writer.save()
        append(writer, [[1, 2, 3]], [1])
        writer.close()  # The last append is not saved.
        writer = TokenStoreWriter(self.folder, _VOCAB_SIZE)
        self.assertEqual(writer.progress.lines, 2)
        # Document 1 was saved in part, so its next sentence must join it.
        append(writer, [[8], [9]], [1, 2])
        writer.finish()
        self.assert_holds([5, 6, 7, 8, 9], [0, 2, 3, 4, 5], [0, 1, 3, 4])

    @parameterized.parameters((1 << 16, "uint16"), ((1 << 16) + 1, "int32"))
    def test_tokens_take_as_few_bytes_as_the_vocabulary_allows(
        self, vocab_size, dtype
    ):
        writer = TokenStoreWriter(self.folder, vocab_size)
        append(writer, [[0, vocab_size - 1]], [0])
        writer.finish()
        store = TokenStore.open(self.folder, vocab_size)
        self.assertEqual(store.tokens.dtype, dtype)
        self.assertAllEqual(store.tokens, [0, vocab_size - 1])

    def test_long_documents_have_several_spans(self):
        limit = token_store.MAX_TOKENS_PER_PASS
        lengths = [[7], [1000] * 700, [8, 9], [limit + 1], [5] * 3, [999] * 270]
        writer = TokenStoreWriter(self.folder, _VOCAB_SIZE)
        for number, document in enumerate(lengths):
            writer.append(
                np.ones(sum(document), np.int32),
                np.array(document),
                np.full(len(document), number),
            )
        writer.finish()
        store = TokenStore.open(self.folder, _VOCAB_SIZE)
        self.assertEqual(store.num_documents, 6)
        self.assertEqual(store.num_passes, 6 + 2 + 1)
        covered = {}
        for number in range(store.num_passes):
            document, first, stop = store.span(number)
            self.assertLess(first, stop)
            covered.setdefault(document, []).append((first, stop))
            size = np.diff(store.sentence_offsets[[first, stop]])[0]
            self.assertTrue(size < limit + 1000 or stop == first + 1)
        for document, spans in covered.items():
            edges = store.document_offsets[document : document + 2].tolist()
            starts, stops = zip(*spans, strict=True)
            self.assertEqual([*starts, edges[1]], [edges[0], *stops])


if __name__ == "__main__":
    tf.test.main()

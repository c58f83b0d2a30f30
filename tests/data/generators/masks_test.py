import collections
import itertools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.commands.create_pretraining_data import CreatePretrainingDataConfig
from bert_tf.data.generators import masks

_MASK = 103
_VOCAB_SIZE = 500


def make_config(**changes) -> CreatePretrainingDataConfig:
    return CreatePretrainingDataConfig(
        input_file="",
        output_file="",
        vocab_file="",
        max_predictions_per_seq=5,
        **changes,
    )


def random_batch(rng, batch_size=300, seq_length=40):
    """Sequences [CLS] A [SEP] B [SEP] of unequal lengths."""
    column = np.arange(seq_length)
    a = rng.integers(1, 17, (batch_size, 1))
    b = rng.integers(1, 17, (batch_size, 1))
    candidates = (column >= 1) & (column <= a)
    second = (column >= a + 2) & (column < a + b + 2)
    ids = rng.integers(200, _VOCAB_SIZE, (batch_size, seq_length))
    lengths = (a + b + 3)[:, 0]
    return (
        np.where(column < lengths[:, np.newaxis], ids, 0),
        ((column >= a + 2) & (column <= a + b + 2)).astype(np.int64),
        candidates | second,
        lengths,
    )


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


class ChooseTokensTest(tf.test.TestCase):
    def test_all_subsets_are_equally_likely(self):
        rows = 60000
        candidates = np.tile([False, True, True, True, False, True], (rows, 1))
        chosen = masks.choose_tokens(
            candidates, np.full(rows, 2), np.random.default_rng(2)
        )
        counts = collections.Counter(map(tuple, np.argwhere(chosen)[:, 1:]))
        self.assertLen(counts, 4)
        subsets = collections.Counter(
            tuple(np.flatnonzero(row)) for row in chosen
        )
        self.assertLen(subsets, 6)
        error = np.sqrt(rows * (1 / 6) * (5 / 6))
        self.assertAllClose(
            list(subsets.values()), [rows / 6] * 6, 0, 4 * error
        )


class ChooseWordsTest(tf.test.TestCase, parameterized.TestCase):
    def choose(self, starts, segments, wanted, max_ngram=1, rows=1, seed=1):
        """`starts`: 1 starts a word, 0 goes on, None is no candidate."""
        candidates = np.tile([mark is not None for mark in starts], (rows, 1))
        return masks.choose_words(
            candidates,
            np.tile([mark != 0 for mark in starts], (rows, 1)),
            np.tile(segments, (rows, 1)),
            np.full(rows, wanted),
            max_ngram,
            np.random.default_rng(seed),
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
        # Truncation can leave B with a "##" token in front; the first token of
        # all is a word whatever it is.
        chosen = self.choose([None, 0, 1, None, 0, None], [0] * 6, 2, rows=500)
        found = {tuple(np.flatnonzero(row).tolist()) for row in chosen}
        self.assertEqual(found, {(1,), (2, 4)})


class MaskBatchTest(tf.test.TestCase, parameterized.TestCase):
    def mask(self, ids, segments, candidates, lengths, **changes):
        starts_word = np.arange(_VOCAB_SIZE) % 3 > 0
        return masks.mask_batch(
            ids,
            segments,
            candidates,
            starts_word,
            lengths,
            make_config(**changes),
            _MASK,
            np.arange(_VOCAB_SIZE),
            np.random.default_rng(7),
        )

    @parameterized.parameters(
        {"do_whole_word_mask": False, "max_ngram": 1},
        {"do_whole_word_mask": True, "max_ngram": 1},
        {"do_whole_word_mask": True, "max_ngram": 3},
    )
    def test_features_match_the_masks(self, **changes):
        batch = random_batch(np.random.default_rng(8))
        before = batch[0].copy()
        masked = self.mask(
            *batch, mask_rate=1, same_rate=0, random_rate=0, **changes
        )
        after, _, candidates, lengths = batch
        wanted = masks.num_predictions(lengths, 0.15, 5)
        restored = after.copy()
        for row in range(len(after)):
            weights = masked["masked_lm_weights"][row]
            count = int(weights.sum())
            self.assertAllEqual(weights, np.arange(5) < count)
            if changes["do_whole_word_mask"]:
                self.assertLessEqual(count, wanted[row])
            else:
                self.assertEqual(count, wanted[row])
            places = masked["masked_lm_positions"][row]
            self.assertTrue((np.diff(places[:count]) > 0).all())
            self.assertTrue(candidates[row, places[:count]].all())
            self.assertAllEqual(after[row, places[:count]], [_MASK] * count)
            labels = masked["masked_lm_ids"][row]
            restored[row, places[:count]] = labels[:count]
            self.assertFalse(places[count:].any() or labels[count:].any())
        self.assertAllEqual(restored, before)
        self.assertEqual(
            np.sum(after == _MASK), masked["masked_lm_weights"].sum()
        )

    def test_left_to_right_predicts_each_next_token(self):
        ids = np.array([[101, 11, 12, 102, 13, 102, 0]])
        segments = np.array([[0, 0, 0, 0, 1, 1, 0]])
        candidates = np.isin(ids, [11, 12, 13])
        masked = self.mask(
            ids, segments, candidates, np.array([6]), left_to_right=True
        )
        self.assertAllEqual(ids, [[101, 11, 12, 102, 13, 102, 0]])
        self.assertAllEqual(masked["masked_lm_positions"], [[0, 1, 3, 0, 0]])
        self.assertAllEqual(masked["masked_lm_ids"], [[11, 12, 13, 0, 0]])
        self.assertAllEqual(masked["masked_lm_weights"], [[1, 1, 1, 0, 0]])


if __name__ == "__main__":
    tf.test.main()

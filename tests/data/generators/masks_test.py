import collections
import itertools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.data.generators import masks


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


class ChooseWordsTest(tf.test.TestCase):
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


if __name__ == "__main__":
    tf.test.main()

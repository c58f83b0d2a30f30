"""Tests for bert_tf.experiments.statistics."""

import math

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from scipy import stats

from bert_tf.experiments import statistics
from bert_tf.experiments.statistics import Score

_SIMULATIONS = 1500


def _scores(values, first_seed=0):
    return [Score(seed, float(x)) for seed, x in enumerate(values, first_seed)]


def _judge(found):
    return statistics.judge(found["difference"], found["error"], "below")


class CompareTest(tf.test.TestCase):
    def _check_chance(self, found, degrees):
        chance = statistics.chance_beyond_limit(degrees)
        self.assertAllClose(found["chance"], chance)

    def test_mean_and_sample_deviation(self):
        mean, deviation = statistics.summarize([81.0, 84.5, 83.0])
        self.assertAllClose(mean, 82.8333333)
        self.assertAllClose(deviation, np.std([81, 84.5, 83], ddof=1))
        self.assertIsNone(statistics.summarize([81.0])[1])

    def test_same_seeds_are_paired_in_any_order(self):
        first, second = [70.0, 75.0, 71.5], [69.0, 73.0, 72.0]
        found = statistics.compare(_scores(first), _scores(second)[::-1])
        expected = stats.ttest_rel(first, second)
        self.assertEqual(found["method"], statistics.PAIRED)
        self.assertAllClose(
            found["difference"] / found["error"], expected.statistic
        )
        self._check_chance(found, expected.df)

    def test_other_seeds_use_welch(self):
        first, second = [70.0, 75.0, 71.5, 78.0], [69.0, 69.5, 68.5]
        found = statistics.compare(_scores(first), _scores(second))
        expected = stats.ttest_ind(first, second, equal_var=False)
        self.assertEqual(found["method"], statistics.WELCH)
        self.assertAllClose(
            found["difference"] / found["error"], expected.statistic
        )
        self._check_chance(found, expected.df)
        shifted = statistics.compare(_scores(first[:3], 9), _scores(second))
        self.assertEqual(shifted["method"], statistics.WELCH)

    def test_one_seed_has_no_error(self):
        for first, second in ([1.0], [2.0]), ([1.0], [2.0, 4.0]):
            found = statistics.compare(_scores(first), _scores(second))
            self.assertEqual(found["method"], statistics.ONE_SEED)
            self.assertIsNone(found["error"])
            self.assertEqual(_judge(found), statistics.NOT_DISTINGUISHABLE)
            self.assertNotIn("chance", found)

    def test_errors_of_single_scores_add_up(self):
        found = statistics.compare([Score(1, 9.0, 0.3)], [Score(2, 7.0, 0.4)])
        self.assertEqual(found["method"], statistics.HELD_OUT)
        self.assertAllClose((found["difference"], found["error"]), (2.0, 0.5))
        without = statistics.compare([Score(1, 9.0, 0.3)], [Score(2, 7.0)])
        self.assertIsNone(without["error"])


class JudgeTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (-2.1, 1.0, "below", statistics.AGREES),
        (2.1, 1.0, "below", statistics.CONTRADICTS),
        (2.1, 1.0, "above", statistics.AGREES),
        (-2.1, 1.0, "above", statistics.CONTRADICTS),
        (-1.9, 1.0, "below", statistics.NOT_DISTINGUISHABLE),
        (2.0, 1.0, "above", statistics.NOT_DISTINGUISHABLE),
        # Equal but for rounding: 0.1 + 0.2 - 0.3.
        (5.6e-17, 0.0, "above", statistics.NOT_DISTINGUISHABLE),
        (0.5, 0.0, "above", statistics.AGREES),
    )
    def test_limit_is_two_standard_errors(self, value, error, sign, verdict):
        self.assertEqual(statistics.judge(value, error, sign), verdict)

    @parameterized.product(
        seeds=(2, 3, 5, 10), method=(statistics.PAIRED, statistics.WELCH)
    )
    def test_equal_rows_differ_as_often_as_stated(self, seeds, method):
        first_seed = 0 if method == statistics.PAIRED else 100
        rng = np.random.default_rng(seeds)
        verdicts, chances = [], []
        for rows in rng.normal(80.0, 1.5, (_SIMULATIONS, 2, seeds)):
            found = statistics.compare(
                _scores(rows[0], first_seed), _scores(rows[1])
            )
            self.assertEqual(found["method"], method)
            verdicts.append(_judge(found))
            chances.append(found["chance"])
        stated = np.mean(chances)
        agree = verdicts.count(statistics.AGREES) / _SIMULATIONS
        contradict = verdicts.count(statistics.CONTRADICTS) / _SIMULATIONS
        # Four deviations of a share. Welch's degrees of freedom are estimated,
        # which costs up to five points with two seeds.
        slack = 4 * math.sqrt(stated / _SIMULATIONS)
        if method == statistics.WELCH:
            slack += 0.1 / seeds
        self.assertAllClose(agree + contradict, stated, atol=slack)
        self.assertAllClose(agree, contradict, atol=slack)

    @parameterized.parameters(
        (1, 0.2952), (2, 0.1835), (4, 0.1161), (math.inf, 0.0455)
    )
    def test_chance(self, degrees, share):
        self.assertAllClose(
            statistics.chance_beyond_limit(degrees), share, atol=1e-4
        )


if __name__ == "__main__":
    tf.test.main()

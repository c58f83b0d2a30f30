"""Tests for bert_tf.tasks.metrics."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from seqeval import metrics as seqeval_metrics

from bert_tf.tasks import metrics
from bert_tf.tasks.classification import glue_tasks

_RIGHT = np.array([1, 0, 1, 1, 0, 1, 0, 1, 1, 0])
_GUESS = np.array([1, 0, 0, 1, 1, 1, 0, 1, 0, 1])
# Label 1: 4 correct, 2 wrong, 2 missed; 2 of the 0s are correct.


class MetricsTest(tf.test.TestCase, parameterized.TestCase):
    def compute(self, name, labels, predictions):
        scores = metrics.compute_metrics([name], labels, predictions)
        self.assertEqual(list(scores), [name])
        self.assertIsInstance(scores[name], float)
        return scores[name]

    @parameterized.parameters(
        (metrics.ACCURACY, 6 / 10),
        (metrics.F1, 2 * 4 / (2 * 4 + 2 + 2)),
        (metrics.MACRO_F1, (8 / 12 + 4 / 8) / 2),
        (metrics.MATTHEWS, (4 * 2 - 2 * 2) / (6 * 6 * 4 * 4) ** 0.5),
    )
    def test_single_labels(self, name, expected):
        self.assertAllClose(self.compute(name, _RIGHT, _GUESS), expected, 1e-12)

    def test_matthews_of_a_constant_is_zero(self):
        self.assertEqual(self.compute(metrics.MATTHEWS, _RIGHT, 0 * _GUESS), 0)

    def test_correlations(self):
        right = np.array([1.0, 2.5, 2.5, 5.0, 4.0], np.float32)
        guess = np.array([0.5, 9.0, 3.0, 70.0, 8.0], np.float32)
        centred_right = right - right.mean(dtype=np.float64)
        centred_guess = guess - guess.mean(dtype=np.float64)
        pearson = np.sum(centred_right * centred_guess) / np.sqrt(
            np.sum(centred_right**2) * np.sum(centred_guess**2)
        )
        self.assertAllClose(
            self.compute(metrics.PEARSON, right, guess), pearson, 1e-12
        )
        # Ranks; equal values share the mean of their ranks.
        ranks_right = np.array([1, 2.5, 2.5, 5, 4])
        ranks_guess = np.array([1, 4, 2, 5, 3])
        self.assertAllClose(
            self.compute(metrics.SPEARMAN, right, guess),
            np.corrcoef(ranks_right, ranks_guess)[0, 1],
            1e-12,
        )
        self.assertAllClose(
            self.compute(metrics.MEAN_SQUARED_ERROR, right, guess),
            np.mean((right - guess) ** 2),
            1e-6,
        )
        self.assertAllClose(
            self.compute(metrics.MEAN_ABSOLUTE_ERROR, right, guess),
            np.mean(np.abs(right - guess)),
            1e-6,
        )

    @parameterized.parameters(metrics.PEARSON, metrics.SPEARMAN)
    def test_correlation_with_a_constant_is_zero(self, name):
        right = np.array([1.0, 2.0, 4.0], np.float32)
        self.assertEqual(self.compute(name, right, 0 * right + 3), 0.0)
        self.assertEqual(self.compute(name, right[:1], right[:1]), 0.0)

    # Of the columns, the first has one right; the second two right and one
    # missed; the third one and the first another one too much.
    @parameterized.parameters(
        (metrics.MICRO_PRECISION, 3 / 5),
        (metrics.MICRO_RECALL, 3 / 4),
        (metrics.MICRO_F1, 6 / 9),
        (metrics.MACRO_F1, (2 / 3 + 4 / 5 + 0) / 3),
        (metrics.SUBSET_ACCURACY, 2 / 4),
    )
    def test_multi_label(self, name, expected):
        right = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 1, 0]])
        guess = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 1]])
        self.assertAllClose(self.compute(name, right, guess), expected, 1e-12)

    def test_official_metrics(self):
        expected = {
            "cola": {"matthews_correlation"},
            "mrpc": {"f1", "accuracy"},
            "qqp": {"f1", "accuracy"},
            "sts-b": {"pearson", "spearmanr"},
            "ax": {"matthews_correlation", "accuracy"},
        }
        for name, task in glue_tasks.TASKS.items():
            self.assertEqual(
                set(task.metrics), expected.get(name, {"accuracy"})
            )

    def test_rejects_other_shapes_and_empty_arrays(self):
        for right, guess in ((_RIGHT, _GUESS[:-1]), (_RIGHT[:0], _GUESS[:0])):
            with self.assertRaisesRegex(ValueError, "same shape and at least"):
                metrics.compute_metrics([metrics.ACCURACY], right, guess)


def _random_tags(rng, agree_with=None):
    """Returns random tags as models predict them, including I- after O."""
    labels = ["O", "B-x", "I-x", "B-y-z", "I-y-z"]
    drawn = []
    for number in range(200):
        if agree_with is None:
            size = int(rng.integers(0, 12))
            drawn.append(rng.choice(labels, size).tolist())
            continue
        wanted = agree_with[number]
        drawn.append(
            [x if rng.random() < 0.8 else rng.choice(labels) for x in wanted]
        )
    return [[str(tag) for tag in tags] for tags in drawn]


class EntitiesTest(tf.test.TestCase, parameterized.TestCase):
    def test_equals_seqeval(self):
        rng = np.random.default_rng(5)
        references = _random_tags(rng)
        predictions = _random_tags(rng, references)
        *rows, (_, overall) = metrics.score_entities(references, predictions)
        report = seqeval_metrics.classification_report(
            references, predictions, output_dict=True, zero_division=0
        )
        self.assertEqual([name for name, _ in rows], ["x", "y-z"])
        for name, received in (*rows, ("micro avg", overall)):
            self.assertAllClose(
                [received.precision, received.recall, received.f1],
                [report[name][x] for x in ("precision", "recall", "f1-score")],
                atol=1e-12,
            )
            self.assertEqual(received.num_references, report[name]["support"])
        self.assertAllClose(
            metrics.tag_accuracy(references, predictions),
            seqeval_metrics.accuracy_score(references, predictions),
        )

    def test_counts(self):
        *rows, (_, overall) = metrics.score_entities(
            [["B-x", "O", "B-y", "I-y"], ["B-y"]],
            [["B-x", "B-z", "B-y", "O"], ["B-y"]],
        )
        # x in the first and y in the second sentence are correct.
        self.assertEqual(
            (overall.num_references, overall.num_predictions), (3, 4)
        )
        self.assertEqual(overall.num_correct, 2)
        self.assertAllClose(overall.f1, 4 / 7)
        by_type = dict(rows)
        self.assertEqual(list(by_type), ["x", "y", "z"])
        self.assertEqual(by_type["z"].recall, 0.0)
        self.assertEqual(by_type["y"].precision, 0.5)

    def test_entities_do_not_cross_sentences(self):
        tags = [["B-x"], ["I-x"]]
        *_, (_, overall) = metrics.score_entities(tags, tags)
        self.assertEqual(overall.num_references, 2)

    def test_no_entities(self):
        ((_, overall),) = metrics.score_entities([], [])
        self.assertEqual(overall.f1, 0.0)
        self.assertEqual(metrics.tag_accuracy([], []), 0.0)

    @parameterized.parameters(
        ([["O"], ["O"]], [["O"]]), ([["O"], ["O", "O"]], [["O"], ["O"]])
    )
    def test_unequal_lengths(self, references, predictions):
        with self.assertRaisesRegex(ValueError, "zip"):
            metrics.tag_accuracy(references, predictions)


if __name__ == "__main__":
    tf.test.main()

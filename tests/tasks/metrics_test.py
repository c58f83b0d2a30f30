"""Tests for bert_tf.tasks.metrics and bert_tf.tasks.result_tables."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from seqeval import metrics as seqeval_metrics

from bert_tf.tasks import metrics
from bert_tf.tasks import result_tables

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
    def test_single_label_metrics_match_formulas(self, name, expected):
        self.assertAllClose(self.compute(name, _RIGHT, _GUESS), expected, 1e-12)

    def test_matthews_of_a_constant_is_zero(self):
        self.assertEqual(self.compute(metrics.MATTHEWS, _RIGHT, 0 * _GUESS), 0)

    def test_correlations_and_errors_match_numpy(self):
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
        # Spearman compares ranks; equal values share their mean rank.
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

    # Column 0 has 1 true and 1 false positive; column 1 has 2 true positives
    # and 1 false negative; column 2 has 1 false positive.
    @parameterized.parameters(
        (metrics.MICRO_PRECISION, 3 / 5),
        (metrics.MICRO_RECALL, 3 / 4),
        (metrics.MICRO_F1, 6 / 9),
        (metrics.MACRO_F1, (2 / 3 + 4 / 5 + 0) / 3),
        (metrics.SUBSET_ACCURACY, 2 / 4),
    )
    def test_multi_label_metrics_match_formulas(self, name, expected):
        right = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 1, 0]])
        guess = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 1]])
        self.assertAllClose(self.compute(name, right, guess), expected, 1e-12)

    def test_rejects_other_shapes_and_empty_arrays(self):
        for right, guess in ((_RIGHT, _GUESS[:-1]), (_RIGHT[:0], _GUESS[:0])):
            with self.assertRaisesRegex(ValueError, "same shape and at least"):
                metrics.compute_metrics([metrics.ACCURACY], right, guess)


class ResultTablesTest(tf.test.TestCase):
    def test_matrix_of_few_labels_shows_all_counts(self):
        text = result_tables.confusion_matrix_text(
            ["no", "yes,\nvery much", "maybe"],
            np.array([[12, 3, 0], [1, 105, 4], [0, 0, 0]]),
        )
        self.assertEqual(
            text,
            """\
125 examples, 117 correct (93.60%), 3 labels

actual \\ predicted  [0]  [1]  [2]
[0] no               12    3    0
[1] yes, very much    1  105    4
[2] maybe             0    0    0

label           precision  recall     F1  support  predicted  correct
no                  92.31   80.00  85.71       15         13       12
yes, very much      97.22   95.45  96.33      110        108      105
maybe                0.00    0.00   0.00        0          4        0
""",
        )

    def test_matrix_of_many_labels_is_a_list_of_confusions(self):
        labels = [f"intent {number}" for number in range(21)]
        counts = 5 * np.eye(21, dtype=np.int64)
        counts[3, 20], counts[20, 3], counts[20, 4] = 1, 12, 1
        lines = result_tables.confusion_matrix_text(labels, counts).split("\n")
        self.assertEqual(
            lines[:7],
            [
                "119 examples, 105 correct (88.24%), 21 labels",
                "",
                "actual label  predicted label  times  of",
                "intent 20     intent 3            12  18",
                "intent 3      intent 20            1   6",
                "intent 20     intent 4             1  18",
                "",
            ],
        )
        self.assertLen(lines, 7 + 1 + 21 + 1)
        self.assertEqual(
            lines[-2],
            "intent 20      83.33   27.78   41.67       18          6        5",
        )

    def test_label_scores_form_a_table(self):
        references = np.array([[1, 0], [1, 1], [0, 0], [1, 0]])
        predictions = np.array([[1, 1], [0, 1], [0, 0], [1, 1]])
        self.assertEqual(
            result_tables.scores_text(
                "label",
                result_tables.label_score_rows(
                    ["toxic", "rude"], references, predictions
                ),
            ),
            """\
label    precision  recall     F1  support  predicted  correct
toxic       100.00   66.67  80.00        3          2        2
rude         33.33  100.00  50.00        1          3        1
overall      60.00   75.00  66.67        4          5        3
""",
        )


def _random_tags(rng, agree_with=None):
    """Returns random tags as models predict them, including I- after O."""
    labels = ["O", "B-x", "I-x", "B-y-z", "I-y-z", "E-x", "S-x", "S-y-z"]
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
    def test_entity_scores_equal_seqeval(self):
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

    def test_no_entities_score_zero(self):
        ((_, overall),) = metrics.score_entities([], [])
        self.assertEqual(overall.f1, 0.0)
        self.assertEqual(metrics.tag_accuracy([], []), 0.0)

    @parameterized.parameters(
        ([["O"], ["O"]], [["O"]]), ([["O"], ["O", "O"]], [["O"], ["O"]])
    )
    def test_unequal_lengths_are_refused(self, references, predictions):
        with self.assertRaisesRegex(ValueError, "zip"):
            metrics.tag_accuracy(references, predictions)


if __name__ == "__main__":
    tf.test.main()

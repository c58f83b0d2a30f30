"""Tests for bert_tf.tasks.tagging.metrics."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from seqeval import metrics

from bert_tf.tasks.tagging import metrics as tagging_metrics


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


class ScoreTest(tf.test.TestCase, parameterized.TestCase):
    def test_equals_seqeval(self):
        rng = np.random.default_rng(5)
        references = _random_tags(rng)
        predictions = _random_tags(rng, references)
        score = tagging_metrics.score(references, predictions)
        report = metrics.classification_report(
            references, predictions, output_dict=True, zero_division=0
        )
        self.assertEqual(list(score.by_type), ["x", "y-z"])
        names = dict(score.rows()) | {"micro avg": score.overall}
        self.assertEqual(names.pop("overall"), score.overall)
        for name, received in names.items():
            self.assertAllClose(
                [received.precision, received.recall, received.f1],
                [report[name][x] for x in ("precision", "recall", "f1-score")],
                atol=1e-12,
            )
            self.assertEqual(received.num_references, report[name]["support"])
        self.assertAllClose(
            score.accuracy, metrics.accuracy_score(references, predictions)
        )

    def test_counts(self):
        score = tagging_metrics.score(
            [["B-x", "O", "B-y", "I-y"], ["B-y"]],
            [["B-x", "B-z", "B-y", "O"], ["B-y"]],
        )
        # x in the first and y in the second sentence are correct.
        overall = score.overall
        self.assertEqual(
            (overall.num_references, overall.num_predictions), (3, 4)
        )
        self.assertEqual(overall.num_correct, 2)
        self.assertAllClose(overall.f1, 4 / 7)
        self.assertEqual(list(score.by_type), ["x", "y", "z"])
        self.assertEqual(score.by_type["z"].recall, 0.0)
        self.assertEqual(score.by_type["y"].precision, 0.5)

    def test_entities_do_not_cross_sentences(self):
        score = tagging_metrics.score([["B-x"], ["I-x"]], [["B-x"], ["I-x"]])
        self.assertEqual(score.overall.num_references, 2)

    def test_no_entities(self):
        score = tagging_metrics.score([], [])
        self.assertEqual((score.overall.f1, score.accuracy), (0.0, 0.0))
        self.assertEqual(score.by_type, {})

    @parameterized.parameters(
        ([["O"], ["O"]], [["O"]], "zip"),
        ([["O"], ["O", "O"]], [["O"], ["O"]], "zip"),
    )
    def test_unequal_lengths(self, references, predictions, message):
        with self.assertRaisesRegex(ValueError, message):
            tagging_metrics.score(references, predictions)


if __name__ == "__main__":
    tf.test.main()

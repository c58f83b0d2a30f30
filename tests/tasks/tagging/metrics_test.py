"""Tests for bert_tf.tasks.tagging.metrics."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from seqeval import metrics
from seqeval import scheme

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
    @parameterized.parameters(False, True)
    def test_equals_seqeval(self, strict):
        rng = np.random.default_rng(5)
        references = _random_tags(rng)
        predictions = _random_tags(rng, references)
        score = tagging_metrics.score(references, predictions, strict)
        mode = {"mode": "strict", "scheme": scheme.IOB2} if strict else {}
        report = metrics.classification_report(
            references, predictions, output_dict=True, zero_division=0, **mode
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

    def test_no_entities(self):
        score = tagging_metrics.score([], [])
        self.assertEqual((score.overall.f1, score.accuracy), (0.0, 0.0))
        self.assertEqual(score.by_type, {})

    @parameterized.parameters(
        ([["O"], ["O"]], [["O"]], "zip"),
        ([["O"], ["O", "O"]], [["O"], ["O"]], "2 tags for sentence 1.*: 1"),
    )
    def test_unequal_lengths(self, references, predictions, message):
        with self.assertRaisesRegex(ValueError, message):
            tagging_metrics.score(references, predictions)


if __name__ == "__main__":
    tf.test.main()

"""Tests for the plot of bert_tf.corpus.report."""

import tensorflow as tf

from bert_tf.corpus import report as corpus_report

_REPORT = {
    "files": {
        "a-0": {"documents": 5, "paragraphs": 9, "characters": 500},
        "a-1": {"documents": 6, "paragraphs": 8, "characters": 300},
        "held": {"documents": 2, "paragraphs": 2, "characters": 90},
    },
    "dropped": {
        "duplicate paragraph": {"count": 7, "characters": 400},
        "empty document": {"count": 3, "characters": 0},
    },
    "languages": {
        "de": {"share_before": 0.75, "share": 0.625},
        "eo": {"share_before": 0.25, "share": 0.375},
    },
    "recipe": {"flags": {"heldout_share": 0.1}},
}


def _bars(axes):
    return [bar.get_width() for bar in axes.patches]


def _names(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


class DrawTest(tf.test.TestCase):
    def test_bars_have_the_counts_of_the_report(self):
        documents, characters, languages = corpus_report.draw(_REPORT).axes
        self.assertEqual(
            _names(documents), ["kept", "held out", "empty document"]
        )
        self.assertEqual(_bars(documents), [11, 2, 3])
        self.assertEqual(
            _names(characters),
            ["kept", "held out", "duplicate paragraph", "empty document"],
        )
        self.assertEqual(_bars(characters), [800, 90, 400, 0])
        self.assertEqual(_names(languages), ["de", "eo"])
        self.assertAllClose(_bars(languages), [75, 25, 62.5, 37.5])


if __name__ == "__main__":
    tf.test.main()

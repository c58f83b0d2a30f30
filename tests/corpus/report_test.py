"""Tests for the plot of bert_tf.corpus.report."""

import pathlib

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

    def test_writes_a_png_of_one_language_without_heldout_text(self):
        report = {x: y for x, y in _REPORT.items() if x != "languages"}
        report["recipe"] = {"flags": {"heldout_share": 0.0}}
        path = pathlib.Path(self.get_temp_dir()) / "x.png"
        corpus_report.write_picture(str(path), report)
        self.assertEqual(path.read_bytes()[:4], b"\x89PNG")
        documents, _ = corpus_report.draw(report).axes
        self.assertEqual(_bars(documents), [13, 3])


if __name__ == "__main__":
    tf.test.main()

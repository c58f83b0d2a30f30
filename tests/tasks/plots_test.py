"""Tests for bert_tf.tasks.plots."""

import os
import warnings

import numpy as np
import tensorflow as tf
from absl import logging
from absl.testing import parameterized

from bert_tf.tasks import plots
from bert_tf.tasks.tagging.metrics import EntityScore

_ORANGE = (0xD9, 0x5F, 0x02)
_BLUE = (0x1F, 0x6F, 0xB4)
_DARKEST_OF_MATRIX = (0x08, 0x30, 0x6B)
_DOLLARS = "costs $5 or $_$"
_LONG = "a label whose name goes on " + 40 * "and on "


def _count(picture, color):
    return int(np.all(picture == color, axis=-1).sum())


class ResultPlotsTest(tf.test.TestCase, parameterized.TestCase):
    def _draw(self, draw, *args):
        path = os.path.join(self.create_tempdir().full_path, "a", "x.png")
        with warnings.catch_warnings():
            # Such as of names that leave no room for the rest.
            warnings.simplefilter("error")
            draw(path, *args)
        self.assertLen(os.listdir(os.path.dirname(path)), 1)
        return tf.io.decode_png(tf.io.read_file(path), channels=3).numpy()

    @parameterized.parameters(1, 2, 20, 21, 150, 500)
    def test_confusion_matrices_of_any_size(self, num_labels):
        labels = [f"label_{number}" for number in range(num_labels)]
        counts = 30 * np.eye(num_labels, dtype=np.int64)
        counts[0, -1] += 3
        picture = self._draw(plots.draw_confusion_matrix, labels, counts)
        height, width, _ = picture.shape
        self.assertBetween(height, 300, 2200)
        self.assertBetween(width, 400, 3000)
        # The diagonal.
        self.assertGreater(_count(picture, _DARKEST_OF_MATRIX), 1000)
        # The bar of a confusion, next to matrices of many labels.
        self.assertEqual(_count(picture, _BLUE) > 1000, num_labels > 20)

    @parameterized.parameters(3, 60)
    def test_long_names_leave_room_for_the_matrix(self, num_labels):
        counts = 30 * np.eye(num_labels, dtype=np.int64)
        short, long = (
            self._draw(
                plots.draw_confusion_matrix,
                [first, _DOLLARS, *map(str, range(num_labels - 2))],
                counts,
            )
            for first in ("short", _LONG)
        )
        self.assertGreater(
            _count(long, _DARKEST_OF_MATRIX),
            0.6 * _count(short, _DARKEST_OF_MATRIX),
        )

    def test_the_middle_of_long_names_is_omitted(self):
        shortened = plots._shorten(_LONG + " label\nof two")
        self.assertEqual(
            shortened, "a label whose \N{HORIZONTAL ELLIPSIS} label of two"
        )
        self.assertEqual(plots._shorten("x" * 28), "x" * 28)

    @parameterized.parameters(3, 40, 250)
    def test_labels_that_the_font_lacks_become_numbers(self, num_labels):
        counts = 30 * np.eye(num_labels, dtype=np.int64)
        counts[0, 1] = 7
        pictures = []
        for first in ("天気", "東", "weather"):
            labels = [first, *(f"label {i}" for i in range(1, num_labels))]
            is_lacking = first != "weather"
            self.assertEqual(plots.needs_numbers(labels), is_lacking)
            with self.assertLogs(level="INFO") as logs:
                logging.info("The picture.")
                pictures.append(
                    self._draw(plots.draw_confusion_matrix, labels, counts)
                )
            messages = [record.getMessage() for record in logs.records[1:]]
            self.assertLen(messages, int(is_lacking))
            for message in messages:
                self.assertIn(f"such as '{first[0]}'; x.txt", message)
        self.assertAllEqual(pictures[0], pictures[1])
        self.assertFalse(np.array_equal(pictures[0], pictures[2]))

    def test_types_that_the_font_lacks_become_numbers(self):
        scores = [EntityScore(i + 1, 9, i) for i in range(62)]
        pictures = []
        for first in ("人", "東", "PER"):
            names = [first, *(f"T{i}" for i in range(1, 61)), "overall"]
            pictures.append(
                self._draw(
                    plots.draw_entity_scores,
                    list(zip(names, scores, strict=True)),
                )
            )
        self.assertAllEqual(pictures[0], pictures[1])
        different = np.any(pictures[0] != pictures[2], axis=-1)
        # The names are on the left.
        self.assertGreater(different[:, :80].sum(), 1000)

    def test_labels_that_the_font_has_remain(self):
        self.assertFalse(
            plots.needs_numbers(["schön\n", "погода", "a\tb", _DOLLARS])
        )

    def test_labels_that_do_not_occur(self):
        counts = np.array([[5, 1, 0], [0, 0, 0], [0, 0, 0]])
        picture = self._draw(
            plots.draw_confusion_matrix, ["a", "b", "c"], counts
        )
        self.assertEqual(_count(picture, _DARKEST_OF_MATRIX), 0)

    @parameterized.parameters(1, 5, 3000)
    def test_scatters(self, count):
        rng = np.random.default_rng(count)
        references = rng.integers(0, 26, count) / 5
        picture = self._draw(
            plots.draw_score_scatter,
            references.astype(np.float32),
            references + rng.normal(size=count),
        )
        self.assertEqual(picture.shape, (660, 660, 3))
        # Neither white nor gray: points.
        colored = np.ptp(picture.astype(int), axis=-1) > 20
        self.assertGreater(colored.sum(), 20)

    def test_scatter_of_a_constant(self):
        picture = self._draw(plots.draw_score_scatter, [1.0, 2.0], [1.5, 1.5])
        self.assertEqual(picture.shape, (660, 660, 3))

    def test_entity_scores(self):
        rows = [
            ("LOC", EntityScore(10, 10, 8)),
            (_LONG, EntityScore(5, 0, 0)),
            (_DOLLARS, EntityScore(0, 2, 0)),
        ]
        picture = self._draw(
            plots.draw_entity_scores,
            [*rows, ("overall", EntityScore(15, 12, 8))],
        )
        self.assertEqual(picture.shape[1], 880)
        self.assertGreater(_count(picture, _ORANGE), 2000)

    def test_draws_the_most_frequent_types(self):
        overall = ("overall", EntityScore(9, 9, 9))
        rows = [(f"T{i}", EntityScore(i, i, i)) for i in range(300)]
        many = self._draw(plots.draw_entity_scores, [*rows, overall])
        sixty = self._draw(plots.draw_entity_scores, [*rows[:60], overall])
        self.assertEqual(many.shape, sixty.shape)
        # T0 has no F1; the last sixty types have one.
        self.assertGreater(_count(many, _ORANGE), _count(sixty, _ORANGE))

    def test_no_correct_predictions(self):
        picture = self._draw(
            plots.draw_entity_scores, [("overall", EntityScore(3, 0, 0))]
        )
        self.assertEqual(picture.shape[1], 880)


if __name__ == "__main__":
    tf.test.main()

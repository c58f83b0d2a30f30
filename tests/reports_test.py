"""Tests for bert_tf.reports, and the pictures of `result_tables`."""

import os
import warnings
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from bert_tf import reports
from bert_tf.tasks import result_tables
from bert_tf.tasks.metrics import EntityScore

_BLUE, _ORANGE = (0x1F, 0x6F, 0xB4), (0xD9, 0x5F, 0x02)
_DARKEST_OF_MATRIX = (0x08, 0x30, 0x6B)
_DOLLARS = "costs $5 or $_$"
_LONG = "a label whose name goes on " + 40 * "and on "
_PANELS = [(name, name.title(), 1) for name in "abcde"]


def _count(picture, color):
    return int(np.all(picture == color, axis=-1).sum())


class _Pictures(parameterized.TestCase):
    """Mixin that draws a picture and returns its pixels or its panels."""

    def draw(self, write, *args):
        """Returns the pixels of what is written to <path>.png."""
        path = os.path.join(self.create_tempdir().full_path, "a", "x")
        with warnings.catch_warnings():
            # Matplotlib only warns if long names leave no room for the axes.
            warnings.simplefilter("error")
            write(path, *args)
        picture = tf.io.decode_png(tf.io.read_file(f"{path}.png"), channels=3)
        return picture.numpy()

    def draw_axes(self, write, *args):
        """Returns the panels of a picture."""
        with mock.patch.object(reports, "write") as wrote:
            write(os.path.join(self.create_tempdir().full_path, "x"), *args)
        return wrote.call_args.args[1].axes


class ConfusionMatrixTest(_Pictures, tf.test.TestCase):
    def _matrix(self, labels, counts):
        return self.draw(result_tables.write_confusion_matrix, labels, counts)

    @parameterized.parameters(1, 2, 20, 21, 77, 500)
    def test_draws_matrices_of_any_size(self, num_labels):
        labels = [f"label_{number}" for number in range(num_labels)]
        counts = 30 * np.eye(num_labels, dtype=np.int64)
        counts[0, -1] += 3
        picture = self._matrix(labels, counts)
        height, width, _ = picture.shape
        self.assertBetween(height, 400, 2800)
        self.assertBetween(width, 600, 3700)
        # Nearly all counts are on the diagonal, so it has the darkest color.
        self.assertGreater(_count(picture, _DARKEST_OF_MATRIX), 1000)
        # Over 20 labels, numbers do not fit, so bars show the confusions.
        self.assertEqual(_count(picture, _BLUE) > 1000, num_labels > 20)

    @parameterized.parameters(3, 60)
    def test_long_names_leave_room_for_the_matrix(self, num_labels):
        counts = 30 * np.eye(num_labels, dtype=np.int64)
        others = [_DOLLARS, *map(str, range(num_labels - 2))]
        short, long = (
            _count(self._matrix([first, *others], counts), _DARKEST_OF_MATRIX)
            for first in ("short", _LONG)
        )
        self.assertGreater(long, 0.6 * short)

    def test_labels_that_do_not_occur_leave_cells_light(self):
        counts = np.array([[5, 1, 0], [0, 0, 0], [0, 0, 0]])
        picture = self._matrix(["a", "b", "c"], counts)
        self.assertEqual(_count(picture, _DARKEST_OF_MATRIX), 0)

    def test_cells_have_counts_that_contrast_with_their_color(self):
        counts = np.array([[7, 3], [1, 2]])
        (axes,) = self.draw_axes(
            result_tables.write_confusion_matrix, ["a", "b"], counts
        )
        self.assertEqual(
            [(cell.get_text(), cell.get_color()) for cell in axes.texts],
            [("7", "white"), ("3", "black"), ("1", "black"), ("2", "white")],
        )
        self.assertEqual(axes.get_ylabel(), "actual label")

    def test_most_frequent_confusions_come_first(self):
        counts = np.array([[9, 0, 2], [7, 0, 2], [0, 3, 1]])
        self.assertEqual(
            reports.confusions(counts), [(1, 0), (2, 1), (0, 2), (1, 2)]
        )


class NamesTest(_Pictures, tf.test.TestCase):
    def test_the_middle_of_long_names_is_omitted(self):
        self.assertEqual(
            reports.shorten(_LONG + " label\nof two"),
            "a label whose \N{HORIZONTAL ELLIPSIS} label of two",
        )
        self.assertEqual(reports.shorten("x" * 28), "x" * 28)

    def test_names_that_the_font_lacks_become_numbers(self):
        for name, is_drawn in (
            ("天気", False),
            ("東", False),
            ("pogoda", True),
        ):
            with self.subTest(name):
                with mock.patch.object(reports.logging, "info") as logged:
                    names, note = reports.drawable([name, "b"], "out/x.txt")
                expected = [name, "b"] if is_drawn else ["[0]", "[1]"]
                self.assertEqual(names, expected)
                self.assertEqual(not note, is_drawn)
                self.assertEqual(logged.called, not is_drawn)
        self.assertIn("see x.txt", reports.drawable(["天"], "out/x.txt")[1])

    @parameterized.parameters(3, 21)
    def test_the_text_beside_the_picture_has_numbers_and_names(self, count):
        names = ["天気", *(f"label {i}" for i in range(1, count))]
        folder = self.create_tempdir().full_path
        counts = 5 * np.eye(count, dtype=np.int64)
        counts[0, 1] = 1
        result_tables.write_confusion_matrix(f"{folder}/x", names, counts)
        result_tables.write_scores(
            f"{folder}/y",
            "type",
            [(name, EntityScore(1, 1, 1)) for name in (*names, "overall")],
        )
        for file in "x.txt", "y.txt":
            with open(f"{folder}/{file}", encoding="utf-8") as text:
                lines = text.read().splitlines()
            self.assertTrue(any("[0] 天気 " in line for line in lines))
            self.assertTrue(any("[2] label 2 " in line for line in lines))
            self.assertFalse(any("[0] [0]" in line for line in lines))

    def test_names_that_the_font_has_remain(self):
        names, _ = reports.drawable(["schön\n", "погода", "a\tb"], "x.txt")
        self.assertEqual(names, ["schön", "погода", "a b"])


class BarsTest(_Pictures, tf.test.TestCase):
    def test_draws_scores_as_bars(self):
        rows = [
            ("LOC", EntityScore(10, 10, 8)),
            (_LONG, EntityScore(5, 0, 0)),
            (_DOLLARS, EntityScore(0, 2, 0)),
            ("overall", EntityScore(15, 12, 8)),
        ]
        picture = self.draw(result_tables.write_scores, "type", rows)
        self.assertEqual(picture.shape[1], 705)
        self.assertGreater(_count(picture, _ORANGE), 2000)

    def test_the_most_frequent_types_are_drawn_in_order(self):
        rows = [(f"T{i}", EntityScore(i, i, i)) for i in range(100)]
        (axes,) = self.draw_axes(
            result_tables.write_scores, "type", [*rows, ("overall", rows[9][1])]
        )
        names = [label.get_text() for label in axes.get_yticklabels()]
        expected = [f"T{i} ({i})" for i in range(40, 100)]
        self.assertEqual(names, [*expected, "overall (9)"])

    def test_bars_have_values_and_one_legend_entry_a_series(self):
        figure, panels = reports.new_panels("Title", [2, 2])
        for axes in panels:
            reports.draw_bars(
                axes, ["one", "two"], {"ours": [1, -2], "the paper's": [3, 4]}
            )
        reports.add_legend(figure)
        self.assertEqual(
            [bar.get_width() for bar in axes.patches], [1, -2, 3, 4]
        )
        labels = [text.get_text() for text in figure.legends[0].get_texts()]
        self.assertEqual(labels, ["ours", "the paper's"])


class LinesTest(_Pictures, tf.test.TestCase):
    def _curves(self, panels, train, evaluation=()):
        def write(path, *args):
            reports.write_learning_curves(f"{path}.png", *args)

        axes = self.draw_axes(write, panels, train, evaluation, "A run")
        self.draw(write, panels, train, evaluation, "A run")
        return {x.get_title(loc="left").strip(): x for x in axes}

    def test_draws_training_and_evaluation(self):
        train = [{"step": i, "a": 9 / i, "b": i} for i in range(1, 90)]
        evaluation = [{"global_step": i, "a": 0.5} for i in (30, 80)]
        panels = self._curves(_PANELS[:2], train, evaluation)
        single, average, dev = panels["A"].lines
        self.assertAllClose(single.get_ydata(), [row["a"] for row in train])
        self.assertLen(average.get_ydata(), 89)
        self.assertAllEqual(dev.get_xdata(), [30, 80])
        self.assertEqual(panels["A"].get_title(loc="right"), "evaluation 0.5")
        self.assertLen(panels["B"].lines, 2)

    @parameterized.parameters(1, 2, 5)
    def test_panels_fill_each_row(self, number):
        row = {"step": 1} | {name: 1.0 for name, _, _ in _PANELS}
        panels = self._curves(_PANELS[:number], [row])
        widths = [x.get_position().width for x in panels.values()]
        self.assertLen(widths, number)
        wide = number % 2
        self.assertTrue(all(width > 0.6 for width in widths[:wide]))
        self.assertTrue(all(width < 0.5 for width in widths[wide:]))

    def test_leaves_out_values_missing_or_not_finite(self):
        rows = [{"step": 1, "a": None}, {"step": 2, "a": np.nan, "b": 1.0}]
        panels = self._curves(_PANELS[:2], rows)
        self.assertEqual(panels["A"].texts[0].get_text(), "not measured")
        self.assertAllEqual(panels["B"].lines[0].get_xdata(), [2])
        self._curves(_PANELS, [])

    def test_moving_average_keeps_lines_and_smooths_noise(self):
        line = np.linspace(5, 1, 100)
        smooth = reports.moving_average(line, 10)
        self.assertAllClose(smooth[:95], line[:95])
        noise = np.random.default_rng(0).normal(size=1000)
        smooth = reports.moving_average(noise, 50)
        self.assertLess(smooth[25:].std(), 0.3)


class ScatterTest(_Pictures, tf.test.TestCase):
    @parameterized.parameters(1, 5, 3000)
    def test_scatters_show_points_for_any_count(self, count):
        rng = np.random.default_rng(count)
        references = rng.integers(0, 26, count) / 5
        picture = self.draw(
            result_tables.write_score_scatter,
            references.astype(np.float32),
            references + rng.normal(size=count),
        )
        self.assertEqual(picture.shape, (705, 705, 3))
        # Only points have a color; the background and the text are gray.
        colored = np.ptp(picture.astype(int), axis=-1) > 20
        self.assertGreater(colored.sum(), 20)

    def test_scatter_of_a_constant_is_drawn(self):
        picture = self.draw(
            result_tables.write_score_scatter, [1.0, 2.0], [1.5, 1.5]
        )
        self.assertEqual(picture.shape, (705, 705, 3))


if __name__ == "__main__":
    tf.test.main()

"""Tests for bert_tf.tasks.result_tables."""

import numpy as np
import tensorflow as tf

from bert_tf.tasks import result_tables


class ResultTablesTest(tf.test.TestCase):
    def test_matrix_of_few_labels(self):
        text = result_tables.confusion_matrix_text(
            ["no", "yes,\nvery much", "maybe"],
            np.array([[12, 3, 0], [1, 105, 4], [0, 0, 0]]),
        )
        self.assertEqual(
            text,
            """\
125 examples, 117 right (93.60%), 3 labels

right \\ predicted   [0]  [1]  [2]
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
                "119 examples, 105 right (88.24%), 21 labels",
                "",
                "right label  predicted label  times  of",
                "intent 20    intent 3            12  18",
                "intent 3     intent 20            1   6",
                "intent 20    intent 4             1  18",
                "",
            ],
        )
        self.assertLen(lines, 7 + 1 + 21 + 1)
        self.assertEqual(
            lines[-2],
            "intent 20      83.33   27.78   41.67       18          6        5",
        )

    def test_label_scores(self):
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


if __name__ == "__main__":
    tf.test.main()

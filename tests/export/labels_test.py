"""Tests for export.labels."""

from unittest import mock

import tensorflow as tf

from bert_tf.errors import UserError
from bert_tf.export import labels


def _find(head, names):
    task = mock.Mock(labels=names)
    with mock.patch.object(labels.tasks, "from_stored", lambda _: task):
        return labels.find(head, mock.Mock())


class LabelsTest(tf.test.TestCase):
    def test_heads_that_choose_have_names(self):
        self.assertEqual(_find("classification", ["a", "b"]), ("a", "b"))
        self.assertEqual(_find("tagging", ["O", "B"]), ("O", "B"))
        self.assertEqual(_find("classification", None), ())
        self.assertEqual(_find("embeddings", ["a", "b"]), ())
        self.assertEqual(_find("next_sentence", []), ("is_next", "not_next"))

    def test_those_that_would_be_two_lines_are_refused(self):
        with self.assertRaisesRegex(UserError, "no line end.*two"):
            _find("classification", ("fine", "two\nlines"))


if __name__ == "__main__":
    tf.test.main()

"""Tests for export.tflite.client_texts."""

import types

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.config import ASCII_LOWER
from bert_tf.export.tflite import client_texts
from bert_tf.tasks.classification.examples import InputExample
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.text.tokenizer import BertTokenizer
from tests.support import client_models


def _build(head="classification", pair=False, reads="ids", **settings):
    """Returns the parts of a `Build` that are read."""
    tokenizer = BertTokenizer(client_models.VOCABULARY, **settings)
    return types.SimpleNamespace(
        name=head,
        config=types.SimpleNamespace(input=reads),
        head=types.SimpleNamespace(tokenizer=tokenizer, pair=pair),
    )


class ClientTextsTest(tf.test.TestCase, parameterized.TestCase):
    def test_counts_texts_that_are_tokenized_differently(self):
        uncased = BertTokenizer(client_models.VOCABULARY)
        texts = ["The FILM!", "Café", "cafe", "a\u00a0b", "中文", "É", ""]
        self.assertEqual(client_texts.count_changed(uncased, texts), 3)
        cased = BertTokenizer(client_models.VOCABULARY, lower_case=False)
        self.assertEqual(client_texts.count_changed(cased, texts), 3)
        theirs = BertTokenizer(
            client_models.VOCABULARY, normalization=ASCII_LOWER
        )
        self.assertEqual(client_texts.count_changed(theirs, texts), 0)

    def test_counts_affected_examples(self):
        examples = [
            InputExample("1", "The film"),
            InputExample("2", "the", "Café"),
            InputExample("3", "É"),
        ]
        note = client_texts.note(_build(), examples)
        self.assertRegex(note, "only ASCII.* affects 2 of the 3 .*ascii_l")
        of_squad = [
            SquadExample("1", "who?", ("É", "the"), (0, 2)),
            SquadExample("2", "was?", ("the",), (0,)),
        ]
        note = client_texts.note(_build("question_answering"), of_squad)
        self.assertIn("affects 1 of the 2 examples of --eval_file.", note)
        self.assertNotIn("examples", client_texts.note(_build()))

    def test_note_for_cased_models(self):
        note = client_texts.note(_build(lower_case=False))
        self.assertRegex(note, "lower-case all ASCII.*cased")

    @parameterized.parameters(
        {"normalization": ASCII_LOWER},
        {"reads": "text"},
        {"pair": True},
        {"head": "tagging"},
    )
    def test_no_note_without_differences(self, **values):
        self.assertIsNone(client_texts.note(_build(**values)))


if __name__ == "__main__":
    tf.test.main()

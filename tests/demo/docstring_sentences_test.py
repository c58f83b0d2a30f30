"""Tests for bert_tf.demo.docstring_sentences."""

import csv

import tensorflow as tf

from bert_tf.demo import docstring_sentences


def _sentence(word):
    return f"This sentence is about the {word} only."


def _document(library, *words):
    return library, [" ".join(map(_sentence, words))]


class ChooseSentencesTest(tf.test.TestCase):
    def test_libraries_have_equally_many(self):
        shares = [
            [
                _document("two", "lake", "sea"),
                _document("one", "ash", "elm", "fir"),
                _document("one", "oak", "yew"),
            ],
            [_document("two", "pond", "well"), _document("one", "box")],
        ]
        train, dev = docstring_sentences.choose_sentences(shares, (9, 9))
        self.assertEqual(
            train,
            [
                # Two of five, from all over them.
                (_sentence("ash"), "one"),
                (_sentence("fir"), "one"),
                (_sentence("lake"), "two"),
                (_sentence("sea"), "two"),
            ],
        )
        self.assertEqual(
            dev, [(_sentence("box"), "one"), (_sentence("pond"), "two")]
        )
        train, dev = docstring_sentences.choose_sentences(shares, (1, 9))
        self.assertEqual(
            train, [(_sentence("ash"), "one"), (_sentence("lake"), "two")]
        )
        self.assertLen(dev, 2)

    def test_what_occurs_twice_is_left_out_of_all(self):
        shares = [
            [_document("one", "ash", "elm"), _document("two", "lake", "sea")],
            # One sentence of another share, and one of another library.
            [_document("one", "elm", "oak"), _document("two", "oak", "pond")],
        ]
        train, dev = docstring_sentences.choose_sentences(shares, (9, 9))
        self.assertEqual(
            train, [(_sentence("ash"), "one"), (_sentence("lake"), "two")]
        )
        # Nothing is left of the first library there, so of none.
        self.assertEqual(dev, [])

    def test_fragments_are_left_out(self):
        paragraphs = [
            "Too short for us.",
            "this has no beginning and so it is a part.",
            "Words " + 40 * "and words " + "without an end.",
            "It has exactly as many words.",
        ]
        self.assertEqual(
            docstring_sentences.choose_sentences([[("one", paragraphs)]], [9]),
            [[("It has exactly as many words.", "one")]],
        )

    def test_csv_can_be_read(self):
        rows = [('He said: "a, b".', "one"), ("Ünder", "two")]
        lines = docstring_sentences.to_csv(rows).splitlines()
        self.assertEqual(
            list(csv.DictReader(lines)),
            [
                {"sentence": sentence, "library": library}
                for sentence, library in rows
            ],
        )


if __name__ == "__main__":
    tf.test.main()

import ast
import csv
import os
import sys
import sysconfig
import unittest.mock

import pytest
import tensorflow as tf

from bert_tf.data import corpus
from bert_tf.demo import corpus as demo_corpus
from bert_tf.errors import UserError

_SOURCE = '''
"""The module has a docstring with this one sentence.

And it has a second paragraph, which is here to be found.
"""
import sys
sys.exit("This must never run.")

class Outer(object):
    """The outer class explains itself in this sentence."""

    def method(self):
        """A method belongs to its class and comes after it."""

        def inner():
            """Docstrings inside functions are not documentation."""

    class Inner:
        """The inner class is a document of its own here."""

async def function():
    """A function belongs to the module that it is in."""
'''

_DOCSTRING = """Computes the [weighted](http://a.b) mean of all `values` given.

Args:
    values: A list of *numbers* to compute the mean of.
    weights: A list of numbers, as many as there are values.

Parameters
----------
axis : int or None

>>> mean([1, 2, 3]) is a call that nobody should find in the text.
2.0

The result is a number, see https://example.com and this :func:`sum` function.

```
This is code in a fence and should not be found either.
```
 - The first bullet of two is a paragraph of its own.
 - Second bullet.
"""


def _prose(subject, number=4):
    numerals = ["first", "second", "third", "fourth", "fifth", "sixth"]
    return "\n\n".join(
        f"The {numeral} paragraph tells about {subject} what there is to tell."
        for numeral in numerals[:number]
    )


def _sentence(word):
    return f"This sentence is about the {word} only."


def _document(library, *words):
    return library, [" ".join(map(_sentence, words))]


class ReadScopeTest(tf.test.TestCase):
    def test_one_document_per_module_and_class(self):
        documents = demo_corpus._read_scope("a/b.py", ast.parse(_SOURCE))
        self.assertEqual(
            dict(documents),
            {
                "a/b.py": [
                    "The module has a docstring with this one sentence.",
                    "And it has a second paragraph, which is here to be found.",
                    "A function belongs to the module that it is in.",
                ],
                "a/b.py.Outer": [
                    "The outer class explains itself in this sentence.",
                    "A method belongs to its class and comes after it.",
                ],
                "a/b.py.Outer.Inner": [
                    "The inner class is a document of its own here."
                ],
            },
        )


class ExtractParagraphsTest(tf.test.TestCase):
    def test_drops_code_headings_and_markup(self):
        self.assertEqual(
            demo_corpus.extract_paragraphs(_DOCSTRING),
            [
                "Computes the weighted mean of all values given.",
                "values: A list of numbers to compute the mean of.",
                "weights: A list of numbers, as many as there are values.",
                "The result is a number, see and this sum function.",
                "The first bullet of two is a paragraph of its own.",
            ],
        )


class ChooseSentencesTest(tf.test.TestCase):
    def test_libraries_have_equally_many(self):
        splits = [
            [
                _document("two", "lake", "sea"),
                _document("one", "ash", "elm", "fir"),
                _document("one", "oak", "yew"),
            ],
            [_document("two", "pond", "well"), _document("one", "box")],
        ]
        train, dev = demo_corpus.choose_sentences(splits, (9, 9))
        self.assertEqual(
            train,
            [
                # Two of five, spread evenly.
                (_sentence("ash"), "one"),
                (_sentence("fir"), "one"),
                (_sentence("lake"), "two"),
                (_sentence("sea"), "two"),
            ],
        )
        self.assertEqual(
            dev, [(_sentence("box"), "one"), (_sentence("pond"), "two")]
        )
        train, dev = demo_corpus.choose_sentences(splits, (1, 9))
        self.assertEqual(
            train, [(_sentence("ash"), "one"), (_sentence("lake"), "two")]
        )
        self.assertLen(dev, 2)

    def test_repeated_sentences_are_left_out(self):
        splits = [
            [_document("one", "ash", "elm"), _document("two", "lake", "sea")],
            # One sentence of the other split, and one of the other library.
            [_document("one", "elm", "oak"), _document("two", "oak", "pond")],
        ]
        train, dev = demo_corpus.choose_sentences(splits, (9, 9))
        self.assertEqual(
            train, [(_sentence("ash"), "one"), (_sentence("lake"), "two")]
        )
        # The first library has no sentence left there.
        self.assertEqual(dev, [])

    def test_fragments_are_left_out(self):
        paragraphs = [
            "Too short for us.",
            "this has no beginning and so it is a part.",
            "Words " + 40 * "and words " + "without an end.",
            "It has exactly as many words.",
        ]
        self.assertEqual(
            demo_corpus.choose_sentences([[("one", paragraphs)]], [9]),
            [[("It has exactly as many words.", "one")]],
        )

    def test_csv_can_be_read(self):
        rows = [('He said: "a, b".', "one"), ("Ünder", "two")]
        lines = demo_corpus.to_csv(rows).splitlines()
        self.assertEqual(
            [tuple(row.values()) for row in csv.DictReader(lines)], rows
        )


class WriteCorpusTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        paths = sysconfig.get_paths() | {"stdlib": f"{self.folder}/stdlib"}
        for patch in (
            unittest.mock.patch.object(sys, "path", [self.folder, *sys.path]),
            unittest.mock.patch.object(
                demo_corpus.sysconfig, "get_paths", lambda: paths
            ),
            unittest.mock.patch.dict(demo_corpus.topics.topics, clear=True),
        ):
            self.enter_context(patch)

    def write_source(self, path, docstring):
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(docstring if "\0" in docstring else f'"""{docstring}"""')

    def write_corpus(self, **options):
        """Returns the training and the held-out documents."""
        paths = [os.path.join(self.folder, x) for x in ("text.txt", "held.txt")]
        demo_corpus.write_corpus(*paths, **options)
        return [
            list(corpus.read_documents([path], may_be_empty=True))
            for path in paths
        ]

    def test_reads_topics_then_packages_in_order(self):
        demo_corpus.topics.topics["loops"] = _prose("loops")
        self.write_source("one/__init__.py", _prose("ones"))
        self.write_source("one/b.py", _prose("ones") + "\n\n" + _prose("bees"))
        self.write_source("one/a/c.py", _prose("seas"))
        self.write_source("one/short.py", _prose("shortness", 2))
        self.write_source("one/bad.py", "no \0 Python")
        self.write_source("one/tests/x.py", _prose("tests"))
        self.write_source("one/x_test.py", _prose("tests"))
        self.write_source("two/__init__.py", _prose("twos"))
        documents = sum(self.write_corpus(packages=["two", "one"]), [])
        self.assertCountEqual(
            documents,
            [
                _prose(x).split("\n\n")
                for x in ("loops", "twos", "ones", "seas", "bees")
            ],
        )

    def test_names_decide_what_is_held_out(self):
        self.write_source("one/__init__.py", "")
        names = [f"m{i:03}" for i in range(100)]
        for name in names:
            self.write_source(f"one/{name}.py", _prose(name))
        train, heldout = self.write_corpus(packages=["one"])
        self.assertLen(train + heldout, 100)
        self.assertBetween(len(heldout), 1, 15)
        # New documents do not move the others between the files.
        self.write_source("one/a_new_one.py", _prose("news"))
        _, again = self.write_corpus(packages=["one"])
        self.assertContainsSubset(map(tuple, heldout), map(tuple, again))

    def test_sentences_are_labeled_with_their_library(self):
        for i in range(100):
            for folder in ("one", "stdlib"):
                prose = _prose(f"module {i} of {folder}")
                self.write_source(f"{folder}/m{i}.py", prose)
        self.write_source("one/__init__.py", "")
        paths = [os.path.join(self.folder, x) for x in ("a.csv", "b.csv")]
        splits = self.write_corpus(sentence_files=paths, packages=["one"])
        for path, documents in zip(paths, splits, strict=True):
            paragraphs = {line for document in documents for line in document}
            with open(path, encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            labels = [row["library"] for row in rows]
            self.assertGreaterEqual(labels.count("one"), 4)
            self.assertEqual(labels.count("one"), labels.count("python"))
            for row in rows:
                folder = {"one": "one", "python": "stdlib"}[row["library"]]
                self.assertIn(f"of {folder} what", row["sentence"])
                self.assertIn(row["sentence"], paragraphs)

    def test_rejects_a_package_that_is_not_installed(self):
        with self.assertRaisesRegex(UserError, "'no_such' is not installed"):
            self.write_corpus(packages=["no_such"])
        self.assertEmpty(os.listdir(self.folder))


class RealCorpusTest(tf.test.TestCase):
    @pytest.mark.slow
    def test_numpy_gives_prose(self):
        folder = self.create_tempdir().full_path
        paths = [os.path.join(folder, x) for x in ("text.txt", "held.txt")]
        with unittest.mock.patch.object(
            demo_corpus.sysconfig, "get_paths", lambda: {"stdlib": folder}
        ):
            demo_corpus.write_corpus(*paths, packages=["numpy"])
        documents = [list(corpus.read_documents([path])) for path in paths]
        self.assertBetween(len(documents[1]) / len(documents[0]), 0.01, 0.12)
        paragraphs = [
            {line for document in split for line in document}
            for split in documents
        ]
        self.assertEmpty(paragraphs[0] & paragraphs[1])
        text = "\n".join(paragraphs[0])
        self.assertGreater(len(text), 500_000)
        self.assertNotIn(">>>", text)
        self.assertNotRegex(text, r"(?m)^(Parameters|Returns|-----)$")
        self.assertNotIn("`", text)


if __name__ == "__main__":
    tf.test.main()

import csv
import os
import sys
import unittest.mock

import tensorflow as tf

from bert_tf.data import corpus
from bert_tf.demo import corpus as demo_corpus
from bert_tf.demo.corpus import Document
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
            """What is inside of functions is not documentation."""

    class Inner:
        """The inner class is a document of its own here."""

async def function():
    """A function belongs to the module that it is in."""
'''


def _prose(subject, number=4):
    numerals = ["first", "second", "third", "fourth", "fifth", "sixth"]
    return "\n\n".join(
        f"The {numeral} paragraph tells about {subject} what there is to tell."
        for numeral in numerals[:number]
    )


class ParseSourceTest(tf.test.TestCase):
    def test_one_document_per_module_and_class(self):
        documents = demo_corpus.parse_source("a.b", _SOURCE.encode())
        self.assertEqual(
            documents,
            [
                Document(
                    "a.b",
                    [
                        "The module has a docstring with this one sentence.",
                        "And it has a second paragraph, which is here to be "
                        "found.",
                        "A function belongs to the module that it is in.",
                    ],
                ),
                Document(
                    "a.b.Outer",
                    [
                        "The outer class explains itself in this sentence.",
                        "A method belongs to its class and comes after it.",
                    ],
                ),
                Document(
                    "a.b.Outer.Inner",
                    ["The inner class is a document of its own here."],
                ),
            ],
        )

    def test_topics(self):
        text = _prose("x", 1)
        source = f"topics = {{'loops': {text!r}, 'names': 'Too short.'}}"
        self.assertEqual(
            demo_corpus.parse_source("pydoc_data.topics", source.encode()),
            [
                Document("pydoc_data.topics.loops", [_prose("x", 1)]),
                Document("pydoc_data.topics.names", []),
            ],
        )


class WriteCorpusTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.create_tempdir().full_path
        self.enter_context(
            unittest.mock.patch.object(sys, "path", [self.folder, *sys.path])
        )
        self.enter_context(
            unittest.mock.patch.object(
                demo_corpus, "_find_standard_library", lambda: []
            )
        )

    def write_source(self, path, docstring):
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(docstring if "\0" in docstring else f'"""{docstring}"""')

    def write_corpus(self, **options):
        paths = [os.path.join(self.folder, x) for x in ("text.txt", "held.txt")]
        counts = demo_corpus.write_corpus(*paths, **options)
        documents = []
        for path in paths:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            documents.append(
                list(corpus.read_documents([path])) if text else []
            )
        return counts, *documents

    def test_reads_packages_in_order_once(self):
        self.write_source("one/__init__.py", _prose("ones"))
        self.write_source("one/b.py", _prose("ones") + "\n\n" + _prose("bees"))
        self.write_source("one/a/c.py", _prose("seas"))
        self.write_source("one/short.py", _prose("shortness", 2))
        self.write_source("one/bad.py", "no \0 Python")
        self.write_source("one/tests/x.py", _prose("tests"))
        self.write_source("one/x_test.py", _prose("tests"))
        self.write_source("two/__init__.py", _prose("twos"))
        counts, documents, heldout = self.write_corpus(
            packages=["two", "one"], heldout_fraction=0
        )
        self.assertEqual(heldout, [])
        self.assertEqual(
            documents,
            [_prose(x).split("\n\n") for x in ("twos", "ones", "bees", "seas")],
        )
        self.assertEqual(
            (counts.files, counts.unreadable, counts.documents), (6, 1, 4)
        )

    def test_names_decide_what_is_held_out(self):
        names = [f"m{i:02}" for i in range(40)]
        self.write_source("one/__init__.py", "")
        for name in names:
            self.write_source(f"one/{name}.py", _prose(name))
        _, documents, heldout = self.write_corpus(
            packages=["one"], heldout_fraction=0.3
        )
        self.assertLen(documents + heldout, 40)
        chosen = [
            name
            for name in names
            if demo_corpus.hash_share(f"one.{name}") < 0.3
        ]
        self.assertEqual(heldout, [_prose(x).split("\n\n") for x in chosen])
        self.assertBetween(len(chosen), 6, 18)
        # Other documents beside it change nothing for a document.
        self.write_source("one/a_new_one.py", _prose("news"))
        _, _, again = self.write_corpus(packages=["one"], heldout_fraction=0.3)
        self.assertContainsSubset(map(tuple, heldout), map(tuple, again))

    def test_sentences_have_their_library(self):
        names = [f"m{i:02}" for i in range(40)]
        for package in ("one", "two"):
            self.write_source(f"{package}/__init__.py", "")
            for name in names:
                prose = _prose(f"{name} of {package}")
                self.write_source(f"{package}/{name}.py", prose)
        paths = [os.path.join(self.folder, x) for x in ("a.csv", "b.csv")]
        # Package "two" stands for Python, which is no package.
        self.enter_context(
            unittest.mock.patch.object(
                demo_corpus,
                "_find_standard_library",
                lambda: list(
                    demo_corpus._find_sources(f"{self.folder}/two", "two")
                ),
            )
        )
        _, *parts = self.write_corpus(
            sentence_files=paths, packages=["one"], heldout_fraction=0.3
        )
        for path, documents in zip(paths, parts, strict=True):
            paragraphs = {line for document in documents for line in document}
            with open(path, encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            labels = [row["library"] for row in rows]
            self.assertGreaterEqual(labels.count("one"), 4 * 6)
            self.assertEqual(labels.count("one"), labels.count("python"))
            for row in rows:
                package = {"one": "one", "python": "two"}[row["library"]]
                self.assertIn(f"of {package} what", row["sentence"])
                self.assertIn(row["sentence"], paragraphs)

    def test_number_of_processes_does_not_matter(self):
        self.write_source("one/__init__.py", _prose("ones"))
        for i in range(50):
            self.write_source(f"one/m{i}.py", _prose(f"number {i}"))
        results = [
            self.write_corpus(packages=["one"], num_processes=processes)
            for processes in (1, 2)
        ]
        self.assertEqual(results[0], results[1])

    def test_package_that_is_not_installed(self):
        with self.assertRaisesRegex(UserError, "'no_such' is not installed"):
            self.write_corpus(packages=["no_such"])
        self.assertEmpty(os.listdir(self.folder))


class RealCorpusTest(tf.test.TestCase):
    def test_numpy_gives_prose(self):
        folder = self.create_tempdir().full_path
        paths = [os.path.join(folder, x) for x in ("text.txt", "held.txt")]
        with unittest.mock.patch.object(
            demo_corpus, "_find_standard_library", lambda: []
        ):
            counts = demo_corpus.write_corpus(*paths, packages=["numpy"])
        self.assertGreater(counts.characters, 500_000)
        self.assertBetween(
            counts.heldout_documents / counts.documents, 0.01, 0.12
        )
        documents = [list(corpus.read_documents([path])) for path in paths]
        paragraphs = [
            {line for document in part for line in document}
            for part in documents
        ]
        self.assertEmpty(paragraphs[0] & paragraphs[1])
        text = "\n".join(paragraphs[0])
        self.assertNotIn(">>>", text)
        self.assertNotRegex(text, r"(?m)^(Parameters|Returns|-----)$")
        self.assertLess(text.count("`") / len(text), 1e-3)

    def test_finds_python_itself(self):
        modules = dict(demo_corpus._find_standard_library())
        self.assertContainsSubset(
            ["pydoc_data.topics", "argparse", "json.decoder"], modules
        )
        self.assertNoCommonElements(["numpy", "test.test_json"], modules)


if __name__ == "__main__":
    tf.test.main()

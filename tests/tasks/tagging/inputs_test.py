"""Tests for bert_tf.tasks.tagging.inputs."""

import gzip
import pathlib

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.tasks.tagging import inputs as tagging_inputs

_TEXTS = ("Ann (of Oslo).", "", "Bo")
_WORDS = (("Ann", "(", "of", "Oslo", ")", "."), (), ("Bo",))
_OFFSETS = (
    ((0, 3), (4, 5), (5, 7), (8, 12), (12, 13), (13, 14)),
    (),
    ((0, 2),),
)


class ReadInputsTest(tf.test.TestCase, parameterized.TestCase):
    def _iterate(self, name, text, word_column=0):
        path = pathlib.Path(self.create_tempdir().full_path, name)
        data = text.encode()
        path.write_bytes(gzip.compress(data) if name[-3:] == ".gz" else data)
        return tagging_inputs.read_inputs(str(path), word_column)

    def _read(self, name, text, word_column=0):
        return list(self._iterate(name, text, word_column))

    def _assert_texts(self, examples):
        self.assertEqual(tuple(x.words for x in examples), _WORDS)
        self.assertEqual(tuple(x.offsets for x in examples), _OFFSETS)
        for example in examples:
            self.assertIsNone(example.tags)

    @parameterized.parameters(
        ("a.txt", "Ann (of Oslo).\n\nBo\n\n"),
        ("a.txt.gz", "\ufeffAnn (of Oslo).\r\n\r\nBo\r\n"),
        ("a.csv", 'id,text\n1,Ann (of Oslo).\n2,""\n3,Bo\n'),
        ("a.tsv", "text\ttags\nAnn (of Oslo).\tO\n\tO\nBo\tO\n"),
        ("a.jsonl", '{"text":"Ann (of Oslo)."}\n{"text":""}\n{"text":"Bo"}\n'),
        ("a.json", '[{"text":"Ann (of Oslo)."},{"text":""},{"text":"Bo"}]'),
    )
    def test_raw_text(self, name, text):
        self._assert_texts(self._read(name, text))

    @parameterized.parameters(
        ("a.conll", "Ann\nsings\n\nBo\n", 0),
        ("a.conll", "Ann\tO\nsings\tnonsense\n\nBo\tO\n", 0),
        ("a.txt", "Ann B-PER\nsings O\n\nBo I-PER\n", 0),
        ("a.txt", "-DOCSTART-\n\nAnn\nsings\n\nBo\n", 0),
        ("a.tsv", "1\tAnn\tO\n2\tsings\tO\n\n1\tBo\tO\n", 1),
        ("eng.testb", "Ann NN\nsings VB\n\nBo NN\n", 0),
        ("a.conll", "t w\nO Ann\nO sings\n\nO Bo\n", "w"),
        ("a.conll", "t w\n\nO Ann\nO sings\n\nO Bo\n", "w"),
        ("a.tsv", "words\ttags\nAnn\tO\nsings\tO\n\nBo\tO\n", "words"),
        ("a.tsv", "text\ttags\nAnn\tO\nsings\tO\n\nBo\tO\n", "text"),
    )
    def test_columns(self, name, text, word_column):
        examples = self._read(name, text, word_column)
        self.assertEqual(
            [x.words for x in examples], [("Ann", "sings"), ("Bo",)]
        )
        for example in examples:
            self.assertIsNone(example.tags)
            self.assertIsNone(example.offsets)

    def test_a_word_may_be_called_text(self):
        (example,) = self._read("a.tsv", "text\tO\nmessages\tO\n")
        self.assertEqual(example.words, ("text", "messages"))

    @parameterized.parameters(
        "New York is big\n", "Vitamin B-12\nis\n", "I like B-movies\nno O\n"
    )
    def test_text_that_is_no_columns(self, text):
        lines = text.splitlines()
        examples = self._read("a.txt", text)
        self.assertLen(examples, len(lines))
        for example, line in zip(examples, lines, strict=True):
            self.assertEqual(" ".join(example.words), line)

    def test_columns_are_read_as_they_are_asked_for(self):
        sentences = self._iterate("a.conll", "Ann O\n\nBo O\n\nsings\n")
        self.assertEqual(next(sentences).words, ("Ann",))
        self.assertEqual(next(sentences).words, ("Bo",))
        with self.assertRaisesRegex(UserError, "line 5 has 1 columns"):
            next(sentences)

    def test_documents(self):
        text = "-DOCSTART-\n\na\n\nb\n\n-DOCSTART-\n\nc\n"
        examples = self._read("a.conll", text)
        first, second, third = (x.document for x in examples)
        self.assertEqual(first, second)
        self.assertNotEqual(second, third)

    def test_lists_of_words(self):
        examples = self._read("a.jsonl", '{"words":["New York","is"],"id":1}\n')
        self.assertEqual(examples[0].words, ("New York", "is"))
        self.assertIsNone(examples[0].offsets)

    @parameterized.parameters(
        ("a.csv", "id,body\n1,x\n", 'column "text" .* Received: id, body'),
        ("a.jsonl", '{"text":"a","words":["a"]}\n', 'column "text"'),
        ("a.jsonl", '{"text":"a"}\n{"text":3}\n', "a.jsonl, line 2: Expected"),
        ("a.jsonl", '{"words":["a",""]}\n', "line 1: Expected .*not empty"),
        ("a.csv", "text,words\nx,y\n", 'column "text"'),
        ("a.csv", "words\n\"['a']\"\n", 'line 2: Expected a list under "wor'),
        ("a.conll", "\n", "no sentence"),
        ("a.txt", "", "no rows"),
    )
    def test_what_cannot_be(self, name, text, message):
        with self.assertRaisesRegex(UserError, message):
            self._read(name, text)


class ParseTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("Ann sings.",), ({"text": "Ann sings.", "id": 3},)
    )
    def test_texts(self, row):
        example = tagging_inputs.parse(row)
        self.assertEqual(example.words, ("Ann", "sings", "."))
        self.assertEqual(example.offsets, ((0, 3), (4, 9), (9, 10)))

    @parameterized.parameters(
        (["Ann", "sings."],), ({"words": ("Ann", "sings.")},)
    )
    def test_words(self, row):
        example = tagging_inputs.parse(row)
        self.assertEqual(example.words, ("Ann", "sings."))
        self.assertIsNone(example.offsets)

    @parameterized.parameters(
        (3,),
        (None,),
        (["a", 3],),
        ({"txt": "a"},),
        ({"text": "a", "words": []},),
    )
    def test_what_is_none(self, row):
        with self.assertRaisesRegex(UserError, "Expected a text, a list"):
            tagging_inputs.parse(row)


if __name__ == "__main__":
    tf.test.main()

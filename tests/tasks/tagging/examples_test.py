"""Tests for bert_tf.tasks.tagging.examples."""

import json
import pathlib

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.tasks.tagging import examples as tagging_examples
from bert_tf.tasks.tagging import schemes
from bert_tf.tasks.tagging.examples import TaggingExample
from bert_tf.tasks.tagging.examples import TaggingFiles
from tests.support import files_case
from tests.support import shared_data

_CASES = pathlib.Path(__file__).parents[2] / "testdata/cases"

# In CoNLL-2003, each document begins with -DOCSTART-.
_CONLL = """\
-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
. . O O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- -X- O

Rome NNP I-NP I-LOC
Oslo NNP B-NP B-LOC
Ajax NNP I-NP I-ORG
"""


def _read(path, word_column=0, tag_column=-1, **options):
    options |= {"word_column": word_column, "tag_column": tag_column}
    return TaggingFiles(files={"train": str(path)}, **options).read("train")


class ReadTest(files_case.FilesCase):
    def _read(self, contents, *columns):
        return _read(self.write("data.txt", contents), *columns)

    def test_conll_becomes_iob2_examples(self):
        with self.assertLogs(level="INFO") as logs:
            data = self._read(_CONLL)
        self.assertIn("5 tags are converted to IOB2", logs.output[0])
        self.assertEqual(
            data,
            (
                TaggingExample(
                    ("EU", "rejects", "German", "."),
                    ("B-ORG", "O", "B-MISC", "O"),
                    document=1,
                    line=3,
                ),
                TaggingExample(
                    ("Peter", "Blackburn"), ("B-PER", "I-PER"), 1, 8
                ),
                TaggingExample(
                    ("Rome", "Oslo", "Ajax"), ("B-LOC", "B-LOC", "B-ORG"), 2, 13
                ),
            ),
        )

    @parameterized.parameters(
        ("\ufeff" + _CONLL,),
        (_CONLL.replace("\n", "\r\n"),),
        (_CONLL.replace("\n", " \n"),),
        ("\n\n" + _CONLL.removesuffix("\n").replace("\n\n", "\n \t\n\n"),),
        (_CONLL.replace(" ", "   "),),
        (_CONLL.replace(" ", "\t"),),
        (_CONLL.replace("-DOCSTART- -X- -X- O", "-DOCSTART-"),),
    )
    def test_equivalent_files_give_equal_examples(self, contents):
        data = self._read(contents)
        for example, expected in zip(data, self._read(_CONLL), strict=True):
            self.assertEqual(example.words, expected.words)
            self.assertEqual(example.tags, expected.tags)
            self.assertEqual(example.document, expected.document)

    def test_sentences_without_documents_have_their_own(self):
        data = self._read("a\tO\n\t\nb\tB-x-y\nc\tI-x-y\n\n\n\nd\tO")
        self.assertEqual([x.document for x in data], [0, 1, 2])
        self.assertEqual(data[1].tags, ("B-x-y", "I-x-y"))

    def test_words_keep_odd_spaces(self):
        data = self._read("New York\tB-LOC\n\u00a0a\u200b\tO\n")
        self.assertEqual(data[0].words, ("New York", "\u00a0a\u200b"))
        data = self._read("a\u00a0b O\n")
        self.assertEqual(data[0].words, ("a\u00a0b",))

    @parameterized.parameters(
        (0, 3), (-4, -1), ("word", "ner"), ("word", 3), (0, "ner")
    )
    def test_columns_are_found_by_number_or_name(self, word_column, tag_column):
        lines = _CONLL
        if "word" == word_column or "ner" == tag_column:
            lines = "word pos chunk ner\n" + _CONLL
        data = self._read(lines, word_column, tag_column)
        self.assertEqual(data[1].words, ("Peter", "Blackburn"))
        self.assertEqual(data[1].tags, ("B-PER", "I-PER"))
        self.assertLen(data, 3)

    def test_a_csv_file_needs_a_column_of_sentences(self):
        with self.assertRaisesRegex(UserError, "--sentence_column"):
            _read(self.write("data.csv", "a,O\n"))

    @parameterized.parameters(
        ("", "data.txt has no sentence. Expected a word and its tag"),
        ("\ufeff\n\n-DOCSTART- O\n\n", "data.txt has no sentence"),
        ("a O\n\nb x O\n", "line 3 has 3 columns; expected 2, as on line 1"),
        ("\na\tO\nb O\n", "line 3 has 1 columns; expected 2, as on line 2"),
        ("a O\nb B-\n", "line 2: expected a tag O, .* column -1.*'B-'"),
        ("a B-X\n\nb NNP\n", "line 3: expected a tag O, B-type.*'NNP'"),
        ("a O\nb 3\n", "line 2: expected a tag .*'3'; name 0, 1, .*--labels"),
        ("a O\nb _\n", "line 2: expected a tag .*'_'"),
        ("a\tO\nb\t\n", "line 2: expected a tag .*''"),
        ("a\tO\n \tO\n", "line 2 has no word in column 0"),
    )
    def test_rejects_broken_files(self, contents, message):
        with self.assertRaisesRegex(UserError, message):
            self._read(contents)

    def test_tags_with_line_breaks_are_refused(self):
        contents = '{"words": ["a"], "tags": ["B-X\\nY"]}\n'
        with self.assertRaisesRegex(UserError, r"expected a tag .*'B-X\\nY'"):
            _read(self.write("data.jsonl", contents))

    @parameterized.parameters(
        ((4, -1), "no column 4; its first line has 4 columns, from 0"),
        ((0, -5), "no column -5"),
        (("token", -1), "no column 'token'; its first line has .*: EU, NNP"),
    )
    def test_rejects_missing_columns(self, columns, message):
        contents = _CONLL.split("\n\n", 1)[1]
        with self.assertRaisesRegex(UserError, message):
            self._read(contents, *columns)


class OtherFormsTest(files_case.FilesCase):
    """Files as others publish them; the first three are in tests/testdata."""

    def _read(self, name, contents=None, *columns, **options):
        path = _CASES / name
        if contents is not None:
            path = self.write(name, contents)
        data = _read(path, *columns, **options)
        return [" ".join(x.words) for x in data], [
            " ".join(x.tags) for x in data
        ]

    def test_bioes_tags_become_iob2(self):
        words, tags = self._read("conll_bioes/train.conll")
        self.assertEqual(words, ["Mia van Dam in Ulm"])
        self.assertEqual(tags, ["B-PER I-PER I-PER O B-LOC"])

    def test_comments_between_sentences_are_skipped(self):
        path = "conll_comment_lines/train.tsv"
        self.assertEqual(
            self._read(path, None, 1, 2),
            (["Mia runs", "Ulm"], ["B-PER O", "B-LOC"]),
        )
        files = TaggingFiles(word_column=1)
        untagged = files.read_inputs(str(_CASES / path))
        self.assertEqual([x.words[0] for x in untagged], ["Mia", "Ulm"])

    def test_sentence_column_ends_sentences(self):
        path = "conll_no_blank_lines/train.tsv"
        with self.assertLogs(level="WARNING") as logs:
            words, _ = self._read(path, None, "word", "tag")
        self.assertLen(words, 1)
        self.assertIn("or --sentence_column names a", logs.output[0])
        words, tags = self._read(
            path, None, "word", "tag", sentence_column="sentence_id"
        )
        self.assertEqual(words, ["Mia lives in Ulm"] * 60)
        self.assertEqual(tags, ["B-PER O O B-LOC"] * 60)

    def test_csv_may_name_the_sentence_at_its_first_word(self):
        text = 'Sentence #,Word,POS,Tag\nSentence: 1,"1,000",CD,O\n,in,IN,O\n'
        text += "Sentence: 2,Ulm,NNP,B-geo\n"
        columns = ("Word", "Tag")
        words, tags = self._read(
            "a.csv", text, *columns, sentence_column="Sentence #"
        )
        self.assertEqual(words, ["1,000 in", "Ulm"])
        self.assertEqual(tags, ["O O", "B-geo"])

    @parameterized.parameters(
        ("# O\nx B-A\n", ["# x"]),
        ("#tag B-A\nx O\n", ["#tag x"]),
        ("# id\nx B-A\n# O\n", ["x #"]),
        ("#begin document (a); part 1\nx B-A\n\n#end document\n", ["x"]),
        ("# text = x y\nx\tB-A\n# O\tO\n", ["x # O"]),
        ("%% id\n# O\nx B-A\n", ["# x"], "%%"),
        ("# O\nx B-A\n", ["x"], "#"),
        ("# id\nx A\n", ["# x"], ""),
        ("# sent 1\nx A\n\n# A\n", ["x", "#"]),
    )
    def test_number_signs_begin_comments_or_are_words(
        self, text, expected, prefix=None
    ):
        words, _ = self._read("a.conll", text, comment_prefix=prefix)
        self.assertEqual(words, expected)

    @parameterized.parameters(
        ("B-a L-a U-b O", "B-a I-a B-b O"),
        ("B-a M-a E-a S-a", "B-a I-a I-a B-a"),
        ("PER PER O LOC", "B-PER I-PER O B-LOC"),
        ("I-a E-a E-a O I-a", "B-a I-a B-a O B-a"),
        ("B I O B", "B-ENTITY I-ENTITY O B-ENTITY"),
        ("LOC LOC", "B-LOC I-LOC"),
    )
    def test_other_schemes_become_iob2(self, tags, expected):
        lines = "".join(f"w {tag}\n" for tag in tags.split())
        path = self.write("a.conll", lines)
        (example,) = _read(path)
        self.assertEqual(" ".join(example.tags), expected)

    @parameterized.parameters(
        ('{"tokens": ["Mia", "in", "Ulm"], "ner_tags": ["B-P", "O", "B-L"]}',),
        ('{"tokens": ["Mia", "in", "Ulm"], "ner_tags": [1, 0, 2]}',),
        ('{"words": ["Mia", "in", "Ulm"], "tags": ["S-P", "O", "S-L"]}',),
        ('{"text": "Mia in Ulm", "label": [[0, 3, "P"], [7, 10, "L"]]}',),
    )
    def test_json_forms_give_equal_tags(self, text):
        words, tags = self._read(
            "a.jsonl", f"{text}\n", tag_names=("O", "B-P", "B-L")
        )
        self.assertEqual(words, ["Mia in Ulm"])
        self.assertEqual(tags, ["B-P O B-L"])

    def test_warns_of_spans_that_words_cannot_hold(self):
        text = '{"text": "in Ulm-Ost", "labels": [[3, 6, "a b"], [3, 10, "L"]]}'
        with self.assertLogs(level="WARNING") as logs:
            _, tags = self._read("a.jsonl", text)
        self.assertIn("2 spans begin or end inside a word", logs.output[0])
        self.assertEqual(tags, ["O B-a_b"])

    @parameterized.parameters(
        ('{"tokens": ["a"], "ner_tags": [1]}', "'1'; name 0, 1, .*--labels"),
        ('{"tokens": ["a"], "ner_tags": ["O", "O"]}', "line 1: .* 1 tags"),
        ('{"tokens": ["a"]}', "line 1 has no tags"),
        ('{"sentence": "a"}', "line 1: Expected a text, a list of non-empty"),
        ('{"text": "a", "label": [["a", 0, 1]]}', "line 1: .*start, end, lab"),
    )
    def test_bad_json_is_refused(self, text, message):
        with self.assertRaisesRegex(UserError, message):
            self._read("a.jsonl", text)


class TagsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("", ""),
        ("O O", "O O"),
        ("I-x I-x O I-x", "B-x I-x O B-x"),
        ("I-x B-x I-x", "B-x B-x I-x"),
        ("I-x I-y I-xy", "B-x B-y B-xy"),
        ("B-x I-x B-y B-y", "B-x I-x B-y B-y"),
        ("B-x I-y", "B-x B-y"),
    )
    def test_iob1_tags_become_iob2(self, tags, expected):
        # A sentence's first tag must not continue the sentence before.
        self.assertEqual(
            schemes.to_iob2([tags.split()] * 2),
            ([tuple(expected.split())] * 2, None),
        )

    def test_labels_are_sorted_and_begin_with_O(self):
        examples = [
            TaggingExample(("a", "b"), ("B-y", "I-y")),
            TaggingExample(("c",), ("B-x-z",)),
            TaggingExample(("d",)),
        ]
        labels = tagging_examples.collect_labels(examples)
        self.assertEqual(labels, ["O", "B-x-z", "I-x-z", "B-y", "I-y"])
        with self.assertRaisesRegex(UserError, "no tag but O"):
            tagging_examples.collect_labels([TaggingExample(("a",), ("O",))])


class UnknownTypesTest(files_case.FilesCase):
    def test_types_without_a_label_are_counted(self):
        path = self.write("dev.conll", "a B-x\nb B-new\nc I-new\nd B-new\n")
        files = TaggingFiles(files={"dev": path}, labels=("O", "B-x", "I-x"))
        with self.assertLogs(level="WARNING") as logs:
            files.read("dev")
        self.assertIn("2 entities have types without", logs.output[0])
        self.assertIn("count as missed: new (2).", logs.output[0])


class RealDataTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("train", 3394, 62730, 1975),
        ("dev", 1009, 15733, 836),
        ("test", 1287, 23394, 1079),
    )
    def test_wnut17_has_known_counts(self, part, sentences, words, entities):
        data = _read(
            # Tweets may begin with #Monday, which starts no comment.
            shared_data.data(f"wnut17/{part}.conll")
        )
        self.assertLen(data, sentences)
        self.assertEqual(sum(len(x.words) for x in data), words)
        starts = [t for x in data for t in x.tags if t[0] == "B"]
        self.assertLen(starts, entities)
        self.assertLen(tagging_examples.collect_labels(data), 13)

    def test_wikigold_has_known_counts(self):
        data = _read(shared_data.data("wikigold/wikigold.conll.txt"))
        self.assertLen(data, 1696)
        self.assertLen({x.document for x in data}, 145)
        self.assertEqual(
            tagging_examples.collect_labels(data)[1::2],
            ["B-LOC", "B-MISC", "B-ORG", "B-PER"],
        )


_WORDS = (("Ann", "(", "of", "Oslo", ")", "."), (), ("Bo",))
_OFFSETS = (
    ((0, 3), (4, 5), (5, 7), (8, 12), (12, 13), (13, 14)),
    (),
    ((0, 2),),
)


class ReadInputsTest(files_case.FilesCase):
    def _iterate(self, name, text, word_column=0):
        files = TaggingFiles(word_column=word_column)
        return files.read_inputs(self.write(name, text))

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
    def test_raw_text_is_split_into_words(self, name, text):
        self._assert_texts(self._read(name, text))

    @parameterized.parameters(
        ("a.conll", "Ann\nsings\n\nBo\n", 0),
        ("a.conll", "Ann\tO\nsings\tnonsense\n\nBo\tO\n", 0),
        ("a.txt", "Ann B-PER\nsings O\n\nBo I-PER\n", 0),
        ("a.txt", "-DOCSTART-\n\nAnn\nsings\n\nBo\n", 0),
        ("a.txt", "# id 1\nAnn B-PER\nsings O\n\n# id 2\nBo I-PER\n", 0),
        ("a.tsv", "1\tAnn\tO\n2\tsings\tO\n\n1\tBo\tO\n", 1),
        ("eng.testb", "Ann NN\nsings VB\n\nBo NN\n", 0),
        ("a.conll", "t w\nO Ann\nO sings\n\nO Bo\n", "w"),
        ("a.conll", "t w\n\nO Ann\nO sings\n\nO Bo\n", "w"),
        ("a.tsv", "words\ttags\nAnn\tO\nsings\tO\n\nBo\tO\n", "words"),
        ("a.tsv", "text\ttags\nAnn\tO\nsings\tO\n\nBo\tO\n", "text"),
        ("a.jsonl", '{"w":["Ann","sings"],"text":"-"}\n{"w":["Bo"]}\n', "w"),
    )
    def test_columns_of_words_are_read(self, name, text, word_column):
        examples = self._read(name, text, word_column)
        self.assertEqual(
            [x.words for x in examples], [("Ann", "sings"), ("Bo",)]
        )
        for example in examples:
            self.assertIsNone(example.tags)
            self.assertIsNone(example.offsets)

    @parameterized.parameters(
        ("%x\nAnn\nsings\n", {"comment_prefix": "%"}),
        ("1 Ann\n1 sings\n", {"word_column": 1, "sentence_column": 0}),
    )
    def test_options_of_columns_make_a_text_file_columns(self, text, options):
        path = self.write("a.txt", text)
        (example,) = TaggingFiles(**options).read_inputs(path)
        self.assertEqual(example.words, ("Ann", "sings"))

    def test_text_as_the_first_word_is_no_header(self):
        (example,) = self._read("a.tsv", "text\tO\nmessages\tO\n")
        self.assertEqual(example.words, ("text", "messages"))

    @parameterized.parameters(
        "New York is big\n", "Vitamin B-12\nis\n", "I like B-movies\nno O\n"
    )
    def test_txt_without_columns_is_raw_text(self, text):
        lines = text.splitlines()
        examples = self._read("a.txt", text)
        self.assertLen(examples, len(lines))
        for example, line in zip(examples, lines, strict=True):
            self.assertEqual(" ".join(example.words), line)

    def test_columns_are_read_lazily(self):
        sentences = self._iterate("a.conll", "Ann O\n\nBo O\n\nsings\n")
        self.assertEqual(next(sentences).words, ("Ann",))
        self.assertEqual(next(sentences).words, ("Bo",))
        with self.assertRaisesRegex(UserError, "line 5 has 1 columns"):
            next(sentences)

    @parameterized.parameters(
        ("a.csv", "id,body\n1,x\n", 'column "text" .* Received: id, body'),
        ("a.jsonl", '{"text":"a","words":["a"]}\n', 'column "text"'),
        ("a.jsonl", '{"text":"a"}\n{"text":3}\n', "a.jsonl, line 2: Expected"),
        ("a.jsonl", '{"words":["a",""]}\n', "line 1: Expected .*non-empty"),
        ("a.csv", "text,words\nx,y\n", 'column "text"'),
        ("a.csv", "words\n\"['a']\"\n", 'line 2: Expected a list under "wor'),
        ("a.conll", "\n", "no sentence"),
        ("a.txt", "", "no rows"),
    )
    def test_rejects_broken_inputs(self, name, text, message):
        with self.assertRaisesRegex(UserError, message):
            self._read(name, text)


class ParseRowTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (3,),
        (None,),
        (["a", 3],),
        ({"txt": "a"},),
        ({"text": "a", "words": []},),
    )
    def test_rejects_rows_that_are_no_text_or_words(self, row):
        with self.assertRaisesRegex(UserError, "Expected a text, a list"):
            tagging_examples.parse_row(row)


class PublishedFormsTest(files_case.FilesCase, parameterized.TestCase):
    @parameterized.parameters(
        ({"tags": ["O", None]},),
        ({"tags": "OO"},),
        ({"tags": {"O": 1, "B-X": 2}},),
        # These are neither BIO tags nor names of types.
        ({"tags": ["o", "b-per"]},),
        ({"tags": ["O", "PER-B"]},),
    )
    def test_refuses_tags_that_would_become_other_types(self, tags):
        row = json.dumps({"tokens": ["Hi", "Bob"], **tags})
        path = self.write("train.jsonl", row + "\n")
        with self.assertRaisesRegex(UserError, "tags|tag O"):
            _read(path)

    def test_a_text_with_a_hyphenated_word_is_no_column(self):
        for text, expected in (("Send an E-mail", False), ("Bob B-PER", True)):
            path = self.write("a.txt", text + "\n")
            self.assertEqual(not TaggingFiles().has_texts(path), expected)

    def test_a_text_wins_over_tokens(self):
        row = {"text": "Hi Bob", "tokens": ["Hi", "Bob"]}
        self.assertEqual(tagging_examples.parse_row(row).words, ("Hi", "Bob"))
        self.assertIsNotNone(tagging_examples.parse_row(row).offsets)


if __name__ == "__main__":
    tf.test.main()

"""Tests for bert_tf.tasks.multiple_choice.examples."""

import collections
import csv
import gzip

import tensorflow as tf
from absl.testing import parameterized

from bert_tf.errors import UserError
from bert_tf.tasks.multiple_choice import examples as multiple_choice_examples
from bert_tf.tasks.multiple_choice.examples import Columns
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceExample
from bert_tf.tasks.multiple_choice.examples import MultipleChoiceFiles
from tests.support import files_case
from tests.support.shared_data import data

_SWAG = multiple_choice_examples.OFFICIAL["swag"]
_CODAH = multiple_choice_examples.OFFICIAL["codah"]
_COMVE_A = multiple_choice_examples.OFFICIAL["comve_a"]
_COMVE_B = multiple_choice_examples.OFFICIAL["comve_b"]
_CUSTOM = Columns(("a", "b", "c"), "q", label="answer")
_LISTED = Columns(("choices",), "context", label="label")

# The layout of the official train.csv and val.csv, whose first column has no
# name. test.csv has no label.
_SWAG_CSV = """\
,video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,\
ending2,ending3,label
0,anetv_x-1,34,"A ""big"" cat sits. It","A ""big"" cat sits.",It,gold,\
"looks, and runs.",sleeps.,is a dog.,has a hat.,1
1,lsmdc_y,35,He stands.,He stands.,The dog,gen0,barks.,is red.,reads.,sings.,3
"""


def _read(path, columns, name="custom"):
    task = MultipleChoiceFiles(name=name, columns=columns, files={"dev": path})
    return task.read("dev")


class _FilesTestCase(files_case.FilesCase):
    def _read(self, name, text, columns=_CUSTOM):
        return _read(self.write(name, text), columns)


class OfficialFilesTest(_FilesTestCase):
    def test_swag_rows_become_examples(self):
        path = self.write("val.csv", _SWAG_CSV)
        self.assertEqual(_SWAG.find_file(str(self.folder), "dev"), path)
        first, second = _read(path, _SWAG.columns)
        self.assertEqual(
            first,
            MultipleChoiceExample(
                "val.csv:2",
                'A "big" cat sits.',
                (
                    "It looks, and runs.",
                    "It sleeps.",
                    "It is a dog.",
                    "It has a hat.",
                ),
                ("ending0", "ending1", "ending2", "ending3"),
                1,
            ),
        )
        self.assertEqual(second.choices[0], "The dog barks.")
        self.assertEqual(second.label, 3)

    @parameterized.parameters(("train", 1665), ("dev", 556), ("test", 555))
    def test_codah_has_no_header(self, split, count):
        path = _CODAH.find_file(data("codah/fold_0"), split)
        examples = _read(path, _CODAH.columns, "codah")
        with open(path, encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
        self.assertLen(examples, count)
        self.assertEqual(
            [[x.context, *x.choices, str(x.label)] for x in examples],
            [row[1:] for row in rows],
        )

    def _comve(self, split, official):
        path = official.find_file(data("comve"), split)
        examples = _read(path, official.columns)
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return examples, rows

    def test_comve_b_choices_are_shuffled(self):
        examples, rows = self._comve("test", _COMVE_B)
        self.assertLen(examples, 1000)
        for example, row in zip(examples, rows, strict=True):
            self.assertEqual(example.context, row["Incorrect Statement"])
            self.assertEqual(
                dict(zip(example.names, example.choices, strict=True)),
                {name: row[name] for name in _COMVE_B.columns.choices},
            )
            self.assertEqual(example.names[example.label], "Right Reason1")
        labels = collections.Counter(example.label for example in examples)
        # 1,000 draws with probability 1/3 give 290 to 380 almost surely.
        self.assertBetween(min(labels.values()), 290, 333)
        self.assertBetween(max(labels.values()), 334, 380)

    def test_order_depends_only_on_the_line(self):
        text = "Right Reason1,Confusing Reason1,Confusing Reason2"
        text += ",Incorrect Statement\n"
        rows = [f"r{i},x{i},y{i},s{i}\n" for i in range(30)]
        all_rows = self._read("a.csv", text + "".join(rows), _COMVE_B.columns)
        few_rows = self._read(
            "b.csv", text + "".join(rows[:7]), _COMVE_B.columns
        )
        self.assertEqual(
            [x.choices for x in all_rows[:7]], [x.choices for x in few_rows]
        )
        orders = {tuple(name[:1] for name in x.choices) for x in all_rows}
        self.assertLen(orders, 6)


class CustomFilesTest(_FilesTestCase):
    def test_labels_are_indices_or_names(self):
        examples = self._read(
            "x.csv",
            "\ufeffq,a,b,c,answer\r\n"
            "Who?,he,she,it,c\r\n"
            "Where?,here,there,home, 0 \r\n"
            "When?,now,then,soon,1.0\r\n",
        )
        self.assertEqual([x.label for x in examples], [2, 0, 1])
        self.assertEqual(
            [x.context for x in examples], ["Who?", "Where?", "When?"]
        )
        self.assertEqual(examples[2].names, ("a", "b", "c"))
        self.assertEqual(examples[2].guid, "x.csv:4")

    def test_names_come_before_indices(self):
        columns = Columns(("1", "2"), label="answer")
        (example,) = self._read("x.tsv", "1\t2\tanswer\nx\ty\t1\n", columns)
        self.assertEqual((example.label, example.context), (0, None))

    def test_lists_of_choices_may_have_any_length(self):
        examples = self._read(
            "x.jsonl",
            '{"context": "A", "choices": ["x", "y"], "label": 1}\n'
            '{"context": "B", "choices": ["x", "y", "z", "v"], "label": "3"}\n',
            _LISTED,
        )
        self.assertEqual([x.choices[-1] for x in examples], ["y", "v"])
        self.assertEqual([x.label for x in examples], [1, 3])
        self.assertEqual(examples[1].names, ("0", "1", "2", "3"))

    def test_rejects_cells_in_place_of_lists(self):
        with self.assertRaisesRegex(UserError, "must have a list of two"):
            self._read(
                "x.csv",
                'context,choices,label\nA,"[""x"", ""y""]",0\n',
                _LISTED,
            )

    def test_rows_may_have_fewer_choices_than_columns(self):
        examples = self._read(
            "x.csv", "q,a,b,c,answer\nWho?,he,she,,b\nWho?,he,she,it,2\n"
        )
        self.assertEqual(examples[0].choices, ("he", "she"))
        self.assertEqual(examples[0].names, ("a", "b"))
        self.assertLen(examples[1].choices, 3)

    @parameterized.parameters(
        ("Who?,he,,it,1", "line 3 has an empty text in column 'b'"),
        ("Who?,he,,,0", "line 3 has an empty text in column 'b'"),
        (" ,he,she,it,1", "line 3 has an empty text in column 'q'"),
        ("Who?,he,she,it,", "line 3 has no label in column 'answer'"),
        ("Who?,he,she,it,-1", "line 3 has no label in column 'answer'"),
        ("Who?,he,she,it,3", 'line 3 .* 0 to 2, .*Received: "3"'),
        ("Who?,he,she,,c", 'line 3 .* 0 to 1, .*Received: "c"'),
        (f"Who?,he,she,it,{'9' * 400}", "line 3 .* correct choice"),
        ("Who?,he,she,it,d", "correct choice in column 'answer'"),
        ("Who?,he,she,it,1.5", "correct choice in column 'answer'"),
        ("Who?,he,she,1", "line 3 must have 5 columns"),
    )
    def test_rejects_broken_rows(self, row, message):
        with self.assertRaisesRegex(UserError, message):
            self._read("x.csv", f"q,a,b,c,answer\nWho?,x,y,z,0\n{row}\n")

    def test_columns_with_line_breaks_are_refused(self):
        columns = Columns(("a\nb", "c"), "q", label="answer")
        with self.assertRaisesRegex(UserError, r"in one line. .*'a\\nb'"):
            self._read("x.csv", 'q,"a\nb",c,answer\nWho?,x,y,0\n', columns)

    @parameterized.parameters(
        ('"choices": ["x"], "label": 0', "two or more texts in column"),
        ('"choices": "x", "label": 0', "two or more texts in column"),
        ('"choices": ["x", " "], "label": 0', "two or more texts in column"),
        ('"choices": ["x", 3], "label": 0', r'Received: \["x", 3\]'),
        ('"label": 0', "Received: nothing"),
        ('"choices": ["x", "y"], "label": true', "Received: true"),
        ('"choices": ["x", "y"], "label": [1]', r"Received: \[1\]"),
        ('"choices": ["x", "y"], "context": null', "string in column 'conte"),
    )
    def test_rejects_broken_objects(self, values, message):
        with self.assertRaisesRegex(UserError, message):
            self._read(
                "x.jsonl",
                '{"context": "A", "choices": ["x", "y"], "label": 0}\n'
                f'{{"context": "A", {values}}}\n',
                _LISTED,
            )


class InputsTest(_FilesTestCase):
    def test_unlabeled_choices_keep_their_order(self):
        path = self.write(
            "x.csv",
            "Correct Statement,Incorrect Statement\n"
            + "".join(f"c{i},i{i}\n" for i in range(20)),
        )
        task = MultipleChoiceFiles(columns=_COMVE_A.columns)
        examples = list(task.read_inputs(path))
        self.assertEqual(
            [x.choices for x in examples],
            [(f"c{i}", f"i{i}") for i in range(20)],
        )

    def test_mappings_become_examples(self):
        for row in (
            {"q": "Who?", "a": "he", "b": "she", "c": "it", "answer": 7},
            {"context": "Who?", "choices": ["he", "she", "it"]},
        ):
            example = MultipleChoiceFiles(columns=_CUSTOM).example_from_row(row)
            self.assertEqual(example.context, "Who?")
            self.assertEqual(example.choices, ("he", "she", "it"))

    @parameterized.parameters(
        ("text", "a mapping with 'q', 'a', 'b', 'c'. Received: 'text'"),
        ({"q": "Who?"}, "must have a string in column 'a'. Received: nothing"),
        ({"context": "", "choices": ["x", "y"]}, "empty text in column 'con"),
        ({"context": "x", "choices": [1, {2}]}, "two or more texts"),
    )
    def test_rejects_rows_of_another_form(self, row, message):
        with self.assertRaisesRegex(UserError, message):
            MultipleChoiceFiles(columns=_CUSTOM).example_from_row(row)


if __name__ == "__main__":
    tf.test.main()
